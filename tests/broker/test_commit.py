"""Group commit where the disk refuses to sync, or takes its time to write."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.broker import sync_threads
from krappy.broker.partition import commit
from krappy.broker.partition.commit import TOGETHER
from krappy.broker.partition.partition import Partition
from krappy.broker.sync_threads import Done, Sync, SyncThreads
from krappy.core.refused_batches import RefusedByPartitions
from krappy.errors import NotLeader, OffsetMismatch, OutOfOrderSequence, StorageError
from krappy.records import batch
from krappy.store import disk
from tests.broker.engine import publish, read_all, running, until
from tests.broker.transactional import Producer, value

HOUR = 3_600_000


def refuse(fd: int) -> None:
    raise OSError(errno.EIO, "the disk is broken")


@pytest.mark.parametrize("size", [1, 400_000], ids=["with its write", "beside the next write"])
@trio_test
async def test_a_retry_of_what_was_never_synced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The original stands in the file and will never be acknowledged: whoever asks again is told so at once."""
    async with running(tmp_path, durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await broker.catalog.skip_producer_ids(8)
        await publish(partition, 1, producer_id=7, producer_epoch=0, base_sequence=0)
        sent = batch.encode(None, [b"x" * size], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=1)
        with monkeypatch.context() as broken:
            broken.setattr(disk, "_datasync", refuse)
            with pytest.raises(StorageError, match="a sync failed"):
                await partition.publish(sent).wait()
        with trio.fail_after(30), pytest.raises(StorageError, match="a sync failed"):
            await partition.publish(sent).wait()
        stored = await partition.publish(
            batch.encode(None, [b"0"], timestamps=1_000, producer_id=7, producer_epoch=0, base_sequence=0)
        ).wait()
        assert stored.offset == 0
        assert stored.duplicate  # what was synced before is known again


@trio_test
async def test_that_a_log_has_failed_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is published from then on is refused for the same reason."""
    told: list[str] = []
    async with running(tmp_path, lambda event, **facts: told.append(event), durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        with monkeypatch.context() as broken:
            broken.setattr(disk, "_datasync", refuse)
            for _ in range(3):
                with pytest.raises(StorageError, match="a sync failed"):
                    await publish(partition, 1)
        assert partition.measures.appends_failed == 3
    assert told.count("log_failed") == 1


@trio_test
async def test_what_follows_a_batch_that_is_not_committed_waits_until_that_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has it, but another leader may take it out of the log. From a producer that the log does not know, any
    sequence is taken."""
    async with running(tmp_path, durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await broker.catalog.skip_producer_ids(8)
        first, second = (
            batch.encode(None, [b"x" * 400_000], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=each)
            for each in range(2)
        )
        may_sync, refused = threading.Event(), RefusedByPartitions(lambda: 1)
        with monkeypatch.context() as slow:
            slow.setattr(disk, "_datasync", lambda fd: may_sync.wait())
            later = partition.publish(first, refused=refused)
            await until(lambda: partition.commit._appended == 1)  # the log has it a little earlier, in a thread
            partition.commit.end(partition.deposed())
            may_sync.set()
            with pytest.raises(NotLeader):
                await later.wait()
            await partition.commit.settled()
        found = refused.find((7, "t", 0), batch.read_header(second), None, trio.current_time())
        assert isinstance(found, NotLeader)
        assert (await partition.publish(second, refused=refused).wait()).offset == 1  # the log has kept the first one


@trio_test
async def test_a_producer_is_not_forgotten_beside_its_own_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was silent for long, and then sends again: what it had sent before is still known."""
    async with running(
        tmp_path, durability="fsync", retention_check_ms=HOUR, producer_id_expiration_ms=10_000
    ) as broker:
        broker.clock._started -= HOUR
        partition = (await broker.create_topic("t", 1, {"retention.ms": -1}))[0].led(0)
        await broker.catalog.skip_producer_ids(8)
        await publish(partition, 1, producer_id=7, producer_epoch=0, base_sequence=0)
        states = partition.log.producers._states
        states[7] = states[7]._replace(seen_ms=0)  # which was long ago
        partition.commit._took = math.inf  # a slow disk, which is written in threads
        begun, go_on, append = threading.Event(), threading.Event(), partition.log.append

        def append_slowly(*given: Any) -> int:
            begun.set()
            assert go_on.wait(60)
            return append(*given)

        monkeypatch.setattr(partition.log, "append", append_slowly)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(publish, partition, 1, producer_id=7, producer_epoch=0, base_sequence=1))
            await until(begun.is_set)
            nursery.start_soon(broker.housekeeper.retain, partition)
            await wait_all_tasks_blocked()
            go_on.set()
        assert await publish(partition, 1, producer_id=7, producer_epoch=0, base_sequence=0) == 0


@trio_test
async def test_what_follows_a_refused_batch_is_refused_in_the_same_drain_too(tmp_path: Path) -> None:
    """A producer that knows of the refusal sends what followed once more, under another id. So the log must not have
    it."""

    def sent(sequence: int, value: bytes) -> bytes:
        return batch.encode([b"k"], [value], timestamps=1, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async with running(tmp_path) as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await broker.catalog.skip_producer_ids(8)
        await partition.publish(sent(0, b"first")).wait()
        taken = partition.publish(sent(1, b"taken"))
        refused = partition.publish(sent(2, b"refused"), [(0, 99)])
        behind = [partition.publish(sent(sequence, b"behind")) for sequence in (3, 4)]
        assert (await taken.wait()).offset == 1
        with pytest.raises(OffsetMismatch):
            await refused.wait()
        for each in behind:
            with pytest.raises(OutOfOrderSequence, match="2 of epoch 0 comes next"):
                await each.wait()
        assert (await partition.publish(sent(2, b"goes on")).wait()).offset == 2
        assert [got.value for got in await read_all(partition)] == [b"first", b"taken", b"goes on"]


@pytest.mark.parametrize("transactional", [False, True])
@trio_test
async def test_a_write_that_a_sync_has_covered_before_it_is_back_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """A batch is written while the sync of the batch before it is about to begin. That sync covers both, and no other
    sync follows. The thread that wrote the batch is slow to come back, and the batch is not committed before that:
    until then nobody knows that it may belong to an open transaction, whose events are neither stable nor in the table.
    """
    async with running(tmp_path, durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        producer = await Producer(broker, "tx").init()
        await producer.add()
        append, sync = partition.log.append, partition.log.sync
        second_is_written, both_are_synced = threading.Event(), threading.Event()

        def append_slowly(*given: Any) -> int:
            offset = append(*given)
            if offset:
                second_is_written.set()
                assert both_are_synced.wait(60)
            return offset

        def sync_both() -> int:
            assert second_is_written.wait(60)
            return sync()

        def take(durable: int, seconds: float) -> None:
            synced(durable, seconds)
            committed.append(partition.high_watermark)
            both_are_synced.set()

        synced, committed = partition.commit._synced, list[int]()
        monkeypatch.setattr(partition.log, "append", append_slowly)
        monkeypatch.setattr(partition.log, "sync", sync_both)
        monkeypatch.setattr(partition.commit, "_synced", take)
        sent = batch.encode([b"k"], [b"x" * 400_000], timestamps=1)
        first = partition.publish(sent)
        await until(lambda: partition.log.end_offset == 1)
        if transactional:
            second = partition.publish(producer.batch([b"k"], [b"y"]), sender=producer.sender)
        else:
            second = partition.publish(sent)
        with trio.fail_after(30):
            assert [(await each.wait()).offset for each in (first, second)] == [0, 1]
        assert committed[0] == 1
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 1 if transactional else 2)
        monkeypatch.undo()
        if transactional:
            assert await value(partition, b"k") == b"x" * 400_000
            await producer.end(commit=True)
            await until(lambda: partition.last_stable_offset == 3)
            assert await value(partition, b"k") == b"y"


class Threads:
    """Short syncs that end when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Sync, Done]] = []

    def begin(self, _: SyncThreads, sync: Sync, done: Done) -> bool:
        self.under_way.append((sync, done))
        return True

    def end(self, error: OSError | None = None) -> None:
        sync, done = self.under_way.pop(0)
        if error is None:
            sync()
        done(error)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    found = Threads()
    monkeypatch.setattr(SyncThreads, "begin", lambda *given: found.begin(*given))
    monkeypatch.setattr(commit, "QUICK", 60.0)  # on a busy machine each sync takes long
    monkeypatch.setattr(commit, "LONG", 60.0)
    monkeypatch.setattr(sync_threads, "LONG", 60.0)
    return found


