"""DeleteRecords as the broker does it: the log's start, the disk, the view, and what a restart finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from krappy.broker.broker import LocalBroker
from krappy.broker.partition import partition as partitions
from krappy.broker.partition.partition import Partition
from krappy.entries.entry import entry_offset
from krappy.errors import OffsetOutOfRange, PolicyViolation, TransactionPending, UnknownTopic
from krappy.ports import TransactionalSender
from krappy.records import batch
from krappy.settings.topic import TopicConfig
from krappy.types import Span, TopicPartition
from tests.broker.engine import as_killed, publish, read_all, running

SMALL = {"segment.bytes": 200}
KEYS = [b"k%d" % number for number in range(10)]
MOVER = TransactionalSender("mover", False)


async def made(broker: LocalBroker, **config: object) -> Partition:
    topic, _ = await broker.create_topic("t", 1, {name.replace("_", "."): value for name, value in config.items()})
    return topic.led(0)


async def offsets(partition: Partition) -> list[int]:
    """The offsets that may be read. A read returns the whole first batch, so those below the start are left out."""
    return [event.offset for event in await read_all(partition) if event.offset >= partition.start_offset]


async def live(partition: Partition) -> dict[bytes, int]:
    await partition.view_wait(None, 30)
    found = {key: partition.look_up(key) for key in KEYS}
    return {key: entry_offset(entry) for key, entry in found.items() if entry is not None}


def transactional(producer: int, epoch: int, sequence: int) -> bytes:
    """One event of a transaction."""
    return batch.encode(
        [b"k0"],
        [b"v"],
        timestamps=1_000,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


async def begin(broker: LocalBroker, partition: Partition) -> Callable[[], Awaitable[object]]:
    """Writes one event of a transaction and leaves it open; returns what commits the transaction."""
    coordinator = broker.transactions
    producer, epoch = await coordinator.init_producer("mover", 60_000)
    await coordinator.add_partitions("mover", producer, epoch, [TopicPartition("t", 0)])
    await partition.publish(transactional(producer, epoch, 0), sender=MOVER).wait()
    return partial(coordinator.end, "mover", producer, epoch, commit=True)


@trio_test
async def test_the_start_moves_into_a_segment_and_stays_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker, **SMALL)
        for _ in range(5):
            await publish(partition, 10, KEYS)
        before = partition.log.size
        assert await partition.delete_records(25) == 25
        assert partition.start_offset == 25
        assert partition.log.size < before  # whole segments are gone
        assert await partition.delete_records(12) == 25  # it never goes back
        with pytest.raises(OffsetOutOfRange):
            await partition.read(24, 1000)
        assert await offsets(partition) == list(range(25, 50))
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        assert (partition.start_offset, partition.high_watermark) == (25, 50)
        assert await offsets(partition) == list(range(25, 50))


@pytest.mark.parametrize("before", [-1, 30])
@trio_test
async def test_everything_goes_and_the_offsets_go_on(tmp_path: Path, before: int) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        for _ in range(3):
            await publish(partition, 10, KEYS)
        assert await partition.delete_records(before) == 30
        assert (partition.log.size, await offsets(partition), await live(partition)) == (0, [], {})
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        assert (partition.start_offset, partition.high_watermark) == (30, 30)
        assert await publish(partition, 1, [b"k1"]) == 30
        assert await live(partition) == {b"k1": 30}


@trio_test
async def test_the_table_loses_what_the_log_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 10, KEYS)
        assert await partition.delete_records(7) == 7
        assert await live(partition) == {b"k7": 7, b"k8": 8, b"k9": 9}


@trio_test
async def test_with_compaction_beside_deletion_the_table_outlives_its_events(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker, cleanup_policy="compact,delete")
        await publish(partition, 10, KEYS)
        assert await partition.delete_records(-1) == 10
    async with running(tmp_path) as broker:
        assert await live(broker.topic("t").led(0)) == {key: at for at, key in enumerate(KEYS)}


@trio_test
async def test_a_compacted_topic_refuses(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker, cleanup_policy="compact")
        await publish(partition, 10, KEYS)
        with pytest.raises(PolicyViolation, match="compact"):
            await partition.delete_records(5)
        assert await offsets(partition) == list(range(10))


@pytest.mark.parametrize("before", [11, 2**62, -2])
@trio_test
async def test_beyond_the_high_watermark_nothing_is_deleted(tmp_path: Path, before: int) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 10, KEYS)
        with pytest.raises(OffsetOutOfRange, match="high watermark, 10") as caught:
            await partition.delete_records(before)
        assert caught.value.details == {"start": 0, "end": 10}
        assert partition.start_offset == 0


@trio_test
async def test_beside_publishes_and_folding(tmp_path: Path) -> None:
    """The start moves while events come and are folded: nothing above it is lost, and the view stays whole."""
    async with running(tmp_path) as broker:
        partition = await made(broker, **SMALL)

        async def write() -> None:
            for _ in range(60):
                await publish(partition, 10, KEYS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while partition.high_watermark < 600:
                start = await partition.delete_records(-1)
                assert start <= partition.high_watermark
                await trio.lowlevel.checkpoint()
        start = partition.start_offset
        assert await offsets(partition) == list(range(start, 600))
        assert await live(partition) == {key: at for at, key in enumerate(KEYS, 590) if at >= start}
        assert partition.applier.failed is None


@trio_test
async def test_a_deleted_topic_has_nothing_to_delete(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 10, KEYS)
        await broker.delete_topic("t")
        with pytest.raises(UnknownTopic):
            await partition.delete_records(-1)


@trio_test
async def test_the_start_moves_under_a_view_that_is_folded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start moves just after the applier has asked for a batch, and before it gets it."""
    async with running(tmp_path) as broker:
        partition = await made(broker, **SMALL)
        for _ in range(5):
            await publish(partition, 10, KEYS)
        await partition.configure(TopicConfig(view=False))
        log, read, moves = partition.log, partition.log.read_span, [25]

        def slow_read(offset: int, max_bytes: int, *, nowait: bool = False, **more: Any) -> Span:
            if nowait:
                raise BlockingIOError
            if moves:
                log.delete_before(moves.pop())
            return read(offset, max_bytes, **more)

        monkeypatch.setattr(log, "read_span", slow_read)
        await partition.configure(TopicConfig())
        assert await live(partition) == {key: at for at, key in enumerate(KEYS, 40)}
        assert not moves
        assert (partition.start_offset, partition.applied) == (25, 50)


