"""Live views have a small share of the event loop's time, and one user's do not make another's late."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from krappy.console.pacer import SHARE, Pacer, PaidPacer
from krappy.console.paying import HttpPayer
from tests.security.test_ends import broker_of, browser

PIECE = 0.01  # seconds of work


def test_one_who_looks_on_waits_for_a_part_of_another_users_views() -> None:
    pacer, waited, worked = Pacer(), list[float](), 0.0

    async def works(who: str) -> None:
        nonlocal worked
        while True:
            await pacer.turn(who)
            worked += PIECE
            pacer.spent(PIECE, who)

    async def looks_on() -> None:
        for _ in range(50):
            await trio.sleep(0.2)
            began = trio.current_time()
            await pacer.turn("ada")
            waited.append(trio.current_time() - began)
            pacer.spent(PIECE / 100, "ada")

    async def main() -> float:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(works, "bob")
            await looks_on()
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    took = trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert max(waited) < 0.2
    assert worked == pytest.approx(took * SHARE / 2, rel=0.1)


def test_many_users_have_the_share_together() -> None:
    pacer, worked = Pacer(), 0.0

    async def works(who: str) -> None:
        nonlocal worked
        while True:
            await pacer.turn(who)
            worked += PIECE
            pacer.spent(PIECE, who)

    async def main() -> None:
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(works, f"user {number}")

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert worked == pytest.approx(20 * SHARE, rel=0.1)


def test_what_a_view_waits_for_is_no_time_of_the_event_loop() -> None:
    """Another thread decodes a large batch, for example."""

    async def main() -> tuple[float, float]:
        pacer = Pacer()
        its = PaidPacer(pacer, SimpleNamespace(turn=trio.lowlevel.checkpoint), "bob")  # type: ignore[arg-type]
        its.took(PIECE)
        its.spent(10.0)
        its.spent(10.0)
        began = trio.current_time()
        await pacer.turn("ada")
        ada = trio.current_time() - began
        await its.turn()
        return ada, trio.current_time() - began

    ada, bob = trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert ada == pytest.approx(PIECE / SHARE)
    assert bob == pytest.approx(2 * 20.0 / SHARE)


def test_the_time_for_which_a_reader_is_waited_for_is_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of a small table: its only page, and its end."""
    worked: list[float] = []
    monkeypatch.setattr(Pacer, "spent", lambda self, seconds, who="", on_loop=0.0: worked.append(seconds))

    async def slow(self: HttpPayer, size: int, stands: object) -> None:
        await trio.sleep(2)

    monkeypatch.setattr(HttpPayer, "part", slow)
    with broker_of(tmp_path) as (broker, client), browser(broker, "ada", "correct horse") as http:
        client.create_topic("seen")
        client.table("seen").put("k", "v")
        with http.stream("GET", "/topics/seen/watch") as answer:
            assert "event: end_of_snapshot" in answer.iter_lines()
    assert sum(worked) < 1.5
