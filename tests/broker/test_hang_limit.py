"""Calls that hang count no more."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import trio_test

from krappy.broker.hang_limit import MOST_HUNG, HangLimit


async def begin(limit: HangLimit, end: trio.Event, nursery: trio.Nursery, count: int) -> int:
    """Begins so many calls, which last until `end`. Gives how many of all calls are under way."""

    async def call(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        async with limit.limiter:
            await end.wait()

    for _ in range(count):
        await nursery.start(call)
    await trio.testing.wait_all_tasks_blocked()
    return limit.limiter.borrowed_tokens


@trio_test
async def test_those_that_hang_leave_room_for_others() -> None:
    limit, ends = HangLimit(2), [trio.Event() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        start = partial(begin, limit, nursery=nursery)
        assert await start(ends[0], count=3) == 2
        limit.look()
        assert await start(ends[1], count=2) == 2, "they may be done soon"
        limit.look()
        assert await start(ends[2], count=0) == 4
        ends[0].set()
        assert await start(ends[2], count=2) == 4, "some of those that hung have ended: now others have their places"
        limit.look()
        limit.most = 1
        limit.set_limit()
        for end in ends:
            end.set()
    limit.look()
    assert limit.limiter.total_tokens == 1


@trio_test
async def test_their_number_is_bounded() -> None:
    limit, end = HangLimit(2), trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(MOST_HUNG):
            await begin(limit, end, nursery, 2)
            limit.look()
        assert await begin(limit, end, nursery, 2) == 2 + MOST_HUNG
        end.set()