@trio_test
async def test_an_open_transaction_holds_up_no_deletion(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 10, KEYS)
        coordinator = broker.transactions
        producer, epoch = await coordinator.init_producer("mover", 60_000)
        await coordinator.add_partitions("mover", producer, epoch, [TopicPartition("t", 0)])
        data = batch.encode(
            KEYS,
            KEYS,
            timestamps=1_000,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        await partition.publish(data, sender=MOVER).wait()
        assert (partition.last_stable_offset, partition.high_watermark) == (10, 20)
        with trio.fail_after(30):
            assert await partition.delete_records(15) == 15
            assert await live(partition) == {}
            assert await partition.delete_records(-1) == 20
        await coordinator.end("mover", producer, epoch, commit=True)
        await publish(partition, 1, [b"k1"])
        assert partition.last_stable_offset == partition.high_watermark == 22
        assert await live(partition) == {b"k1": 21}


@pytest.mark.parametrize("raw", [False, True])
@trio_test
async def test_nothing_aborted_is_read_where_the_start_moves_under_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    """A slow reader holds aborted events below the new start; the next transaction makes the broker forget that they
    were aborted."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        coordinator = broker.transactions
        producer, epoch = await coordinator.init_producer("mover", 60_000)

        async def transact(sequence: int, commit: bool) -> None:
            await coordinator.add_partitions("mover", producer, epoch, [TopicPartition("t", 0)])
            await partition.publish(transactional(producer, epoch, sequence), sender=MOVER).wait()
            await coordinator.end("mover", producer, epoch, commit)

        await transact(0, commit=False)
        read, slow = partition.log.read_span, [True]

        def read_slowly(offset: int, max_bytes: int, *, nowait: bool = False, **more: Any) -> Span:
            if nowait:
                raise BlockingIOError
            span = read(offset, max_bytes, **more)
            if slow:
                slow.pop()
                trio.from_thread.run(partition.delete_records, -1)
                trio.from_thread.run(transact, 1, True)
            return span

        assert await partition.view_wait(None, 60)
        monkeypatch.setattr(partition.log, "read_span", read_slowly)
        with pytest.raises(OffsetOutOfRange):
            await (partition.fetch(0, 1000, 2) if raw else partition.read(0, 1000))


@trio_test
async def test_what_is_deleted_before_it_is_decided_is_in_no_table(tmp_path: Path) -> None:
    """Even though the event waits in memory to be folded: after a restart it would not be there, so the table would
    differ."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await begin(broker, partition)
        for _ in range(3):
            await publish(partition, 1, [b"k1"])
        await partition.delete_records(2)
        await partition.delete_records(4)
        assert await live(partition) == {}


@trio_test
async def test_a_table_that_outlives_its_events_shows_nothing_that_was_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind an open transaction is not in the table yet: without it an older value would stay there, and
    be what the next condition is decided by. A kill must leave the table as it is."""
    killed = tmp_path / "killed"
    async with running(tmp_path / "data") as broker:
        partition = await made(broker, cleanup_policy="compact,delete")
        await publish(partition, 2, [b"k1", b"k2"])
        end = await begin(broker, partition)
        await publish(partition, 1, [b"k1"])
        with monkeypatch.context() as patch:
            patch.setattr(partitions, "PATIENCE_S", 0.01)
            with pytest.raises(TransactionPending):
                await partition.delete_records(-1)
        assert (partition.start_offset, await live(partition)) == (0, {b"k1": 0, b"k2": 1})
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partition.delete_records, 4)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await end()
        assert partition.start_offset == 4
        table = await live(partition)
        assert table == {b"k0": 2, b"k1": 3, b"k2": 1}
        as_killed(tmp_path / "data", killed)
    async with running(killed) as broker:
        assert await live(broker.topic("t").led(0)) == table


@trio_test
async def test_the_start_moves_into_a_batch_beside_an_open_transaction(tmp_path: Path) -> None:
    """The rest of that batch is not decided, so it waits; and others go on publishing."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        coordinator = broker.transactions
        producer, epoch = await coordinator.init_producer("mover", 60_000)
        await coordinator.add_partitions("mover", producer, epoch, [TopicPartition("t", 0)])
        await partition.publish(transactional(producer, epoch, 0), sender=MOVER).wait()
        first = await publish(partition, 10, KEYS)
        await partition.delete_records(first + 5)
        for _ in range(5):
            await partition.applier.caught_up()
            assert partition.applied <= partition.last_stable_offset == first + 5
            await publish(partition, 1, [b"later"])
        await coordinator.end("mover", producer, epoch, commit=True)
        assert await partition.view_wait(None, 60)
        assert partition.last_stable_offset == partition.high_watermark
        assert {key: entry_offset(entry) for key in KEYS if (entry := partition.look_up(key)) is not None} == {
            key: first + number for number, key in enumerate(KEYS) if number >= 5
        }
