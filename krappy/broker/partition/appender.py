"""How publishes to one partition become appends, in the order in which they come.

Rules, kept here and nowhere else:

- One drain at a time. A drain takes the waiting items in order, decides each against the log as it is, and hands the
  accepted ones to the commit. Items that arrive meanwhile wait for the next drain, which takes them together.
- Offsets, sequences and conditions are decided inside a drain, so a failed write has changed nothing.
- While the view lags behind by more than `MAX_LAG` bytes, a drain waits for it. So producers are slowed, not readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from krappy.broker.partition import large
from krappy.broker.partition.commit import INLINE
from krappy.broker.partition.conditions import Conditions
from krappy.broker.partition.elsewhere import Elsewhere
from krappy.broker.partition.queued import (
    Accepted,
    Loose,
    Publish,
    demanded,
    record_size,
)
from krappy.broker.partition.undecided import UNDECIDED
from krappy.broker.partition.viewed import Viewed
from krappy.core.admission import MAX_OPENED, Times, admit_header, admit_records, may_be_large
from krappy.errors import (
    CorruptBatch,
    InvalidRecord,
    KrappyError,
    OutOfOrderSequence,
    RecordTooLarge,
    ShuttingDown,
    StorageError,
)
from krappy.ports import StoredAt
from krappy.records import batch as batches
from krappy.records.batch import TRANSACTIONAL, BatchHeader, Columns
from krappy.store.producers import advance
from krappy.types import ABSENT, Record
from krappy.waiting import Later, Signal, wait_any

MAX_DRAIN = 16 << 20  # bytes written by one drain
MAX_GROUP = 1000  # single records that share one batch
MAX_LAG = 8 << 20  # bytes that the view may be behind before drains wait for it


class Appender:
    def __init__(self, partition: Viewed) -> None:
        self._partition = partition
        self._conditions = Conditions(partition)
        self._waiting: list[Publish | Loose] = []
        self._running = False
        self._closed: Exception | None = None
        self._ended = Signal()
        self._commit = partition.commit

    def publish(
        self,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None = None,
        *,
        by_header: bool = False,
        taken: bool = False,
    ) -> Later[StoredAt]:
        """Queues one record batch. Raises at once if the batch itself is invalid."""
        partition = self._partition
        times = None if taken else Times(partition.config, partition.now_ms())
        return self._publish(data, expect, times, by_header=by_header)

    def _publish(
        self,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None,
        times: Times | None,
        *,
        by_header: bool = False,
    ) -> Later[StoredAt]:
        config = self._partition.config
        header = admit_header(data, config)
        admission = partial(admit_records, header, data, config, times, by_header=by_header)
        later: Later[StoredAt]
        try:
            admitted = admission(inline=True)
        except CorruptBatch:
            if not may_be_large(header, len(data)):
                raise
            later = Later()
            self._queue(Publish(header, data, None, expect, later, admission=admission))
            return later
        expect = demanded(admitted, expect)
        later = Later(admitted.cost)
        self._queue(Publish(admitted.header, admitted.data, admitted.columns, expect, later, cost=admitted.cost))
        return later

    def publish_record(self, record: Record, expect: int | None = None, *, taken: bool = False) -> Later[StoredAt]:
        """Queues one record. It shares a batch with others that arrive at the same time. `taken`: it was accepted once
        before, so that its timestamp is not checked."""
        config = self._partition.config
        now = self._partition.now_ms()
        times = None
        if record.timestamp is not None and not taken:
            times = Times(config, now)
            times.admit_one(record.timestamp)
        if expect is not None or record_size(record) > config.max_message_bytes // 2:
            timestamps = now if record.timestamp is None else record.timestamp
            headers = [record.headers] if record.headers else None
            data = batches.encode([record.key], [record.value], timestamps=timestamps, headers=headers)
            return self._publish(data, None if expect is None else [(0, expect)], times)
        if record.key is None and config.compact:
            raise InvalidRecord("an event without a key; a topic with cleanup.policy=compact needs one")
        last = self._waiting[-1] if self._waiting else None
        full = (
            not isinstance(last, Loose)
            or len(last.keys) >= MAX_GROUP
            or last.size + record_size(record) > config.max_message_bytes - 100
        )
        if full:
            last = Loose()
            self._queue(last)
        assert isinstance(last, Loose)
        later: Later[StoredAt] = Later()
        last.add(record, now, later)
        return later

    def publish_own(self, header: BatchHeader, data: bytes) -> Later[StoredAt]:
        """Queues a batch of one of the broker's own transactions. The batch was checked when it was staged."""
        if header.size > self._partition.config.max_message_bytes:
            raise RecordTooLarge(
                f"a batch of {header.size} bytes; max.message.bytes is {self._partition.config.max_message_bytes} now"
            )
        later: Later[StoredAt] = Later()
        self._queue(Publish(header, data, None, None, later, own=True))
        return later

    def publish_marker(self, data: bytes) -> Later[StoredAt]:
        """Queues a control batch of the broker's own."""
        later: Later[StoredAt] = Later()
        self._queue(Publish(batches.read_header(data), data, None, None, later))
        return later

    def _queue(self, item: Publish | Loose) -> None:
        if self._closed is not None:
            raise self._closed
        self._waiting.append(item)
        if not self._running:
            self._running = True
            self._partition.spawn(self._drain)

    def close(self, error: Exception | None = None) -> None:
        """Refuses new publishes. Waiting ones are still written; `await idle()` waits for that."""
        self._closed = error or ShuttingDown("the broker is shutting down")

    async def _drain(self) -> None:
        items: list[Publish | Loose] = []
        try:
            while self._waiting:
                await self._partition.applier.within(MAX_LAG)
                items = self._take()
                await self._open(items)
                if self._partition.config.codec is not None:
                    await self._recompress(items, self._partition.config.codec)
                if not any(isinstance(each, Publish) and each.expect for each in items):
                    await self._write(items)
                    continue
                if not self._conditions.keys_elsewhere(items):
                    await self._conditions.prepare(items)
                keys = self._conditions.keys_elsewhere(items)  # again: one may have become a stray
                if keys:
                    async with self._partition.strays.conditions:
                        await self._write(items, await self._conditions.prepare(items, keys))
                        await self._commit.settled()
                else:
                    await self._write(items)
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

    async def _open(self, items: list[Publish | Loose]) -> None:
        """Checks the records of a batch that is too large to be decoded on the event loop. It is the first of its
        drain, so that earlier items need not wait."""
        if not isinstance(items[0], Publish) or items[0].admission is None:
            return
        conditional = any(isinstance(each, Publish) and each.expect for each in items)
        try:
            items[0].admit(await large.opened(partial(items[0].admission, keep=conditional)))
        except KrappyError as error:
            items[0].reject(error)
        items[:] = [each for each in items if isinstance(each, Loose) or not each.later.done]

    async def _write(self, items: list[Publish | Loose], elsewhere: Elsewhere | None = None) -> None:
        accepted = self._decide(items, elsewhere)
        if accepted:
            await self._commit.write(accepted)

    async def idle(self) -> None:
        """Returns when no publish waits or is being written."""
        await wait_any([self._ended], lambda: not self._running)
        await self._commit.settled()

    def _take(self) -> list[Publish | Loose]:
        """The items of the next drain, in order and at most about `MAX_DRAIN` bytes. A producer's second batch is taken
        only if its sequence follows the first."""
        total, count = 0, 0
        last_sequence: dict[int, tuple[int, int]] = {}
        for item in self._waiting:
            if isinstance(item, Publish):
                if item.admission is not None and count:
                    break
                if item.header.producer_id >= 0 and not item.header.is_control:
                    header = item.header
                    before = last_sequence.get(header.producer_id)
                    if before is not None and before != (header.producer_epoch, header.base_sequence):
                        break
                    after = (header.base_sequence + header.count) & 0x7FFFFFFF
                    last_sequence[header.producer_id] = (header.producer_epoch, after)
                total += item.size
            else:
                total += item.size
            if count and total > MAX_DRAIN:
                break
            count += 1
        items = self._waiting[:count]
        del self._waiting[:count]
        return items

    async def _recompress(self, items: list[Publish | Loose], codec: int) -> None:
        """Recompresses the batches by the topic's compression.type. Those that are then too much for one drain wait for
        the next. Producer ids, epochs, sequences and the records' bytes stay the same.
        """
        partition, config = self._partition, self._partition.config
        limit = max(MAX_OPENED, config.max_message_bytes)
        changing = sum(each.size for each in items if isinstance(each, Publish) and each.needs(codec))
        refused: list[tuple[Publish, KrappyError]] = []

        def change() -> int:
            """Recompresses items until they are enough for one drain, and gives how many that are."""
            total = 0
            for index, item in enumerate(items):
                if total > MAX_DRAIN:
                    return index
                if isinstance(item, Publish) and item.needs(codec):
                    try:
                        item.recompress(codec, limit, config.max_message_bytes)
                    except KrappyError as error:
                        refused.append((item, error))
                total += item.size
            return len(items)

        if any(isinstance(each, Publish) and each.large for each in items):
            count = await large.opened(change)
        elif changing > INLINE:
            count = await trio.to_thread.run_sync(change, limiter=partition.disk_limiter)
        else:
            count = change()
        self._waiting[:0] = items[count:]
        del items[count:]
        for item, error in refused:
            item.reject(error)
        items[:] = [each for each in items if isinstance(each, Loose) or not each.later.done]

    def _decide(self, items: list[Publish | Loose], elsewhere: Elsewhere | None = None) -> list[Accepted]:
        partition = self._partition
        config = partition.config
        offset = partition.log.end_offset
        conditional = any(isinstance(item, Publish) and item.expect for item in items)
        overlay: dict[bytes, int] = {}  # key -> offset, or ABSENT; kept only for conditions
        accepted: list[Accepted] = []
        follows: dict[int, tuple[int, int]] = {}  # producer id -> epoch and sequence behind what was accepted here
        for item in items:
            try:
                timestamps = None
                if isinstance(item, Loose):
                    data: bytes | memoryview
                    columns: Columns | None
                    data, header, columns = item.encoded(config.codec or 0)
                    laters, timestamps = item.laters, item.timestamps
                else:
                    header, data, columns, laters = item.header, item.data, item.columns, [item.later]
                    own = item.own or header.is_control
                    if header.producer_id >= 0 and not own:
                        partition.check_producer(header)
                    following = follows.get(header.producer_id)
                    if following is None:
                        original = partition.log.producers.check(header)
                        if original is not None:
                            self._commit.answer_again(original, header, item.later)
                            continue
                    elif not header.is_control and (header.producer_epoch, header.base_sequence) != following:
                        raise OutOfOrderSequence(  # one between was refused just now
                            f"producer {header.producer_id} sent sequence {header.base_sequence} of epoch "
                            f"{header.producer_epoch}; {following[1]} of epoch {following[0]} comes next",
                            expected=following[1],
                        )
                    if header.attributes & TRANSACTIONAL and not own:
                        partition.check_transactional(header)
                    if item.expect:
                        written = columns or batches.decode(data)
                        self._conditions.check(written, item.expect, overlay, offset, elsewhere)
                if config.log_append_time and not header.is_control:
                    data = batches.restamp_time(data, partition.now_ms())
                    header = batches.read_header(data)
                    stamps = [header.max_timestamp] * header.count
                    if columns is not None:
                        columns = Columns(columns.offsets, stamps, columns.keys, columns.values, columns.headers)
                    timestamps = None if timestamps is None else stamps
            except KrappyError as error:
                item.reject(error)
                continue
            except Exception as error:  # a bug of ours, which must not fail the other publishes
                partition.report("internal_error", task=f"a publish to {partition}", exc_info=True)
                item.reject(StorageError(f"{partition}: {error!r}"))
                continue
            if header.producer_id >= 0 and header.base_sequence >= 0:
                follows[header.producer_id] = header.producer_epoch, advance(header.base_sequence, header.count)
            if conditional and not header.is_control:
                written = columns or batches.decode(data)
                decided = not header.attributes & TRANSACTIONAL
                for index, key in enumerate(written.keys):
                    if key is not None and overlay.get(key) != UNDECIDED:
                        last = ABSENT if written.values[index] is None else offset + index
                        overlay[key] = last if decided else UNDECIDED
            accepted.append(Accepted(header, data, columns, offset, laters, timestamps, item.cost))
            offset += header.count
        return accepted