@asynccontextmanager
async def with_one_event(data: Path) -> AsyncIterator[Partition]:
    """A partition whose first event is on disk: later syncs have nothing to do but that."""
    async with running(data, durability="fsync") as broker:
        partition = (await broker.create_topic("t", 1, {}))[0].led(0)
        await publish(partition, 1)
        yield partition


def sent(value: bytes) -> bytes:
    return batch.encode(None, [value], timestamps=1)


@trio_test
async def test_a_batch_is_acknowledged_when_its_short_sync_has_ended(tmp_path: Path, threads: Threads) -> None:
    async with with_one_event(tmp_path) as partition:
        later = partition.publish(sent(b"first"))
        await until(lambda: bool(threads.under_way))
        await wait_all_tasks_blocked()
        assert partition.log.end_offset == 2
        assert (partition.high_watermark, partition.log.synced_offset, later.done) == (1, 1, False)
        threads.end()
        assert (await later.wait()).offset == 1
        assert (partition.high_watermark, partition.log.synced_offset) == (2, 2)


@trio_test
async def test_small_batches_that_come_during_a_sync_share_the_next_one(tmp_path: Path, threads: Threads) -> None:
    async with with_one_event(tmp_path) as partition:
        first = partition.publish(sent(b"first"))
        await until(lambda: bool(threads.under_way))
        others = [partition.publish(sent(b"%d" % number)) for number in range(20)]
        await wait_all_tasks_blocked()
        assert partition.log.end_offset == 2, "they wait for the sync, and are written then"
        threads.end()
        await first.wait()
        await until(lambda: bool(threads.under_way))
        assert partition.log.end_offset == 22
        assert not any(each.done for each in others)
        threads.end()
        assert [(await each.wait()).offset for each in others] == list(range(2, 22))
        assert not threads.under_way


