"""However many take long, others wait for one of them: one goes on in each round of the event loop."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import krappy
from krappy.server import channel
from krappy.server.connection import Connection
from krappy.server.turns import SMALL, Turns
from krappy.waiting import MANY, Signal
from krappy.wire import messages as m
from tests.server.test_leaving import opened, until

PEERS = 20


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.now = 0

    def before_io_wait(self, timeout: float) -> None:
        self.now += 1


def test_one_has_its_turn_in_each_round() -> None:
    rounds = Rounds()
    went: list[int] = []

    async def go(turns: Turns) -> None:
        await turns.next()
        went.append(rounds.now)

    async def main() -> None:
        turns = Turns()
        async with trio.open_nursery() as nursery:
            for _ in range(PEERS):
                nursery.start_soon(go, turns)
        assert not turns.contended

    trio.run(main, instruments=[rounds])
    assert len(set(went)) == PEERS


@pytest.mark.parametrize("size", [10, 2 * SMALL, 2 * channel.LARGE], ids=["small", "medium", "large"])
def test_peers_with_much_to_do_have_their_turns_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Each peer sends three requests at once, and each request takes as long as a turn."""
    rounds = Rounds()
    long: Counter[int] = Counter()  # requests that were begun in each round, but for the first small one of each peer
    dispatch = Connection._dispatch
    clock = 0.0

    def take(connection: Connection, frame: memoryview, its: int, lent: bool) -> None:
        nonlocal clock
        clock += 1.0
        if connection.requests or its > SMALL:
            long[rounds.now] += 1
        dispatch(connection, frame, its, lent)

    def now() -> float:
        return clock

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            peers = [await opened(broker, broker.address) for _ in range(PEERS)]
            monkeypatch.setattr(channel, "perf_counter", now)
            monkeypatch.setattr(Connection, "_dispatch", take)
            data = b"".join(m.Get("no topic", bytes(size)).frame(number) for number in range(3))
            for stream, _ in peers:
                nursery.start_soon(stream.send_all, data)
            await until(lambda: sum(each.requests for _, each in peers) == 3 * PEERS, "all have been begun")
            for stream, _ in peers:
                stream.socket.close()

    trio.run(main, instruments=[rounds])
    assert max(long.values()) == 1


def test_long_answers_wait_for_their_turn(tmp_path: Path) -> None:
    async def have_it(turns: Turns, task_status: trio.TaskStatus[None]) -> None:
        async with turns._queue:
            task_status.started()
            await trio.sleep_forever()

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            stream, connection = await opened(broker, broker.address)
            async with stream:
                assert isinstance(connection, Connection)
                await nursery.start(have_it, broker.server.turns)
                with trio.move_on_after(0.01) as paused:
                    await connection.session.pause()
                with trio.move_on_after(0.01) as made:
                    async with connection.answering(10):
                        pass
                assert paused.cancelled_caught
                assert made.cancelled_caught
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_signal_wakes_very_many_in_several_rounds() -> None:
    rounds = Rounds()
    woken: Counter[int] = Counter()
    count = 4 * MANY

    async def main() -> None:
        signal = Signal()
        callbacks: list[Any] = [lambda: woken.update([rounds.now]) for _ in range(count)]
        for callback in callbacks:
            signal.subscribe(callback)
        signal.fire()
        signal.fire()  # which changes nothing for those that are still to be called
        signal.unsubscribe(callbacks[-1])
        while sum(woken.values()) < count - 1 + MANY:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main, instruments=[rounds])
    assert sum(woken.values()) == count - 1 + MANY  # who was called before it fired again is called again
    assert max(woken.values()) <= 2 * MANY
    assert len(woken) >= 3
