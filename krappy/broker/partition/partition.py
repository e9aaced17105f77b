"""One partition as the broker owns it: its log, its place in the views, who waits for it.

Offsets, from low to high: `start_offset` (oldest readable) <= `applied` (the view includes everything below)
<= `last_stable_offset` (decided: no open transaction has an event below) <= `high_watermark` (on disk, acknowledged)
<= `log.end_offset` (written). Native readers, groups and the view go up to the last stable offset and skip what
was aborted, so that a transaction's events come all at once, or never. Without transactions it is the high watermark.
All methods run on the event loop; what may block for the disk goes to a worker thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from krappy.batch import TRANSACTIONAL, BatchHeader, Columns
from krappy.broker.partition import appender, large, raw_reads, shortening, view_life
from krappy.broker.partition.appender import Appender
from krappy.broker.partition.applier import Applier
from krappy.broker.partition.elsewhere import Elsewhere
from krappy.broker.partition.expiry import Swept
from krappy.broker.partition.lent import Lent
from krappy.broker.partition.queued import Accepted, Stored
from krappy.broker.partition.raw_reads import Raw
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.undecided import UNDECIDED, Undecided
from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import State
from krappy.core.stability import marker, without
from krappy.entry import entry_offset
from krappy.errors import (
    KrappyError,
    OffsetOutOfRange,
    RequestTimeout,
    StorageError,
    TransactionPending,
    ViewDisabled,
)
from krappy.ports import ActiveProducer
from krappy.store.offline import OfflineLog
from krappy.topic_config import TopicConfig
from krappy.types import Record, Span, TopicPartition
from krappy.waiting import Later, Signal

if TYPE_CHECKING:
    from krappy.store.log import Log

T = TypeVar("T")


class Partition:
    def __init__(
        self,
        lent: Lent,
        topic: str,
        index: int,
        number: int,
        config: TopicConfig,
        log: Log,
        strays: Strays,
    ) -> None:
        self._lent = lent
        self.strays = strays  # of its topic
        self.topic = topic
        self.index = index
        self.number = number  # dense, broker-wide: the prefix of this partition's keys in the views
        self.config = config
        self.log = log
        self.views = lent.views
        self.measures = lent.measures
        self.epoch = -1  # of its leader, once there is one
        self.epochs = log.epochs
        self.high_watermark = log.end_offset
        self.replicas = ReplicaSet((), 1, log.end_offset)
        self.runtime = -1  # the id of this one, among them
        self.stability = log.producers.stability.copy()  # as of the high watermark; the log's own is as of its end
        self._stable = self.stability.first_open(log.end_offset)
        self.undecided = Undecided(self)
        self.moved = Signal()  # the high watermark went up, or the partition went away
        self.writing = trio.Lock()  # held by whoever changes the log's segments: a drain, housekeeping
        self.role = Role.OFFLINE
        self.offline = log.broken if isinstance(log, OfflineLog) else ""  # why it is out of service, if it is
        self.gone: KrappyError | None = StorageError(f"{self}: {self.offline}") if self.offline else None
        self.swept = Swept()
        self.floor = self.views.floor(number) if config.view else 0
        self.appender = Appender(self)
        self.applier = Applier(self, view_life.first_unapplied(self))

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def lead(self, state: State, broker: int) -> None:
        """From here on it is the broker with this id that leads it, in a new epoch (KIP-101)."""
        self.role, self.epoch, self.runtime = Role.LEADER, state.leader_epoch, broker
        self.epochs.lead(state.leader_epoch, self.log.end_offset)
        self.replicas = ReplicaSet(state.isr, state.min_isr, self.high_watermark)

    # --- what the broker lends it

    @property
    def fsync(self) -> bool:
        return self._lent.fsync

    @property
    def disk_limiter(self) -> trio.CapacityLimiter:
        return self._lent.disk_limiter

    @property
    def counting(self) -> trio.CapacityLimiter:
        return self._lent.counting

    @property
    def shrinking(self) -> trio.Lock:
        return self._lent.shrinking

    def now_ms(self) -> int:
        return self._lent.now_ms()

    def spawn(self, run: Callable[[], Any]) -> None:
        self._lent.spawn(run)

    def report(self, event: str, error: KrappyError | None = None, **facts: Any) -> None:
        if error is not None:
            facts["error"] = str(error)
        self._lent.report(event, partition=str(self), **facts)

    # --- publish

    def publish(
        self, data: bytes | memoryview, expect: Sequence[tuple[int, int]] | None = None, *, by_header: bool = False
    ) -> Later[Stored]:
        """Appends one RecordBatch v2. Raises what is wrong with it; the rest comes through the Later.

        `expect`: (index of a record, the offset that its key must stand at, or ABSENT); `by_header`: they are taken
        from the records' headers (core/conditions.py).
        """
        self._alive()
        self._lent.check_room(len(data))
        return self.appender.publish(data, expect, by_header=by_header)

    def publish_record(self, record: Record, expect: int | None = None, *, taken: bool = False) -> Later[Stored]:
        """`taken`: an event that was taken once: its timestamp is not judged again."""
        self._alive()
        if not taken:
            self._lent.check_room(len(record.value or b""))
        return self.appender.publish_record(record, expect, taken=taken)

    def publish_own(self, header: BatchHeader, data: bytes) -> Later[Stored]:
        """Appends a batch of a transaction of the broker's own. Raises RecordTooLarge."""
        self._alive()
        return self.appender.publish_own(header, data)

    def end_transaction(self, producer_id: int, epoch: int, commit: bool) -> Later[Stored]:
        """Appends the marker that ends a producer's transaction here, behind everything that was published before."""
        self._alive()
        return self.appender.publish_marker(marker(producer_id, epoch, commit, self.now_ms()))

    def check_producer(self, header: BatchHeader) -> None:
        """Whether a client may write under its producer id. Raises InvalidTransaction, UnknownProducer."""
        self._lent.check_producer(header.producer_id, transactional=bool(header.attributes & TRANSACTIONAL))

    def check_transactional(self, header: BatchHeader) -> None:
        """Whether a transactional batch may be appended now. Raises InvalidTransaction, ProducerFenced."""
        self._lent.check_transactional(
            header.producer_id, header.producer_epoch, TopicPartition(self.topic, self.index)
        )

    def producer_ids(self) -> set[int]:
        """Of everybody whose events it remembers or has undecided."""
        return {id for id, _ in self.log.producers.items()} | self.log.producers.stability.open.keys()

    def has_producer(self, id: int) -> bool:
        """Whether it is one of these."""
        return self.log.producers.get(id) is not None or id in self.log.producers.stability.open

    def producers(self) -> list[ActiveProducer]:
        """Every producer that is remembered here, by its id."""
        states = dict(self.log.producers.items())
        opened = self.stability.open
        return [
            ActiveProducer(
                producer_id,
                -1 if (state := states.get(producer_id)) is None else state.epoch,
                -1 if state is None else state.sent[-1].last_sequence,
                -1 if state is None else state.sent[-1].timestamp,
                opened.get(producer_id, -1),
            )
            for producer_id in sorted(states.keys() | opened.keys())
        ]

    def synced(self, offset: int) -> None:
        """Everything before it is on this broker's disk."""
        assert offset <= self.log.end_offset
        self.replicas.synced(self.runtime, offset)

    def committed(self, accepted: list[Accepted]) -> None:
        """The appender's word that all replicas in sync have these batches: they become readable here."""
        self.high_watermark = accepted[-1].end
        assert self.high_watermark <= self.replicas.high_watermark
        for item in accepted:
            if item.header.attributes & TRANSACTIONAL:
                self.stability.forget(self.log.start_offset)
                self.stability.apply(item.header, item.offset, item.data)
        self._stable = self.stability.first_open(self.high_watermark)
        if self.config.view:
            assert self.applier.applied <= self.last_stable_offset <= self.high_watermark
            self.applier.committed(accepted)
        else:
            self.applier.applied = self.high_watermark
        self.moved.fire()

    # --- read

    @property
    def size(self) -> int:
        """Bytes of its log."""
        return self.log.size

    @property
    def segments(self) -> int:
        return len(self.log.segments)

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided: where the oldest open transaction begins, or the high watermark."""
        return max(self._stable, self.log.start_offset)

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that have anything from `start` to before `end`."""
        return [(each.producer_id, each.first) for each in self.stability.between(start, end)]

    def read_now(self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None) -> Span:
        """Whole batches from `offset` up to the last stable offset, from the page cache alone.

        An aborted batch comes as its header, without records. Raises BlockingIOError when the disk would have to be
        waited for, OffsetOutOfRange outside the log.
        """
        self._readable(offset)
        if offset >= self.last_stable_offset:
            return Span(b"", offset, 0)
        bound = self._limit(limit)
        span = self.log.read_span(offset, max_bytes, limit=bound, max_records=max_records, nowait=True)
        return self._without_aborted(offset, span) if self.stability else span

    async def read(self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None) -> Span:
        """As `read_now`, waiting for the disk in a thread when it must."""
        try:
            return self.read_now(offset, max_bytes, limit, max_records)
        except BlockingIOError:
            bound = self._limit(limit)
            span = await self.in_thread(
                offset, lambda: self.log.read_span(offset, max_bytes, limit=bound, max_records=max_records)
            )
            return self._without_aborted(offset, span) if self.stability else span

    async def in_thread(self, offset: int, read: Callable[[], T]) -> T:
        """What a thread reads of the log from `offset` on, of which it is still known what was aborted. Raises what the
        partition has become, and OffsetOutOfRange."""
        while True:
            drops = self.stability.drops
            found = await trio.to_thread.run_sync(read, limiter=self.disk_limiter)
            self._readable(offset)
            if self.stability.drops == drops:
                return found

    def _without_aborted(self, offset: int, span: Span) -> Span:
        aborted = self.stability.between(offset, span.next_offset)
        return span._replace(data=without(memoryview(span.data), aborted)) if aborted else span

    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        """Batches as they stand in the log (`raw_reads.read_now`)."""
        return raw_reads.read_now(self, offset, max_bytes, limit, min_one=min_one)

    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        return await raw_reads.read(self, offset, max_bytes, limit, min_one=min_one)

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        """Bytes that `fetch` would bring, about."""
        return raw_reads.available(self, offset, max_bytes, limit)

    def told_earliest(self) -> int:
        """Where the log starts, for a connection that asks."""
        return self.start_offset

    def out_of_range(self) -> None:
        """A connection was told that the log does not have its offset."""

    async def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first event below `limit` that is not older than `timestamp`."""
        self._alive()
        return await large.opened(partial(self.log.find_timestamp, timestamp, limit))

    async def find_latest_time(self, limit: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the event with the highest timestamp, the first such, below `limit`."""
        self._alive()
        return await large.opened(partial(self.log.find_latest, limit))

    async def offset_at(self, timestamp: int) -> int:
        """The offset of the first event with a timestamp (ms) of at least `timestamp`, else the last stable offset."""
        self._alive()
        found = await large.opened(partial(self.log.find_timestamp, timestamp))
        return self.last_stable_offset if found is None else min(found[0], self.last_stable_offset)

    async def offset_for(self, start: str, start_at: int | None) -> int:
        """Turns a start as the protocol names it into an offset. Raises OffsetOutOfRange."""
        if self.offline:
            self._alive()
        if start == "earliest":
            return self.start_offset
        if start == "latest":
            return self.last_stable_offset
        assert start_at is not None
        if start == "timestamp":
            return await self.offset_at(start_at)
        self._readable(start_at)
        return start_at

    def _limit(self, limit: int | None) -> int:
        stable = self.last_stable_offset
        return stable if limit is None else min(limit, stable)

    def _readable(self, offset: int) -> None:
        self._alive()
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {self.start_offset} to {self.high_watermark}",
                start=self.start_offset,
                end=self.high_watermark,
                topic=self.topic,
                partition=self.index,
            )

    def _alive(self) -> None:
        if self.gone is not None:
            raise self.gone

    # --- retention

    async def delete_records(self, before: int) -> int:
        """Forgets the events below the offset `before` (-1: the high watermark); the log's start afterwards (KIP-107).

        Durable when it returns. Whole segments leave the disk at once, what is left of the first one with it later.
        A start beyond `before` stands. Raises OffsetOutOfRange beyond the high watermark, and PolicyViolation where
        compaction alone decides what goes, as in Kafka. Raises TransactionPending where the table outlives its events,
        and some of these stand behind an open transaction.
        """
        await shortening.delete_records(self, before)
        return self.start_offset

    def check_deletable(self, before: int) -> None:
        """Raises what `delete_records` would, before anything is changed."""
        shortening.check_deletable(self, before)

    async def flush_view(self, seconds: float = math.inf) -> None:
        """Returns once the view holds everything committed now, on disk. Raises why it never will, and StorageError
        when it was still behind after so many seconds."""
        if self.config.view:
            if not await self.applier.caught_up(seconds=seconds):
                at, end = self.applied, self.last_stable_offset
                raise StorageError(f"{self}: the view is behind, after {seconds:g} s of waiting: at {at} of {end}")
            self.applier.persist()
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)

    async def reshape(self, work: Callable[[], T]) -> T:
        """Runs what changes the log's segments in a thread, between two appends to it."""
        async with self.writing:
            await self.appender.commit.settled()  # what is not durable yet can't be expired
            self._alive()
            done = await trio.to_thread.run_sync(work, limiter=self.disk_limiter)
        if self.config.view:
            self.applier.start()  # beside an open transaction, the log may begin now behind all that was folded
        return done

    # --- the view

    @property
    def applied(self) -> int:
        return self.applier.applied

    @property
    def view_failed(self) -> KrappyError | None:
        """What keeps the view from being folded further, if anything does."""
        return self.applier.failed

    @property
    def log_failed(self) -> str:
        """Why it takes no more appends, until the broker is started again; empty while it does, or is offline."""
        return "" if self.offline else self.log.broken

    @property
    def expired_below(self) -> int:
        """Entries with a lower offset are absent: their events expired while cleanup.policy was delete."""
        return self.floor if self.config.compact else self.start_offset

    def view_ready(self, min_offset: int | None) -> bool:
        """Whether the view includes all that is decided now (or `min_offset`). Raises ViewDisabled."""
        self._alive()
        if not self.config.view:
            raise self.no_view()
        if self.applier.failed is not None:
            raise self.applier.failed
        target = self.last_stable_offset if min_offset is None else min_offset + 1
        return self.applier.applied >= target

    def no_view(self) -> ViewDisabled:
        return ViewDisabled(f"the topic '{self.topic}' keeps no view: it has view.enable=false")

    async def view_wait(self, min_offset: int | None, seconds: float) -> bool:
        """Waits for `view_ready`. False when `seconds` passed first."""
        target = self.last_stable_offset if min_offset is None else min_offset + 1
        return self.view_ready(min_offset) or await self.applier.caught_up(target, seconds)

    def look_up(self, key: bytes) -> bytes | None:
        """The packed entry of a key, or None. The caller has waited for the view."""
        return self._living(self.views.get(self.number, key))

    def look_up_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self.views.get_many(self.number, keys)
        if self.expired_below:
            return [self._living(entry) for entry in found]
        return found

    def _living(self, entry: bytes | None) -> bytes | None:
        if entry is not None and self.expired_below and entry_offset(entry) < self.expired_below:
            return None
        return entry

    def check_expected(
        self,
        columns: Columns,
        expect: Sequence[tuple[int, int]],
        overlay: dict[bytes, int],
        base_offset: int,
        elsewhere: Elsewhere | None,
    ) -> None:
        """Raises OffsetMismatch, or ViewDisabled: a condition is decided by the view; `elsewhere`: and by others'.

        TransactionPending for a key that has been written behind the last stable offset, which the view has not yet.
        """
        if expect and not self.view_ready(None):  # it was waited for, and nothing has been appended since
            raise RequestTimeout(f"the view of {self} was begun anew just now; try again")
        for index, _ in expect:
            key = columns.keys[index]
            if key is not None and (overlay.get(key) == UNDECIDED or self.undecided.holds(key)):
                raise TransactionPending(
                    f"{self}: the key was written beside a transaction that is not decided yet; try again", index=index
                )
        look_up = self.look_up
        if elsewhere is not None:
            elsewhere.check(columns, expect, overlay)
            look_up = partial(elsewhere.here, self)
        appender.check_expected(columns, expect, overlay, look_up, base_offset)
        if elsewhere is not None:
            elsewhere.check_overtaking(self, columns, expect)

    # --- life

    async def keep_absent(self, config: TopicConfig) -> None:
        """To be awaited before these settings are kept anywhere (`view_life.keep_absent`)."""
        await view_life.keep_absent(self, config)

    async def configure(self, config: TopicConfig) -> None:
        """Takes new settings. Turning the view on folds the whole log; turning it off drops the view."""
        await view_life.configure(self, config)

    async def close(self, error: KrappyError | None = None) -> None:
        """Ends it: what waits to be written is written, the view catches up, files are left clean.

        With an `error`, which everybody gets from now on, the files are left to `destroy`: a full disk, where nothing
        can be left clean, must not keep a topic from being deleted.
        """
        self.appender.close(error)
        if error is None:
            self.applier.close()
        else:
            self.applier.stop(error)
        await self.appender.idle()
        await self.applier.finish()
        if error is not None:
            self.gone = error
            self.moved.fire()
            return
        if self.config.view and self.applier.failed is None and not self.offline:
            self.applier.persist()
        await trio.to_thread.run_sync(self.log.close, limiter=self.disk_limiter)

    async def remove(self) -> None:
        """Deletes the files of what was closed with an error. Raises StorageError."""
        await trio.to_thread.run_sync(self.log.destroy, limiter=self.disk_limiter)
