"""Turns by address: how many others come before one, counted."""

from __future__ import annotations

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker import address_turns
from krappy.broker.address_turns import AddressTurns
from krappy.errors import Overloaded


class Taken:
    """Turns that are taken by tasks, each for a moment. `who`: whose turns these were, in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.turns = AddressTurns()
        self.who: list[str] = []
        self._nursery = nursery

    async def ask(self, host: str, count: int = 1) -> None:
        for _ in range(count):
            self._nursery.start_soon(self._take, host)
            await wait_all_tasks_blocked()

    async def _take(self, host: str) -> None:
        async with self.turns.one(host):
            self.who.append(host)
            await trio.lowlevel.checkpoint()


@trio_test
async def test_one_of_another_address_waits_for_no_more_than_two() -> None:
    async with trio.open_nursery() as nursery:
        taken = Taken(nursery)
        async with taken.turns.one("10.0.0.2"):
            await taken.ask("10.0.0.2", 60)
            await taken.ask("10.0.0.1")
            await taken.ask("10.0.0.3")
            await taken.ask("10.0.0.1")
            assert len(taken.turns) == 63
    assert taken.who[:5] == ["10.0.0.2", "10.0.0.1", "10.0.0.3", "10.0.0.2", "10.0.0.1"]
    assert taken.who[5:] == ["10.0.0.2"] * 58
    assert not len(taken.turns)


@trio_test
async def test_who_leaves_takes_no_turn_and_keeps_none_from_others() -> None:
    async with trio.open_nursery() as nursery:
        taken, leaving = Taken(nursery), list[trio.CancelScope]()

        async def leave(host: str) -> None:
            with trio.CancelScope() as scope:
                leaving.append(scope)
                async with taken.turns.one(host):
                    taken.who.append("one who has left")

        async with taken.turns.one("a"):
            for host in ("b", "b", "c"):
                nursery.start_soon(leave, host)
                await wait_all_tasks_blocked()
            await taken.ask("c")
            for each in leaving:
                each.cancel()  # they have not run yet when the turn is passed on
        await wait_all_tasks_blocked()
        assert taken.who == ["c"]
        async with taken.turns.one("d"):
            pass


@trio_test
async def test_many_of_one_address_are_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_turns, "MOST", 2)
    async with trio.open_nursery() as nursery:
        taken = Taken(nursery)
        async with taken.turns.one("2001:db8::1"):
            await taken.ask("2001:db8::2")
            await taken.ask("2001:db8::3:0:0:4")
            with pytest.raises(Overloaded):
                async with taken.turns.one("2001:db8::5"):
                    pass
            await taken.ask("2001:db8:0:1::1")
    assert len(taken.who) == 3
