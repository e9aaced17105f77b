"""Compaction beside everything else: however slow it is told to be, it holds up nobody and ends when it must."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.broker.upkeep import cleaning, housekeeping
from krappy.entries.entry import is_tombstone
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.store.cleaner import CleanResult
from krappy.store.log import Log
from tests.broker.engine import publish, read_all, running, until

HOUR = 3_600_000
RATE = "log.cleaner.io.max.bytes.per.second"
NEVER = {"cleaner_backoff_ms": HOUR, "retention_check_ms": HOUR}
Work = Callable[[LocalBroker, Partition], Awaitable[None]]


async def dirty(broker: LocalBroker) -> Partition:
    """A log of some closed segments in which newer events have taken the place of half of the events."""
    config = {"cleanup.policy": "compact,delete", "segment.bytes": 2000, "retention.ms": -1, "retention.bytes": 4000}
    topic, _ = await broker.create_topic("t", 1, config)
    partition = topic.led(0)
    for number in range(40):
        await publish(partition, 10, [b"k%d" % (number % 20), *(b"%d-%d" % (number, n) for n in range(9))])
    assert len(partition.log.segments) > 3
    return partition


async def begin(nursery: trio.Nursery, broker: LocalBroker, partition: Partition) -> None:
    """Returns when its compaction is under way."""
    nursery.start_soon(broker.housekeeper.clean, partition, broker.now_ms())
    while broker.cleaner_limiter.borrowed_tokens == 0:
        await trio.lowlevel.checkpoint()


async def delete_records(broker: LocalBroker, partition: Partition) -> None:
    assert await partition.delete_records(5) == 5


async def expire(broker: LocalBroker, partition: Partition) -> None:
    await broker.housekeeper.retain(partition)
    assert partition.start_offset > 0


async def back_up(broker: LocalBroker, partition: Partition) -> None:
    (await broker.hold_backup()).close()


async def write(broker: LocalBroker, partition: Partition) -> None:
    await publish(partition, 1, [b"new"])
    assert await partition.view_wait(None, 60)


@pytest.mark.parametrize("work", [delete_records, expire, back_up, write])
def test_nobody_waits_for_a_slow_compaction(tmp_path: Path, work: Work) -> None:
    async def main() -> None:
        async with running(tmp_path, cleaner_io_max_bytes_per_second=1, **NEVER) as broker:
            partition = await dirty(broker)
            async with trio.open_nursery() as nursery:
                await begin(nursery, broker, partition)
                with trio.fail_after(60):
                    await work(broker, partition)
                assert partition.log.clean_upto == 0  # it would take an hour and more
                nursery.cancel_scope.cancel()
            assert not list(partition.log.folder.glob("*.cleaned"))
            assert await read_all(partition)

    trio.run(main)


def test_a_deleted_topic_ends_its_compaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, cleaner_io_max_bytes_per_second=1, **NEVER) as broker:
            partition = await dirty(broker)
            async with trio.open_nursery() as nursery:
                await begin(nursery, broker, partition)
                with trio.fail_after(60):
                    await broker.delete_topic("t")
            await until(lambda: not partition.log.folder.exists())

    trio.run(main)


def test_the_limit_may_be_lifted_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, cleaner_io_max_bytes_per_second=1, **NEVER) as broker:
            partition = await dirty(broker)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    await begin(nursery, broker, partition)
                    await broker.dynamic.alter("", {RATE: "0"})
            assert partition.log.clean_upto == partition.log.segments[-1].base_offset

    trio.run(main)


VIEW_OFF = {"cleanup.policy": "delete", "view.enable": "false", "segment.bytes": "2000", "retention.ms": "-1"}


def test_a_view_that_is_turned_off_ends_its_compaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, cleaner_io_max_bytes_per_second=1, **NEVER) as broker:
            partition = await dirty(broker)
            before = await read_all(partition)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    await begin(nursery, broker, partition)
                    await broker.alter_topic("t", VIEW_OFF, None)
            assert await read_all(partition) == before

    trio.run(main)


@pytest.mark.parametrize("again", [False, True], ids=["off", "off and on"])
def test_no_tombstone_goes_because_the_view_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """An empty view knows neither the event that a tombstone deletes nor the tombstone."""

    async def main() -> None:
        async with running(tmp_path, **NEVER) as broker:
            partition = await dirty(broker)
            await partition.publish(batch.encode([b"k1"], [None], timestamps=1_000)).wait()
            for _ in range(20):
                await publish(partition, 10, [b"other%d" % n for n in range(10)])
            before = await read_all(partition)
            get_many, compacting = partition.views.get_many, partition.config

            def dropped(number: int, keys: Sequence[bytes]) -> list[bytes | None]:
                monkeypatch.undo()
                trio.from_thread.run(partition.configure, TopicConfig.parse(VIEW_OFF))
                if again:
                    trio.from_thread.run(partition.configure, compacting)
                return get_many(number, keys)

            monkeypatch.setattr(partition.views, "get_many", dropped)
            await broker.housekeeper.clean(partition, broker.now_ms())
            assert await read_all(partition) == before
            if again:
                await broker.housekeeper.clean(partition, broker.now_ms())
                assert await partition.view_wait(None, 60)
                assert is_tombstone(partition.look_up(b"k1") or b"")

    trio.run(main)


@trio_test
async def test_a_view_that_is_behind_keeps_no_other_log_from_being_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view is reported in each round, and its own log is compacted when it has caught up."""
    monkeypatch.setattr(cleaning, "PATIENCE_S", 0.1)
    told: list[tuple[str, Any]] = []

    def report(event: str, **facts: Any) -> None:
        told.append((event, facts.get("partition")))

    config = {"cleanup.policy": "compact", "segment.bytes": 300, "min.cleanable.dirty.ratio": 0}
    async with running(tmp_path, report, retention_check_ms=3_600_000, cleaner_backoff_ms=3_600_000) as broker:
        partitions = [(await broker.create_topic(name, 1, config))[0].led(0) for name in ("behind", "other")]
        applied = partitions[0].applier._step
        waits = trio.Event()

        async def held_up() -> None:
            await waits.wait()
            await applied()

        monkeypatch.setattr(partitions[0].applier, "_step", held_up)
        for partition in partitions:
            for _ in range(6):
                await publish(partition, 2, [b"a", b"b"])
        await partitions[1].applier.caught_up()  # else the round might not wait long enough for this one either
        with trio.fail_after(60):
            await broker.housekeeper.look(broker.housekeeper.compact)
        assert ("housekeeping_failed", "behind-0") in told
        assert ("log_cleaned", "other-0") in told
        assert ("log_cleaned", "behind-0") not in told
        waits.set()
        await partitions[0].view_wait(None, 60)
        await broker.housekeeper.look(broker.housekeeper.compact)
        assert ("log_cleaned", "behind-0") in told


@trio_test
async def test_a_compaction_whose_disk_hangs_keeps_no_other_log_from_being_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def report(event: str, **facts: Any) -> None:
        if event == "log_cleaned":
            told.append(facts["partition"])

    clean, hangs, goes_on = Log.clean, threading.Event(), threading.Event()

    def clean_or_hang(self: Log, *args: Any) -> CleanResult:
        if self.folder.name == "hung-0":
            hangs.set()
            assert goes_on.wait(60)
        return clean(self, *args)

    monkeypatch.setattr(Log, "clean", clean_or_hang)
    monkeypatch.setattr(housekeeping, "STILL_S", 0.1)
    config = {"cleanup.policy": "compact", "segment.bytes": 300, "min.cleanable.dirty.ratio": 0}
    async with running(tmp_path, report, cleaner_backoff_ms=20) as broker:
        try:
            for name in ("hung", "other"):
                partition = (await broker.create_topic(name, 1, config))[0].led(0)
                for _ in range(6):
                    await publish(partition, 2, [b"a", b"b"])
                if name == "hung":
                    await until(hangs.is_set)
            await until(lambda: "other-0" in told)
            assert "hung-0" not in told
        finally:
            goes_on.set()
        await until(lambda: "hung-0" in told)
