"""Transactions as the broker does them: what its readers and its view see, and what a restart finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.core.transactions import TxnStage
from krappy.entries.entry import entry_offset
from krappy.errors import (
    InvalidTransaction,
    InvalidTransactionTimeout,
    OffsetMismatch,
    ProducerFenced,
    TransactionFenced,
    TransactionPending,
    UnknownProducer,
    UnknownProducerMapping,
)
from krappy.ports import GroupMember, Position
from krappy.records import batch
from krappy.store.meta import Meta
from krappy.store.transactions import TransactionStore
from krappy.store.views import Views
from krappy.types import ABSENT, TopicPartition
from tests.broker.engine import events, publish, running, until
from tests.broker.transactional import AT, Producer, made, value, values


@trio_test
async def test_events_appear_all_at_once_when_their_transaction_commits(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 1, [b"before"])
        producer = await Producer(broker, "p").init()
        assert await producer.write((b"a", b"1"), (b"b", b"1")) == 1
        await publish(partition, 1, [b"beside"])
        await producer.write((b"a", b"2"))
        assert (partition.last_stable_offset, partition.high_watermark) == (1, 5)
        assert await value(partition, b"a") is None
        assert await value(partition, b"beside") is None  # it stands behind undecided events
        assert await values(partition) == [b"0"]
        await producer.end(commit=True)
        assert partition.last_stable_offset == partition.high_watermark == 6
        assert (await value(partition, b"a"), await value(partition, b"b")) == (b"2", b"1")
        assert await value(partition, b"beside") == b"0"
        assert await values(partition) == [b"0", b"1", b"1", b"0", b"2"]


@trio_test
async def test_what_a_transaction_waits_for_of_the_disk(tmp_path: Path) -> None:
    """Three syncs of the catalog, each shared by all who wait at the same time."""
    async with running(tmp_path, durability="fsync") as broker:
        await made(broker)
        producers = [await Producer(broker, f"p{number}").init() for number in range(40)]

        def syncs() -> int:
            return broker.measures.catalog_syncs.count

        async def life(producer: Producer) -> None:
            who = (producer.name, producer.id, producer.epoch)
            await producer.add()
            await broker.transactions.add_group(*who, "g")
            await broker.participant.stage_offsets(*who, GroupMember("g", "", -1, None), {AT: Position(7, -1, "")})
            await producer.end(commit=True)

        before = syncs()
        await life(producers.pop())
        assert syncs() - before == 3
        assert broker.kafka_groups.find("g").offsets["t", 0].offset == 7
        before = syncs()
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(life, producer)
        assert syncs() - before < 2 * len(producers)


@trio_test
async def test_an_aborted_transaction_never_happened(tmp_path: Path) -> None:
    for _ in range(2):  # and not after a restart either
        async with running(tmp_path) as broker:
            if "t" not in broker.topics:
                partition = await made(broker)
                producer = await Producer(broker, "p").init()
                await producer.write((b"a", b"1"))
                await producer.end(commit=True)
                await producer.write((b"a", b"2"), (b"b", None))
                await producer.end(commit=False)
            partition = broker.topic("t").led(0)
            assert partition.last_stable_offset == partition.high_watermark == 5
            assert partition.aborted(0, 5) == [(0, 2)]
            assert partition.aborted(0, 2) == []
            assert await value(partition, b"a") == b"1"
            assert await values(partition) == [b"1"]


@trio_test
async def test_a_batch_goes_only_where_its_transaction_was_announced(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        producer = await Producer(broker, "p").init()
        with pytest.raises(InvalidTransaction):
            await partition.publish(producer.batch([b"a"], [b"1"]), sender=producer.sender).wait()
        producer.sequence = 0
        await producer.add(TopicPartition("t", 7))
        with pytest.raises(InvalidTransaction):
            await partition.publish(producer.batch([b"a"], [b"1"]), sender=producer.sender).wait()
        producer.sequence = 0
        await producer.write((b"a", b"1"))
        await producer.end(commit=True)
        with pytest.raises(InvalidTransaction):
            await partition.publish(producer.batch([b"a"], [b"2"]), sender=producer.sender).wait()
        assert await value(partition, b"a") == b"1"


@trio_test
async def test_a_batch_of_an_ended_transaction_does_not_come_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        producer = await Producer(broker, "p").init()
        await producer.add()
        data = producer.batch([b"a"], [b"1"])
        first = await partition.publish(data, sender=producer.sender).wait()
        again = await partition.publish(data, sender=producer.sender).wait()
        assert (again.offset, again.duplicate) == (first.offset, True)
        await producer.end(commit=True)
        with pytest.raises(UnknownProducer):
            await partition.publish(data, sender=producer.sender).wait()


@trio_test
async def test_a_new_producer_fences_the_one_before_and_aborts_its_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        old = await Producer(broker, "p").init()
        await old.write((b"a", b"old"))
        new = await Producer(broker, "p").init()
        assert new.id == old.id
        assert new.epoch > old.epoch
        with pytest.raises(ProducerFenced):
            await partition.publish(old.batch([b"a"], [b"late"]), sender=old.sender).wait()
        with pytest.raises(TransactionFenced):
            await old.end(commit=True)
        await new.write((b"a", b"new"))
        await new.end(commit=True)
        assert await values(partition) == [b"new"]


@trio_test
async def test_an_abandoned_transaction_is_aborted_when_its_time_is_up(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        producer = await Producer(broker, "p").init(timeout_ms=1000)
        await producer.write((b"a", b"1"))
        await until(lambda: partition.last_stable_offset == 2)
        assert partition.aborted(0, 2) == [(producer.id, 0)]
        with pytest.raises(TransactionFenced):
            await producer.end(commit=True)
        again = await Producer(broker, "p").init()
        await again.write((b"a", b"2"))
        await again.end(commit=True)
        assert await value(partition, b"a") == b"2"


@trio_test
async def test_a_timeout_has_its_bounds(tmp_path: Path) -> None:
    async with running(tmp_path, transaction_max_timeout_ms=1000) as broker:
        for wrong in (0, -1, 1001):
            with pytest.raises(InvalidTransactionTimeout):
                await Producer(broker, "p").init(timeout_ms=wrong)
        with pytest.raises(UnknownProducerMapping):
            await Producer(broker, "nobody").end(commit=True)
        assert broker.transactions.list() == []


@trio_test
async def test_an_open_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        producer = await Producer(broker, "p").init()
        await producer.write((b"a", b"1"))
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
        assert await value(partition, b"a") is None
        producer.broker = broker
        await producer.write((b"a", b"2"))
        await producer.end(commit=True)
        assert await values(partition) == [b"1", b"2"]
        assert await value(partition, b"a") == b"2"


@trio_test
async def test_what_was_decided_is_carried_out_after_a_crash(tmp_path: Path) -> None:
    """The crash comes after the decision and before the markers."""
    async with running(tmp_path) as broker:
        await made(broker)
        for name in ("commits", "aborts"):
            await (await Producer(broker, name).init()).write((name.encode(), b"1"))
    decide(tmp_path, "commits", TxnStage.PREPARE_COMMIT)
    decide(tmp_path, "aborts", TxnStage.PREPARE_ABORT)
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        await until(lambda: partition.last_stable_offset == 4)
        await until(lambda: {each.stage for each in broker.transactions.list()} == COMPLETE)
        assert await values(partition) == [b"1"]
        assert (await value(partition, b"commits"), await value(partition, b"aborts")) == (b"1", None)


COMPLETE = {TxnStage.COMPLETE_ABORT, TxnStage.COMPLETE_COMMIT}


def decide(data: Path, name: str, stage: TxnStage | None) -> None:
    """Puts a transactional id of a stopped broker into this state; None: the broker has lost it."""
    meta = Meta(data / "meta")
    store = TransactionStore(meta)
    if stage is None:
        store.delete(name)
    else:
        store.put(store.load_all()[name]._replace(stage=stage))
    meta.close()


@trio_test
async def test_a_transaction_that_nobody_answers_for_is_aborted_on_start(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        await (await Producer(broker, "p").init()).write((b"a", b"1"))
    decide(tmp_path, "p", None)
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        await until(lambda: partition.last_stable_offset == 2)
        assert await values(partition) == []


@trio_test
async def test_a_view_that_has_what_the_log_has_not_decided_is_folded_anew(tmp_path: Path) -> None:
    """As a loss of power may leave them with durability "os": the marker is lost, but the view has its transaction."""
    async with running(tmp_path) as broker:
        partition = await made(broker)
        producer = await Producer(broker, "p").init()
        await producer.write((b"a", b"1"))
        await producer.end(commit=True)
        assert await value(partition, b"a") == b"1"
        number, log = partition.number, partition.log.folder
    views = Views(tmp_path / "views")
    views.apply(number, {}, 1)  # an apply may end before the marker
    views.close()
    (segment,) = log.glob("*.log")
    first = next(iter(batch.split(segment.read_bytes())))[0]
    os.truncate(segment, first.size)
    for name in ("checkpoint", "checkpoint.copy"):
        (log / name).unlink()  # it was as old as that
    (tmp_path / "reached").unlink()
    reports: list[str] = []
    async with running(tmp_path, lambda event, **_: reports.append(event)) as broker:
        partition = broker.topic("t").led(0)
        assert "view_ahead_of_log" in reports
        await until(lambda: partition.last_stable_offset == 2)  # aborted: the coordinator takes it for completed
        assert await value(partition, b"a") is None


@trio_test
async def test_a_condition_is_never_decided_on_what_a_transaction_may_change(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 2, [b"a", b"b"])
        producer = await Producer(broker, "p").init()
        await producer.write((b"a", b"new"))
        await publish(partition, 1, [b"c"])  # decided, but the view can't have it yet

        async def put(key: bytes, expect: int) -> int:
            data = batch.encode([key], [b"x"], timestamps=1_000)
            return (await partition.publish(data, [(0, expect)]).wait()).offset

        for key, expect in ((b"a", 0), (b"a", 2), (b"c", 3), (b"c", ABSENT)):
            with pytest.raises(TransactionPending):
                await put(key, expect)
        with pytest.raises(OffsetMismatch):
            await put(b"b", 0)
        assert await put(b"b", 1) == 4
        with pytest.raises(TransactionPending):
            await put(b"b", 4)  # it was written behind the open transaction just now
        await producer.end(commit=True)
        with pytest.raises(OffsetMismatch):
            await put(b"a", 0)
        assert await put(b"a", 2) == 6
        assert await put(b"c", 3) == 7
        assert await put(b"b", 4) == 8


@trio_test
async def test_conditions_in_the_same_write_as_a_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        producer = await Producer(broker, "p").init()
        await producer.add()
        inside = partition.publish(producer.batch([b"a"], [b"1"]), sender=producer.sender)
        data = batch.encode([b"a"], [b"x"], timestamps=1_000)
        behind = partition.publish(data, [(0, ABSENT)])  # in the same write: nothing has run in between
        assert (await inside.wait()).offset == 0
        with pytest.raises(TransactionPending):
            await behind.wait()


@trio_test
async def test_history_watch_and_scan_see_what_is_decided(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        await publish(partition, 1, [b"a"])
        producer = await Producer(broker, "p").init()
        seen: list[int] = []
        watch = broker.watch([partition], None, None, None, tombstones=False)

        async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
            seen.extend(entry_offset(entry) for entry in items[1::2])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run, None, emit, trio.lowlevel.checkpoint)
            await until(lambda: seen == [0])
            await producer.write((b"a", b"gone"))
            await producer.end(commit=False)
            await producer.write((b"a", b"kept"))
            assert [entry_offset(e) for e in (await broker.history(partition, b"a", 0, 10, 1 << 20))[0]] == [0]
            scan = broker.scan([partition], None, None, None, tombstones=False)
            assert [entry_offset(entry) for entry in (await scan.page(10, 1 << 20)).items[1::2]] == [0]
            await producer.end(commit=True)
            await until(lambda: seen == [0, 3])
            nursery.cancel_scope.cancel()
        assert [entry_offset(e) for e in (await broker.history(partition, b"a", 0, 10, 1 << 20))[0]] == [0, 3]


@trio_test
async def test_a_shared_group_gets_what_is_decided(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(broker)
        member = await broker.groups.join("g", "c", ["t"])
        producer = await Producer(broker, "p").init()
        await publish(partition, 1, [b"x"])
        await producer.write((b"a", b"gone"))
        assert [got.offset for got in events(await member.poll(10, 1 << 20))] == [0]
        await producer.end(commit=False)
        await producer.write((b"a", b"kept"))
        assert events(await member.poll(10, 1 << 20)) == []
        await producer.end(commit=True)
        assert [(got.offset, got.value) for got in events(await member.poll(10, 1 << 20))] == [(3, b"kept")]
        member.ack([("t", 0, 0, 0), ("t", 0, 3, 3)])
        assert broker.groups.describe("g")["partitions"][0]["lag"] == 0


@trio_test
async def test_an_idle_transactional_id_is_forgotten_and_an_open_one_is_not(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        await (await Producer(broker, "idle").init()).write((b"a", b"1"))
        await Producer(broker, "idle").init()
        await (await Producer(broker, "open").init()).write((b"a", b"1"))
        now = broker.clock.steady_ms()
        assert await broker.transactions.expire(now) == 0
        broker.clock.steady_ms = lambda: now + 8 * 86_400_000  # type: ignore[method-assign]
        await broker.transactions.expire(broker.clock.steady_ms())
        assert [each.name for each in broker.transactions.list()] == ["open"]


@trio_test
async def test_a_topic_may_be_deleted_under_a_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await made(broker)
        await broker.create_topic("other", 1, {})
        other = broker.topic("other").led(0)
        producer = await Producer(broker, "p").init()
        await producer.write((b"a", b"1"))
        await producer.write((b"b", b"2"), at=TopicPartition("other", 0))
        await broker.delete_topic("t")
        await producer.end(commit=True)
        assert await value(other, b"b") == b"2"


@trio_test
async def test_the_cleaner_takes_aborted_events_and_leaves_open_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        partition = await made(
            broker, cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0
        )
        producer = await Producer(broker, "p").init()
        for number in range(6):
            commit = number % 2 == 0
            await producer.write((b"a", b"%d" % number), (b"b" if commit else b"only aborted", b"x"))
            await producer.end(commit)
        await producer.write((b"a", b"open"), (b"only aborted", b"open"))
        stable = partition.last_stable_offset
        for _ in range(10):
            await publish(partition, 1, [b"b"])
        aborted = b"only aborted\x02x"  # key, length of the value, value

        def on_disk() -> bytes:
            return b"".join(file.read_bytes() for file in sorted((tmp_path / "topics" / "t-0").glob("*.log")))

        assert aborted in on_disk()
        await broker.housekeeper.tend(partition)
        assert partition.log.clean_upto <= stable
        assert partition.log.clean_upto > 0
        left = await values(partition)
        assert left.count(b"4") == 1  # the latest that was committed
        assert b"1" not in left
        assert b"5" not in left
        assert aborted not in on_disk()
        await producer.end(commit=True)
        assert await value(partition, b"a") == b"open"
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        assert not partition.stability.open
        assert await value(partition, b"a") == b"open"
