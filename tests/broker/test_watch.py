"""Watches of a table on a broker without a server: what they tell, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from krappy.broker.table import PROGRESS
from tests.broker.engine import publish, running


def test_progress_is_told_late_when_another_partition_kept_the_watch_busy(tmp_path: Path) -> None:
    clock = MockClock()
    trio.run(_watched, tmp_path, clock, clock=clock)


async def _watched(data: Path, clock: MockClock) -> None:
    told: dict[int, int] = {}
    both = trio.Event()
    rooms = 0

    async def room() -> None:
        nonlocal rooms
        rooms += 1
        if rooms == 2:  # whoever reads takes its time, and what is due for the first partition is overdue
            clock.jump(2 * PROGRESS)

    async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
        assert (event, items) == ("changes", [])
        told[partition] = next_offset
        if len(told) == 2:
            both.set()

    async with running(data) as broker:
        await broker.create_topic("t", 2, {})
        partitions = broker.topic("t").partitions
        for partition in partitions:
            await publish(partition, 1, [b"other"])
        watch = broker.watch([*partitions], b"wanted", None, None, tombstones=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run, {0: 0, 1: 0}, emit, room)
            await both.wait()
            watch.close()
    assert told == {0: 1, 1: 1}