@trio_test
async def test_a_large_batch_is_written_during_a_short_sync(tmp_path: Path, threads: Threads) -> None:
    async with with_one_event(tmp_path) as partition:
        first, large = partition.publish(sent(b"first")), sent(b"x" * 200_000)
        await until(lambda: bool(threads.under_way))
        second = partition.publish(large)
        await until(lambda: partition.log.end_offset == 3)
        threads.end()
        assert (await first.wait()).offset == 1
        await until(lambda: bool(threads.under_way))
        assert not second.done, "it was written behind the begin of the first sync"
        threads.end()
        assert (await second.wait()).offset == 2


@trio_test
async def test_a_large_batch_takes_the_small_ones_before_it_along(tmp_path: Path, threads: Threads) -> None:
    """They need not wait for the end of the sync any more."""
    async with with_one_event(tmp_path) as partition:
        laters = [partition.publish(sent(b"first"))]
        await until(lambda: bool(threads.under_way))
        laters.append(partition.publish(sent(b"small")))
        await wait_all_tasks_blocked()
        assert partition.log.end_offset == 2
        laters.append(partition.publish(sent(b"x" * 200_000)))
        await until(lambda: partition.log.end_offset == 4)
        while threads.under_way:
            threads.end()
            await wait_all_tasks_blocked()
        assert [(await each.wait()).offset for each in laters] == [1, 2, 3]


@trio_test
async def test_a_short_sync_that_failed_is_not_tried_again(tmp_path: Path, threads: Threads) -> None:
    async with with_one_event(tmp_path) as partition:
        first = partition.publish(sent(b"first"))
        await until(lambda: bool(threads.under_way))
        second = partition.publish(sent(b"second"))
        threads.end(OSError(errno.EIO, "the disk is broken"))
        for each in (first, second, partition.publish(sent(b"third"))):
            with pytest.raises(StorageError, match="a sync failed"):
                await each.wait()
        assert (partition.high_watermark, partition.log.synced_offset) == (1, 1)
        assert not threads.under_way


