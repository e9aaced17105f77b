"""Turns by user, or by address: how many others come before one, counted; and of one user never more than are left for
all others."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from krappy.errors import Overloaded
from krappy.turns import UserTurns


class Taken:
    """Turns that are taken by tasks, each for a moment. `who`: whose turns these were, in order."""

    def __init__(self, nursery: trio.Nursery, most: int | None = None) -> None:
        self.turns = UserTurns(most=most)
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
async def test_many_of_one_address_are_refused_and_others_are_not() -> None:
    async with trio.open_nursery() as nursery:
        taken = Taken(nursery, most=2)
        async with taken.turns.one("2001:db8::1"):
            await taken.ask("2001:db8::2")
            await taken.ask("2001:db8::3:0:0:4")
            with pytest.raises(Overloaded):
                async with taken.turns.one("2001:db8::5"):
                    pass
            await taken.ask("2001:db8:0:1::1")
    assert len(taken.who) == 3


async def hold(turns: UserTurns, who: str, had: list[str]) -> None:
    async with turns.one(who):
        had.append(who)
        await trio.sleep_forever()


@trio_test
async def test_one_user_has_half_of_them_and_others_have_theirs() -> None:
    turns, had = UserTurns(8), list[str]()
    async with trio.open_nursery() as nursery:
        for who in ("bob",) * 20 + ("carl",) * 20 + ("2001:db8::1", "2001:db8::2") + ("ada",):
            nursery.start_soon(hold, turns, who, had)
            await wait_all_tasks_blocked()
        assert had == ["bob"] * 4 + ["carl"] * 2 + ["2001:db8::1", "ada"]
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(hold, turns, "zoe", had)
        await wait_all_tasks_blocked()
        assert had.count("zoe") == 4, "those who have left hold none"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("together", [1, 4])
def test_who_waits_is_served_by_user(together: int) -> None:
    turns, had = UserTurns(together), list[str]()

    async def ask(who: str) -> None:
        async with turns.one(who):
            had.append(who)
            await trio.sleep(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for who in ("bob",) * 20 + ("ada",):
                nursery.start_soon(ask, who)
                await wait_all_tasks_blocked()

    trio.run(main, clock=MockClock(autojump_threshold=0.01))
    assert len(had) == 21
    assert "ada" in had[:3]
