"""How publishes to one partition become appends, in the order in which they come.

Rules, kept here and nowhere else:

- One drain at a time. A drain takes the waiting items in order, decides each against the log as it is, and hands the
  accepted ones to the commit. Items that arrive meanwhile wait for the next drain, which takes them together.
- Offsets, sequences and conditions are decided inside a drain, so a failed write has changed nothing.
- In a cluster, a transaction's first batch waits until the coordinator has told that the transaction has this partition
  (verification.py). Only the producer's next batches wait behind it.
- While the view lags behind by more than `MAX_LAG` bytes, a drain waits for it. So producers are slowed, not readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import trio

from krappy.broker.partition import large
from krappy.broker.partition.commit import INLINE
from krappy.broker.partition.conditions import Conditions, Judge
from krappy.broker.partition.pending import Pending, RefusedHere, Singles, record_size
from krappy.broker.partition.strays import StraysMark
from krappy.broker.partition.verification import Verification
from krappy.broker.partition.viewed import Viewed
from krappy.core.admission import MAX_OPENED, Times, admit_header, admit_records, may_be_large
from krappy.core.cluster.roles import Role
from krappy.core.refused_batches import NextBatch, RefusedByPartitions
from krappy.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTransaction,
    KrappyError,
    OffsetMismatch,
    OutOfOrderSequence,
    RecordTooLarge,
    ShuttingDown,
    StorageError,
    TransactionalIdAuthorizationFailed,
)
from krappy.ports import StoredAt, TransactionalSender, TransactionEnd
from krappy.records import batch as batches
from krappy.records.batch import TRANSACTIONAL, BatchHeader
from krappy.store.producers import advance
from krappy.types import Record
from krappy.waiting import Later, Signal, wait_any

MAX_DRAIN = 16 << 20  # bytes that one drain writes, with those of its keys
MAX_GROUP = 1000  # single records that share one batch
MAX_LAG = 8 << 20  # bytes, with those of the keys, that the view may be behind before drains wait for it
STILL_S, LOOK_S = 10.0, 0.01  # seconds that a broker that stood still waits to be told of its topic; between looks


class Appender:
    def __init__(self, partition: Viewed) -> None:
        self._partition = partition
        self._conditions = Conditions(partition)
        self._waiting: list[Pending] = []
        self._running = False
        self._closed: Exception | None = None
        self._ended = Signal()
        self._commit = partition.commit
        self._verification = Verification(partition, self._queue_now)

    def publish(
        self,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None = None,
        *,
        by_header: bool = False,
        taken: bool = False,
        alone: bool = False,
        epoch: int | None = None,
        sender: TransactionalSender | None = None,
        refused: RefusedByPartitions | None = None,
    ) -> Later[StoredAt]:
        """Queues one record batch. Raises at once if the batch itself is invalid. `alone`, `epoch`, `sender`,
        `refused`: see `Partition.publish`."""
        partition = self._partition
        times = None if taken else Times(partition.config, partition.now_ms())
        return self._publish(
            *(data, expect, times), by_header=by_header, alone=alone, epoch=epoch, sender=sender, refused=refused
        )

    def _publish(
        self,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None,
        times: Times | None,
        *,
        by_header: bool = False,
        alone: bool = False,
        epoch: int | None = None,
        sender: TransactionalSender | None = None,
        refused: RefusedByPartitions | None = None,
    ) -> Later[StoredAt]:
        config = self._partition.config
        header = admit_header(data, config)
        if header.is_transactional and sender is None:  # nobody has checked that the sender may use the id
            text = "a batch of a transaction, and the request names no transactional id"
            raise TransactionalIdAuthorizationFailed(text)
        here = None if refused is None else RefusedHere(refused, self._partition.topic, self._partition.index)
        item = Pending(header, data, expect, wants_one=alone, epoch=epoch, sender=sender, refused=here)
        admission = partial(admit_records, header, data, config, times, by_header=by_header)
        try:
            admitted = admission(inline=True)
        except CorruptBatch:
            if not may_be_large(header, len(data)):
                raise
            item.admit_later(admission)
        else:
            item.admit(admitted)
            item.laters[0].cost = item.cost
        self._queue(item)
        return item.laters[0]

    def publish_record(self, record: Record, expect: int | None = None, *, taken: bool = False) -> Later[StoredAt]:
        """Queues one record. It shares a batch with others that arrive at the same time. `taken`: it was accepted
        before, so its timestamp is not checked."""
        config = self._partition.config
        now = self._partition.now_ms()
        times = None
        if record.timestamp is not None and not taken:
            times = Times(config, now)
            times.admit_one(record.timestamp)
        size = record_size(record)
        if expect is not None or size > config.max_message_bytes // 2:
            timestamps = now if record.timestamp is None else record.timestamp
            headers = [record.headers] if record.headers else None
            data = batches.encode([record.key], [record.value], timestamps=timestamps, headers=headers)
            return self._publish(data, None if expect is None else [(0, expect)], times)
        if record.key is None and config.compact:
            raise InvalidRecord("an event without a key; a topic with cleanup.policy=compact needs one")
        last = self._waiting[-1] if self._waiting else None
        if (
            not isinstance(last, Singles)
            or len(last.keys) >= MAX_GROUP
            or last.size + size > config.max_message_bytes - 100
        ):
            last = Singles()
            self._queue(last)
        return last.add(record, now)

    def publish_own(self, header: BatchHeader, data: bytes) -> Later[StoredAt]:
        """Queues a batch of one of the broker's own transactions. The batch was checked when it was staged."""
        if header.size > self._partition.config.max_message_bytes:
            raise RecordTooLarge(
                f"a batch of {header.size} bytes; max.message.bytes is {self._partition.config.max_message_bytes} now"
            )
        return self._publish_own(header, data)

    def publish_marker(self, data: bytes, end_told: TransactionEnd | None = None) -> Later[StoredAt]:
        """Queues a control batch of the broker's own. `end_told`: see `Pending`."""
        return self._publish_own(batches.read_header(data), data, end_told)

    def _publish_own(self, header: BatchHeader, data: bytes, end_told: TransactionEnd | None = None) -> Later[StoredAt]:
        item = Pending(header, data, own=True, end_told=end_told)
        self._queue(item)
        return item.laters[0]

    def _queue(self, item: Pending) -> None:
        if self._closed is not None:
            raise self._closed
        if not (item.header.is_transactional and self._verification.holds(item)):
            self._queue_now(item)

    def _queue_now(self, item: Pending) -> None:
        if self._closed is not None:
            raise self._closed
        self._waiting.append(item)
        if not self._running:
            self._running = True
            self._partition.spawn(self._drain)
        elif item.size > INLINE:
            self._partition.landed.fire()  # for `GroupCommit.ready`: it need not wait any more

    def close(self, error: Exception | None = None) -> None:
        """Refuses new publishes. Waiting ones are still written; `await idle()` waits for that."""
        self._closed = error or ShuttingDown("the broker is shutting down")

    async def _drain(self) -> None:
        items: list[Pending] = []
        try:
            while self._waiting:
                await self._partition.applier.within(MAX_LAG)
                await self._commit.ready(lambda: sum(item.size for item in self._waiting))
                if self._partition.strays.mark is not None and len(self._partition.replicas.isr) == 1:
                    await self._until_there(self._partition.strays.mark)
                items = self._take()
                await self._open(items)
                await self._look_for_strays(items)
                if self._partition.strays.mark is not None:
                    await self._mark_strays(items, self._partition.strays.mark)
                if self._partition.config.codec is not None:
                    await self._recompress(items, self._partition.config.codec)
                epoch = self._partition.epoch
                if any(each.expect for each in items):
                    async with self._conditions.judged(items) as judge:
                        await self._write(items, epoch, judge)
                else:
                    await self._write(items, epoch)
        except BaseException as error:
            refusal = error if isinstance(error, KrappyError) else StorageError(f"{self._partition}: {error!r}")
            for item in items + self._waiting:
                item.reject(refusal)
            self._waiting.clear()
            if not isinstance(error, KrappyError):
                raise
        finally:
            self._running = False
            self._ended.fire()

    async def _until_there(self, mark: StraysMark) -> None:
        """For a leader that is the only replica in sync, and stood still: waits until this broker knows that the topic
        still exists. Raises why it does not lead any more, or why the topic is gone; NotLeader if it takes too long."""
        partition, end = self._partition, trio.current_time() + STILL_S
        while not mark.is_there:
            if self._closed is not None:
                raise self._closed
            if partition.role is not Role.LEADER or mark.is_there is False:
                raise partition.deposed()
            if trio.current_time() > end:
                raise partition.unsure()
            await trio.sleep(LOOK_S)

    async def _open(self, items: list[Pending]) -> None:
        """Checks the records of a batch that is too large to be decoded on the event loop. Such a batch is the first of
        its drain, so that earlier items need not wait."""
        admission = items[0].admission
        if admission is None:
            return
        conditional = any(each.expect for each in items)
        try:
            items[0].admit(await large.opened(partial(admission, keep=conditional), items[0].owner))
        except KrappyError as error:
            items.pop(0).reject(error)

    async def _look_for_strays(self, items: list[Pending]) -> None:
        """Looks for strays among the keys that will be checked when they become readable: then the answer must be known
        at once."""
        partition = self._partition
        strays = partition.strays
        view = strays.views.get(partition.index)
        if view is None or not view.checks:
            return
        with suppress(ShuttingDown), view.until_closing():
            for item in items:
                if item.held_keys is not None and not item.header.is_control:
                    await item.has_elsewhere(strays.count, partition.index)

    async def _mark_strays(self, items: list[Pending], mark: StraysMark) -> None:
        """In a cluster: before the first stray is written, all brokers must know that there may be some. This is so
        even while the topic has no view, since it may be turned on. If it can't be made known, strays are rejected and
        removed from `items`."""
        strays, index = self._partition.strays, self._partition.index
        if strays.count <= 1 or mark.is_known:
            return
        found: list[Pending] = []
        with self._partition.applier.strays.until_closing():
            for item in items:
                if not item.header.is_control and await item.has_elsewhere(strays.count, index):
                    found.append(item)
        if not found and not mark.is_new:
            return
        try:
            await mark.make_known()
        except KrappyError as error:
            for item in found:
                item.reject(error)
                items.remove(item)

    async def _write(self, items: list[Pending], epoch: int, judge: Judge | None = None) -> None:
        """`epoch`: the leader epoch before the judge was made. In another leader epoch the judge's view may lack what
        is committed."""
        partition = self._partition
        if partition.role is not Role.LEADER or partition.epoch != epoch:
            for item in items:
                item.reject(partition.deposed())
            return
        refused: list[tuple[Pending, KrappyError]] = []
        accepted = self._decide(items, judge, refused)
        if accepted:
            await self._commit.write(accepted, epoch, refused)
        else:
            for item, error in refused:
                item.reject(error)

    async def idle(self) -> None:
        """Returns when no publish waits or is being written."""
        await wait_any([self._ended], lambda: not self._running)
        await self._commit.on_disk()

    def _take(self) -> list[Pending]:
        """The items of the next drain, in order and at most about `MAX_DRAIN` bytes. A producer's second batch is taken
        only if its sequence follows the first."""
        total, count = 0, 0
        last_sequence: dict[int, tuple[int, int]] = {}
        for item in self._waiting:
            if item.admission is not None and count:
                break
            header = item.header
            if header.producer_id >= 0 and not header.is_control:
                before = last_sequence.get(header.producer_id)
                if before is not None and before != (header.producer_epoch, header.base_sequence):
                    break
                last_sequence[header.producer_id] = _following(header)
            total += max(item.size, item.work)
            if count and total > MAX_DRAIN:
                break
            count += 1
        items = self._waiting[:count]
        del self._waiting[:count]
        return items

    async def _recompress(self, items: list[Pending], codec: int) -> None:
        """Recompresses the batches by the topic's compression.type. Batches that are then too much for one drain wait
        for the next. Producer ids, epochs, sequences and the records' bytes stay the same.
        """
        partition, config = self._partition, self._partition.config
        limit = max(MAX_OPENED, config.max_message_bytes)
        changing = sum(each.size for each in items if each.needs(codec))
        refused: list[tuple[Pending, KrappyError]] = []

        def change() -> int:
            """Recompresses items until they fill one drain. Gives how many items that are."""
            total = 0
            for index, item in enumerate(items):
                if total > MAX_DRAIN:
                    return index
                if item.needs(codec):
                    try:
                        item.recompress(codec, limit, config.max_message_bytes)
                    except KrappyError as error:
                        refused.append((item, error))
                total += item.size
            return len(items)

        if owners := [each.owner for each in items if each.large]:
            count = await large.opened(change, owners[0])
        elif changing > INLINE:
            count = await trio.to_thread.run_sync(change, limiter=partition.disk_limiter)
        else:
            count = change()
        self._waiting[:0] = items[count:]
        del items[count:]
        for item, error in refused:
            item.reject(error)
            items.remove(item)

    def _decide(
        self, items: list[Pending], judge: Judge | None, refused: list[tuple[Pending, KrappyError]]
    ) -> list[Pending]:
        """The items to append, each with its offset. The others are rejected, or are retries of what the log has, or go
        to `refused`: their conditions do not hold, which may be because of items that are appended here."""
        partition = self._partition
        config = partition.config
        offset = partition.log.end_offset
        accepted: list[Pending] = []
        follows: dict[int, NextBatch] = {}  # by producer id: the batch that comes next, after what was accepted here
        self._verification.begin()
        for item in items:
            try:
                if item.epoch is not None and item.epoch != partition.epoch:
                    raise partition.deposed()
                item.make(config.codec or 0)
                # This comes before the sequence is checked. Otherwise only the first of a producer's batches would be
                # refused for too few replicas, and the next ones for a gap.
                if not item.alone:
                    partition.replicas.check_enough(partition)
                if self._is_retry(item, follows):
                    continue
                if judge is not None:
                    judge.check(item, offset)
                if config.log_append_time and not item.header.is_control:
                    item.stamp(partition.now_ms())
            except OffsetMismatch as error:
                # Without a read lease the view may be stale: there may be another leader by now.
                told = error if partition.is_sure else partition.unsure()
                item.note_refusal(told)
                refused.append((item, told))
                continue
            except KrappyError as error:
                item.reject(error)
                continue
            except Exception as error:  # a bug of ours, which must not fail the other publishes
                partition.report("internal_error", task=f"a publish to {partition}", exc_info=True)
                item.reject(StorageError(f"{partition}: {error!r}"))
                continue
            header = item.header
            if header.is_transactional:
                self._verification.accepted(item)
            if header.producer_id >= 0 and header.base_sequence >= 0:
                follows[header.producer_id] = _following(header)
            if judge is not None:
                judge.accepted(item, offset)
            item.offset = offset
            offset += header.count
            accepted.append(item)
        return accepted

    def _is_retry(self, item: Pending, follows: dict[int, NextBatch]) -> bool:
        """Whether the log has the batch already. If so, its publish is answered here. Raises why the producer may not
        write it now."""
        partition, header = self._partition, item.header
        if header.producer_id >= 0:
            known = item.own or header.is_transactional is self._verification.is_transactional(header.producer_id)
            if not item.own:
                partition.check_producer(header, item.sender)
                if not (known or header.is_transactional):
                    raise InvalidTransaction(f"producer {header.producer_id} writes to {partition} in transactions")
            # If not known, what the log has of this id is from a producer that writes outside of transactions. It does
            # not concern a transaction.
            following = follows.get(header.producer_id) if known else None
            if item.refused is not None and item.refused.batches:
                of_log = partition.log.producers.following(header.producer_id) if known else None
                item.check_refused(following or of_log)
            if following is None:
                original = partition.log.producers.check(header, from_zero=item.own) if known else None
                if original is not None:
                    self._commit.answer_again(original, header, item.laters[0], alone=item.alone)
                    return True
            elif not header.is_control and (header.producer_epoch, header.base_sequence) != following:
                raise OutOfOrderSequence(  # a batch in between was refused just now
                    f"producer {header.producer_id} sent sequence {header.base_sequence} of epoch "
                    f"{header.producer_epoch}; {following.sequence} of epoch {following.epoch} comes next",
                    expected=following.sequence,
                )
        if header.attributes & TRANSACTIONAL:
            self._verification.check(item)
            if not item.own:
                partition.check_transactional(header)
        return False


def _following(header: BatchHeader) -> NextBatch:
    """The batch that its producer sends after this one."""
    return NextBatch(header.producer_epoch, advance(header.base_sequence, header.count))