@trio_test
async def test_a_slow_disk_is_written_in_threads(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, a write may have to wait for the sync of another file."""
    async with with_one_event(tmp_path) as partition:
        partition.commit._took = 61.0
        loop, wrote = threading.get_ident(), written_in(partition, monkeypatch)
        for _ in range(2):  # the first one's sync is quick
            await publish_and_end(partition, threads)
        assert [each == loop for each in wrote] == [False, True]


def written_in(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the thread of each append."""
    wrote, append = list[int](), partition.log.append

    def note(*given: Any) -> int:
        wrote.append(threading.get_ident())
        return append(*given)

    monkeypatch.setattr(partition.log, "append", note)
    return wrote


@trio_test
async def test_a_disk_that_becomes_slow_for_one_partition_is_slow_for_all(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_one_event(tmp_path) as partition:
        assert partition.syncs is not None
        loop, wrote = threading.get_ident(), written_in(partition, monkeypatch)
        await publish_and_end(partition, threads)
        partition.syncs._began[0] = -math.inf  # another partition's sync is under way, for long
        await publish_and_end(partition, threads)
        await until(lambda: partition.log.is_synced)
        large = partition.publish(sent(b"x" * 2 * TOGETHER))
        with trio.fail_after(30):
            await large.wait()  # the end of a short sync writes on the event loop, too
        assert not threads.under_way
        del partition.syncs._began[0]
        partition.syncs._took = 61.0  # and has ended
        await publish_and_end(partition, threads)  # with a quick sync
        await publish_and_end(partition, threads)
        assert [each == loop for each in wrote] == [True, False, False, False, True]


@trio_test
async def test_the_event_loop_does_not_wait_for_who_changes_the_log(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint, say, writes the indexes meanwhile."""
    async with with_one_event(tmp_path) as partition:
        begun, go_on = threading.Event(), threading.Event()

        def change() -> None:
            with partition.log._lock:
                begun.set()
                assert go_on.wait(10), "the event loop was held up"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, change)
            await trio.to_thread.run_sync(begun.wait)
            later = partition.publish(sent(b"some"))
            await wait_all_tasks_blocked()
            go_on.set()
        await later.wait()
        await publish_and_end(partition, threads)  # a sync that begins is held up neither
        later = partition.publish(sent(b"some"))
        await until(lambda: bool(threads.under_way))
        begun.clear()
        go_on.clear()
        partition.publish(sent(b"x" * 200_000))
        await until(lambda: partition.log.end_offset == 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, change)
            await trio.to_thread.run_sync(begun.wait)
            threads.end()
            assert (await later.wait()).offset == 3
            go_on.set()
        await until(lambda: partition.high_watermark == 5)


@trio_test
async def test_where_a_small_batch_is_written_is_decided_when_nobody_else_writes(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_one_event(tmp_path) as partition:
        loop, wrote = threading.get_ident(), written_in(partition, monkeypatch)
        async with partition.writing:
            later = partition.publish(sent(b"some"))
            await wait_all_tasks_blocked()
            await trio.to_thread.run_sync(partition.log.roll)  # so more has to be synced than one file
        await later.wait()
        assert [each == loop for each in wrote] == [False]
        assert not threads.under_way


@trio_test
async def test_without_threads_for_short_syncs_publishes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "QUICK", 60.0)
    monkeypatch.setattr(commit, "LONG", 60.0)
    monkeypatch.setattr(sync_threads, "LONG", 60.0)
    async with with_one_event(tmp_path) as partition:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        for number in range(1, 4):
            with trio.fail_after(30):
                assert (await partition.publish(sent(b"some")).wait()).offset == number
        assert partition.log.synced_offset == 4


async def publish_and_end(partition: Partition, threads: Threads) -> None:
    later = partition.publish(sent(b"some"))
    await until(lambda: later.done or bool(threads.under_way))
    if threads.under_way:
        threads.end()
    await later.wait()


@trio_test
async def test_a_broker_ends_after_its_short_syncs(tmp_path: Path, threads: Threads) -> None:
    async with trio.open_nursery() as nursery:
        async with with_one_event(tmp_path) as partition:
            later = partition.publish(sent(b"first"))
            await until(lambda: bool(threads.under_way))

            async def end_late() -> None:
                await wait_all_tasks_blocked()
                assert partition.log.synced_offset == 1
                threads.end()

            nursery.start_soon(end_late)
        assert (await later.wait()).offset == 1
    async with running(tmp_path) as broker:
        assert len(await read_all(broker.topic("t").led(0))) == 2
