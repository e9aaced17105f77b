"""Watches of a table on a broker without a server: what they tell, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, trio_test

from krappy.broker.tables.table import PART, PROGRESS
from krappy.core.cluster.roles import Role
from krappy.entries.entry import key_of_bin, unpack_entry
from krappy.errors import NotLeader
from krappy.partitioner import partition_for
from krappy.records import batch
from tests.broker.engine import publish, running, until


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
        if rooms == 2:  # the reader takes its time, and the progress of the first partition is overdue
            clock.jump(2 * PROGRESS)

    async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
        assert (event, items) == ("changes", [])
        told[partition] = next_offset
        if len(told) == 2:
            both.set()

    async with running(data) as broker:
        await broker.create_topic("t", 2, {})
        partitions = broker.topic("t").all_led()
        for partition in partitions:
            await publish(partition, 1, [b"other"])
        watch = broker.watch([*partitions], b"wanted", None, None, tombstones=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run, {0: 0, 1: 0}, emit, room)
            await both.wait()
            watch.close()
    assert told == {0: 1, 1: 1}


@trio_test
async def test_what_kept_an_event_from_being_told_may_be_compacted_away_before_it_is_told(tmp_path: Path) -> None:
    """A key stands in two partitions. The watch does not tell the event in one of them, since the other has a newer
    event that the watch will come to. When it gets there, compaction has removed that event for a later one with
    an older timestamp, and so the first event is the newest again."""
    key = next(key for key in (b"k%d" % number for number in range(100)) if partition_for(key, 2) == 1)
    told: dict[bytes, bytes | None] = {}
    live, waits, going = trio.Event(), trio.Event(), trio.Event()
    going.set()

    async def room() -> None:
        nonlocal waits
        waits.set()
        await going.wait()

    async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
        told.update(
            (key_of_bin(key), unpack_entry(entry)[2]) for key, entry in zip(items[::2], items[1::2], strict=True)
        )
        if event == "end_of_snapshot":
            live.set()

    async def write(index: int, value: bytes, timestamp: int) -> None:
        await partitions[index].publish(batch.encode([key], [value], timestamps=timestamp)).wait()
        assert await partitions[index].view_wait(None, 60)

    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": 0, "segment.ms": 1}
    async with running(tmp_path) as broker:
        await broker.create_topic("t", 2, config)
        partitions = broker.topic("t").all_led()
        await write(0, b"first", 1)
        watch = broker.watch([*partitions], None, None, None, tombstones=False, whole=True)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run, None, emit, room)
                await live.wait()
                going, waits = trio.Event(), trio.Event()
                await write(0, b"second", 20)
                await waits.wait()
                await write(1, b"third", 30)
                go, going, waits = going, trio.Event(), trio.Event()
                go.set()
                await waits.wait()  # the watch has passed the second event, and comes to the other partition
                await write(1, b"late", 10)
                await partitions[1].publish(batch.encode([b"other"], [b"v"], timestamps=40)).wait()
                for _ in range(2):
                    await partitions[1].reshape(partitions[1].log.roll)
                    await broker.housekeeper.clean(partitions[1], broker.now_ms() + 10)
                going.set()
                await until(lambda: b"other" in told)
                await until(lambda: told[key] == b"second")
                watch.close()


@trio_test
async def test_batches_that_open_to_very_much_are_told_in_parts(tmp_path: Path) -> None:
    """20 batches of 1 KB that open to 8 MB each were 160 MB in one answer: more than a client takes."""
    told: list[int] = []
    sizes: list[int] = []
    large_one, small_one = [bytes(1_000_000)] * 8, [bytes(40_000)] * 8
    config = {"max.message.bytes": 16 << 20}

    async def room() -> None:
        pass

    async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
        told.extend(unpack_entry(entry)[0] for entry in items[1::2])
        sizes.append(sum(map(len, items)))
        assert next_offset == told[-1] + 1
        if next_offset == 8 * 40:
            watch.close()

    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, config)
        partition = broker.topic("t").led(0)
        for number in range(40):
            values = large_one if number % 2 else small_one
            keys = [b"k%d" % key for key in range(8)]
            await partition.publish(batch.encode(keys, values, timestamps=1, codec=4)).wait()
        watch = broker.watch([partition], None, None, None, tombstones=False)
        with trio.fail_after(60):
            await watch.run({0: 0}, emit, room)
    assert told == list(range(8 * 40))
    assert max(sizes) < PART + 1_100_000


@trio_test
async def test_nothing_follows_on_what_was_not_told_because_the_partition_moved(tmp_path: Path) -> None:
    """Not even if this broker leads it again by then: a watcher goes on from what it was told."""
    offsets: list[int] = []

    async def room() -> None:
        pass

    async def emit(event: str, partition: int, next_offset: int, items: list[bytes], exact: Any = None) -> None:
        led.role = Role.FOLLOWER if offsets else Role.LEADER  # while it waits for its quota
        if watch.stands:
            offsets.append(next_offset)
            await publish(led, 1, [b"k"])
        led.role = Role.LEADER

    async with running(tmp_path) as broker:
        await broker.create_topic("t", 1, {})
        led = broker.topic("t").led(0)
        await publish(led, 1, [b"k"])
        watch = broker.watch([led], None, None, None, tombstones=False)
        with trio.fail_after(30), pytest.raises(NotLeader):
            await watch.run({0: 0}, emit, room)
        assert offsets == [1]
        assert not watch.stands
