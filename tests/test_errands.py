"""Errands: one that hangs is not waited for, keeps no other waiting, and is not begun twice."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from krappy.waiting import Errands


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0.0)


@trio_test
async def test_one_that_hangs_goes_on_while_others_are_done(clock: MockClock) -> None:
    late: list[str] = []
    done: list[str] = []
    disk = trio.Event()

    async def hangs() -> None:
        await disk.wait()
        done.append("hangs")

    async def works() -> None:
        done.append("works")

    async with trio.open_nursery() as nursery:
        errands: Errands[str] = Errands(nursery, 1.0, late.append)
        assert not await errands.run({"a": hangs, "b": works})
        assert done == ["works"]
        assert "a" in errands
        assert len(errands) == 1
        assert "b" not in errands
        began = trio.current_time()
        assert not await errands.run({"a": works, "c": works}), "the work for `a` that is under way is not done"
        assert not await errands.run({"a": works})
        assert trio.current_time() == began, "what is under way is not waited for again"
        assert done == ["works", "works"]
        assert late == []
        disk.set()
        await wait_all_tasks_blocked()
        assert (late, done) == (["a"], ["works", "works", "hangs"])
        assert await errands.run({"a": works})
        assert await errands.run({})
        assert late == ["a"]


@trio_test
async def test_who_is_cancelled_leaves_the_work_to_itself(clock: MockClock) -> None:
    late: list[int] = []
    async with trio.open_nursery() as nursery:
        errands: Errands[int] = Errands(nursery, 5.0, late.append)
        with trio.move_on_after(1.0) as cancelled:
            await errands.run({1: lambda: trio.sleep(2.0)})
        assert cancelled.cancelled_caught
        assert 1 in errands
        await trio.sleep(1.5)
        assert 1 not in errands
        assert late == [1]


@trio_test
async def test_an_error_ends_the_nursery() -> None:
    async def fails() -> None:
        raise ValueError

    with pytest.raises(ExceptionGroup):
        async with trio.open_nursery() as nursery:
            await Errands[int](nursery, 5.0, lambda _: None).run({1: fails})
