"""Locks by name: three callers in every order of coming, leaving and giving up."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from krappy.broker.name_locks import NameLocks, everything
from krappy.broker.transactions.turns import IdTurns
from krappy.errors import ShuttingDown
from krappy.waiting import HANGS_S
from tests import schedules

CALLERS = range(3)
COMES = range(4)  # in how many turns of the event loop a caller comes
STAYS = (0, 2)  # for how many it holds the name
GIVES_UP = range(8)  # in how many it is cancelled


class Round:
    """What three callers see of one name."""

    def __init__(self, locks: NameLocks) -> None:
        self.locks = locks
        self.asked: list[int] = []
        self.held: list[int] = []
        self.given_up: set[int] = set()
        self.inside = 0

    async def call(self, who: int, comes: int, stays: int, gives_up: int | None) -> None:
        for _ in range(comes):
            await trio.lowlevel.checkpoint()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if gives_up is not None:
                    nursery.start_soon(self.cancel, scope, gives_up)
                await self.hold(who, stays)
                nursery.cancel_scope.cancel()
        if who not in self.held:
            self.given_up.add(who)

    async def cancel(self, scope: trio.CancelScope, after: int) -> None:
        for _ in range(after):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async def hold(self, who: int, stays: int) -> None:
        self.asked.append(who)
        async with self.locks.of("name"):
            self.inside += 1
            assert self.inside == 1, "two at a time hold one name"
            self.held.append(who)
            for _ in range(stays):
                await trio.lowlevel.checkpoint()  # whoever gives up by now holds it to the end all the same
                assert self.inside == 1, "two at a time hold one name"
            self.inside -= 1

    async def run(self, comes: tuple[int, ...], stays: tuple[int, ...], gives_up: tuple[int | None, ...]) -> None:
        async with trio.open_nursery() as nursery:
            for who in CALLERS:
                nursery.start_soon(self.call, who, comes[who], stays[who], gives_up[who])
        assert self.held == [who for who in self.asked if who not in self.given_up]  # first come, first served
        assert self.given_up <= {who for who in CALLERS if gives_up[who] is not None}
        assert len(self.locks) == 0


@pytest.mark.parametrize("seed", range(3))
def test_no_order_of_three_callers_lets_two_in(seed: int) -> None:
    quitters: list[tuple[int | None, ...]] = [(None, None, None)]
    quitters += [tuple(after if who == one else None for who in CALLERS) for one in CALLERS for after in GIVES_UP]

    async def main() -> None:
        locks = NameLocks()
        for comes in itertools.product(COMES, repeat=2):
            for stays in itertools.product(STAYS, repeat=3):
                for gives_up in quitters:
                    await Round(locks).run((0, *comes), stays, gives_up)

    schedules.run(main, seed)


def test_the_holder_of_everything_is_alone() -> None:
    async def main() -> None:
        locks = NameLocks()
        inside: set[str] = set()

        async def one(name: str, comes: int) -> None:
            for _ in range(comes):
                await trio.lowlevel.checkpoint()
            async with locks.of(name):
                assert name not in inside
                assert "everything" not in inside
                inside.add(name)
                await trio.lowlevel.checkpoint()
                inside.remove(name)

        async def everything(comes: int, gives_up: int) -> None:
            for _ in range(comes):
                await trio.lowlevel.checkpoint()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(Round(locks).cancel, scope, gives_up)
                    async with locks.everything():
                        assert not inside
                        inside.add("everything")
                        await trio.lowlevel.checkpoint()
                        inside.remove("everything")
                    nursery.cancel_scope.cancel()

        for first, second, gives_up in itertools.product(range(4), range(4), range(6)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(everything, first, gives_up)
                nursery.start_soon(everything, second, 100)
                for comes in range(4):
                    nursery.start_soon(one, "a", comes)
                    nursery.start_soon(one, "b", comes)
            assert len(locks) == 0

    for seed in range(5):
        schedules.run(main, seed)


@trio_test
async def test_turns_end_with_their_closing_but_for_what_goes_on() -> None:
    turns = IdTurns()
    turns.closed = True
    with pytest.raises(ShuttingDown):
        async with turns.of("name"):
            raise AssertionError("a turn was given")
    async with turns.although_closed("name"):
        pass


async def hold(locks: NameLocks, name: str, seconds: float) -> None:
    async with locks.of(name):
        await trio.sleep(seconds)


async def hold_everything(held: list[float], *locks: NameLocks) -> None:
    async with everything(*locks):
        assert not any(map(len, locks))
        held.append(trio.current_time())


@pytest.mark.parametrize("hangs", [0, 1])
def test_who_waits_for_everything_waits_alone_for_one_that_hangs(hangs: int) -> None:
    """A name of either lock is held for long. Others wait for `HANGS_S` only, and this has its turn after that."""

    async def main() -> None:
        locks, held = (NameLocks(), NameLocks()), list[float]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, locks[hangs], "hung", 1000.0)
            await wait_all_tasks_blocked()
            nursery.start_soon(hold_everything, held, *locks)
            await wait_all_tasks_blocked()
            begun = trio.current_time()
            for each in locks:
                for _ in range(10):
                    await hold(each, "other", 0)
            assert trio.current_time() - begun == pytest.approx(HANGS_S)
            assert not held
        assert held == [pytest.approx(1000.0)]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_everything_is_held_although_all_holders_are_slow() -> None:
    async def main() -> None:
        locks, held = NameLocks(), list[float]()

        async def always(name: str) -> None:
            while not held:
                await hold(locks, name, 3 * HANGS_S)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(always, name)
                await trio.sleep(HANGS_S)
            await hold_everything(held, locks)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_wait_for_everything_can_be_cancelled() -> None:
    async def main() -> None:
        first, second = NameLocks(), NameLocks()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, second, "hung", 1000.0)
            await wait_all_tasks_blocked()
            for seconds in (HANGS_S / 2, 3 * HANGS_S):  # while others wait, and while they go on
                begun = trio.current_time()
                with trio.move_on_after(seconds):
                    await hold_everything([], first, second)
                assert trio.current_time() - begun == pytest.approx(seconds)
                await hold(first, "other", 0)
                await hold(second, "other", 0)
                assert trio.current_time() - begun == pytest.approx(seconds)

    trio.run(main, clock=MockClock(autojump_threshold=0))
