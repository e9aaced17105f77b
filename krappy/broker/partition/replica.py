"""This broker's copy of a partition: its log, how far it has come, and reads of it.

Offsets, from low to high: `start_offset` (oldest readable) <= `applied` (the view includes everything below)
<= `last_stable_offset` (decided: no open transaction has an event below) <= `high_watermark` (on disk, acknowledged)
<= `log.end_offset` (written). Native readers, groups and the view go up to the last stable offset and skip what
was aborted, so that a transaction's events come all at once, or never. Without transactions it is the high watermark.
All methods run on the event loop; what may block for the disk goes to a worker thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import trio

from krappy.broker.name_locks import NameLocks
from krappy.broker.partition import large
from krappy.broker.partition.gone import read_in_thread
from krappy.broker.partition.page_cache import check_cached, warm
from krappy.broker.partition.pending import Pending
from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY, PartitionState
from krappy.core.epochs import Epochs
from krappy.core.stability import Stability, without
from krappy.errors import KrappyError, NotLeader, OffsetOutOfRange, StorageError
from krappy.measures import StoreMeasures
from krappy.ports import ActiveProducer, Raw, TransactionalSender
from krappy.records.batch import TRANSACTIONAL, BatchHeader, Columns
from krappy.settings.topic import TopicConfig
from krappy.store.offline import OfflineLog
from krappy.types import FilePart, Span, TopicPartition
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.sync_threads import SyncThreads
    from krappy.store.log import Log
    from krappy.store.views import Views
    from krappy.turns import UserTurns

T = TypeVar("T")
Transactional = tuple[BatchHeader, int, bytes | memoryview | None]  # header, offset, bytes of a marker
# Bytes from which a fetch is sent from its file. Measured, the broker's CPU for one fetch: with batches of 170 bytes
# 73 us instead of 133 us at 16 KiB, 113 instead of 640 at 128 KiB; with batches of 1 to 110 kB no difference up to
# 64 KiB; 107 instead of 153 at 128 KiB (1 kB), 220 instead of 593 at 512 KiB (1 kB), 187 instead of 293 (110 kB).
SENDFILE = 16 << 10
NOTHING = Raw(b"", 0)


class Lent(Protocol):
    """What a broker lends to each of its partitions: its clock, its threads and tasks, and the checks of producers."""

    views: Views
    measures: StoreMeasures
    fsync: bool
    syncs: SyncThreads | None
    disk_limiter: trio.CapacityLimiter
    shrinking: NameLocks  # a topic's is held while events are removed from its logs
    counting: trio.CapacityLimiter  # tasks that read whole views
    verifies: bool  # whether another broker may coordinate the transactions of its producers

    @property
    def lag_ms(self) -> float:
        """How long a follower may be silent, or behind, before nobody counts on it (replica.lag.time.max.ms)."""

    def check_producer(self, producer_id: int, sender: TransactionalSender | None) -> None: ...
    def check_transactional(self, producer_id: int, epoch: int, at: TopicPartition) -> None: ...
    async def verify(self, sender: TransactionalSender, producer_id: int, epoch: int, at: TopicPartition) -> int: ...
    def check_room(self, size: int) -> None: ...
    def may_read(self, topic: str, index: int, epoch: int) -> bool: ...
    def now_ms(self) -> int: ...
    def later_ms(self) -> int: ...
    def spawn(self, run: Callable[[], Awaitable[object]]) -> None: ...
    def report(self, event: str, **facts: Any) -> None: ...


class Standing(NamedTuple):
    """How far a log is committed: up to `high_watermark`. `stability`: as of this offset. `undecided`: the batches of
    transactions behind it."""

    high_watermark: int
    stability: Stability
    undecided: Sequence[Transactional] = ()

    @classmethod
    def of(cls, log: Log, applied: int) -> Standing:
        """What a log of a cluster tells after it was opened. `applied`: its view has the events before this offset, so
        they were committed. Blocks. Raises CorruptBatch, StorageError."""
        end = log.end_offset
        known = log.start_offset if log.high_watermark is None else log.high_watermark
        high_watermark = max(known, applied if applied <= end else 0, log.start_offset)
        if high_watermark == end:
            return cls.whole(log)
        return cls(high_watermark, *log.stability_at(high_watermark))

    @classmethod
    def whole(cls, log: Log) -> Standing:
        """All of the log is committed."""
        return cls(log.end_offset, log.producers.stability.copy())


class Replica:
    # What each request needs. CPython (3.11) reads attributes slowly where an object has more than 30 beside its slots.
    __slots__ = (
        *("_stable", "_undecided", "config", "epoch", "gone", "grown", "high_watermark", "index", "landed", "log"),
        *("moved", "number", "reading", "replicas", "role", "stability", "topic", "views"),
    )

    def __init__(
        self,
        lent: Lent,
        topic: str,
        index: int,
        number: int,
        config: TopicConfig,
        log: Log,
        standing: Standing | None = None,
    ) -> None:
        """`standing`: None: all of the log is committed, for it has no other replicas."""
        self._lent = lent
        self.topic, self.index = topic, index
        self.number = number  # dense, broker-wide: the prefix of this partition's keys in the views
        self.config = config
        self.log = log
        self.views, self.measures = lent.views, lent.measures
        self.fsync, self.syncs, self.disk_limiter = lent.fsync, lent.syncs, lent.disk_limiter
        self.counting, self.shrinking = lent.counting, lent.shrinking
        self.reading: trio.CapacityLimiter | None = None
        self.searching: UserTurns | None = None
        self.now_ms, self.later_ms, self.spawn = lent.now_ms, lent.later_ms, lent.spawn
        self.verifies, self.verify = lent.verifies, lent.verify
        self.epoch = -1  # the leader epoch, once there is a leader
        self.stand(Standing.whole(log) if standing is None else standing)
        if standing is not None:
            log.high_watermark = standing.high_watermark
        self.moved = Signal()  # the high watermark went up, or the partition was closed
        self.grown = Signal()  # batches were appended, or this broker's role has changed
        self.landed = Signal()  # appended batches are on disk, or have failed
        self.writing = trio.Lock()  # held while the log's segments are changed, by a drain or housekeeping
        self.role, self.leader = Role.OFFLINE, NOBODY  # `leader`: a broker's id
        self.offline = log.broken if isinstance(log, OfflineLog) else ""  # why it is out of service, if it is
        self.gone: KrappyError | None = StorageError(f"{self}: {self.offline}") if self.offline else None

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def stand(self, at: Standing) -> None:
        """Takes how far its log is committed. `stability` is as of the high watermark; the log's own is as of its
        end."""
        self.high_watermark = at.high_watermark
        self.stability, self._undecided = at.stability, deque(at.undecided)
        self._stable = self.stability.first_open(at.high_watermark)
        self.replicas = ReplicaSet(NOBODY, (), 1, at.high_watermark)

    @property
    def end_offset(self) -> int:
        """Behind the last event of its log, which may not be on disk yet."""
        return self.log.end_offset

    @property
    def epochs(self) -> Epochs:
        return self.log.epochs

    def lead(self, state: PartitionState, broker: int) -> None:
        """Makes this broker (`broker`: its id) the leader, in the leader epoch of `state` (KIP-101)."""
        self.role, self.epoch, self.leader = Role.LEADER, state.leader_epoch, broker
        self.epochs.lead(state.leader_epoch, self.log.end_offset)
        now = trio.current_time() * 1000
        log = self.log
        self.replicas = ReplicaSet(
            broker, state.isr, state.min_isr, self.high_watermark, log.end_offset, now, log.start_offset
        )

    def check_leads(self, epoch: int) -> None:
        """Raises NotLeader unless this broker leads the partition in this leader epoch."""
        if self.role is not Role.LEADER or self.epoch != epoch:
            raise self.deposed()

    @property
    def readable_end(self) -> int:
        """Offsets up to this one are in range. It is the high watermark; but a new leader does not know yet how high
        the last leader's was, and readers may have come that far: then it is the log's end."""
        return self.high_watermark if self.replicas.knows_end else self.log.end_offset

    @property
    def still_leads(self) -> bool:
        """Whether it leads, and nobody has taken its place meanwhile."""
        return self.role is Role.LEADER and self._lent.may_read(self.topic, self.index, self.epoch)

    def is_sure_leader(self) -> bool:
        """Whether this broker knows all that was acknowledged, here or by earlier leaders, and nobody has taken its
        place. Raises NotLeader."""
        if self.role is not Role.LEADER:
            raise self.deposed()
        return self.replicas.knows_end and self._lent.may_read(self.topic, self.index, self.epoch)

    def _place(self) -> dict[str, Any]:
        return {"topic": self.topic, "partition": self.index, "leader": self.leader, "leader_epoch": self.epoch}

    @property
    def elsewhere(self) -> KrappyError | None:
        """Why a caller that got this partition from its leader must ask elsewhere: it is gone, or this broker does not
        lead it any more. None: it need not."""
        if self.gone is not None or self.role is Role.LEADER:
            return self.gone
        return self.deposed()

    def deposed(self) -> NotLeader:
        """The error for a caller that takes this broker for the leader."""
        return NotLeader(f"{self}: this broker does not lead it any more", **self._place())

    def unsure(self) -> NotLeader:
        """The error for a caller that a leader without a read lease can't answer truly."""
        return NotLeader(f"{self}: this broker leads it, but can't be sure of that now", **self._place())

    def report(self, event: str, error: KrappyError | None = None, **facts: Any) -> None:
        if error is not None:
            facts["error"] = str(error)
        self._lent.report(event, partition=str(self), **facts)

    # --- who writes

    def check_producer(self, header: BatchHeader, sender: TransactionalSender | None) -> None:
        """Whether a client may write under its producer id. Raises InvalidTransaction, UnknownProducer, …"""
        self._lent.check_producer(header.producer_id, sender if header.attributes & TRANSACTIONAL else None)

    def check_transactional(self, header: BatchHeader) -> None:
        """Whether a transactional batch may be appended now. Raises InvalidTransaction, ProducerFenced."""
        self._lent.check_transactional(
            header.producer_id, header.producer_epoch, TopicPartition(self.topic, self.index)
        )

    def producer_ids(self) -> set[int]:
        """The ids of producers whose sequence it remembers, or that have an open transaction here."""
        return {id for id, _ in self.log.producers.items()} | self.log.producers.stability.open.keys()

    def has_producer(self, id: int) -> bool:
        """Whether `producer_ids` has this id."""
        return self.log.producers.get(id) is not None or id in self.log.producers.stability.open

    def producers(self) -> list[ActiveProducer]:
        """Every producer that is remembered here, by its id."""
        states = dict(self.log.producers.items())
        opened, ended = self.stability.open, self.log.producers.ended
        return [
            ActiveProducer(
                producer_id,
                -1 if (state := states.get(producer_id)) is None else state.epoch,
                -1 if state is None else state.sent[-1].last_sequence,
                -1 if state is None else state.sent[-1].timestamp,
                opened.get(producer_id, -1),
                last.coordinator_epoch if (last := ended.get(producer_id)) else 0 if producer_id in opened else -1,
            )
            for producer_id in sorted(states.keys() | opened.keys())
        ]

    # --- how far it has come

    def appended(self, batches: Iterable[Pending]) -> None:
        """These batches are in the log, and not committed yet."""
        for item in batches:
            if item.header.attributes & TRANSACTIONAL:
                self.note_undecided(item.header, item.offset, item.data if item.header.is_control else None)
        self.grown.fire()

    def note_undecided(self, header: BatchHeader, offset: int, data: bytes | memoryview | None) -> None:
        """Notes an appended batch of a transaction. `data`: its bytes, if it is a marker."""
        self._undecided.append((header, offset, data))

    def cut_undecided(self, end: int) -> None:
        """The log was cut, and ends here now."""
        while self._undecided and self._undecided[-1][1] >= end:
            self._undecided.pop()

    def synced(self, offset: int) -> None:
        """Everything before it is on this broker's disk."""
        assert offset <= self.log.end_offset
        self.replicas.synced(offset)

    def committed(self, offset: int, batches: Sequence[Pending]) -> None:
        """Makes everything before `offset` readable: all replicas in sync have it. `batches`: of these events, the
        batches that were published here."""
        assert self.high_watermark <= offset <= self.log.end_offset
        self.high_watermark = offset
        if self.log.high_watermark is not None:
            self.log.high_watermark = offset  # the next checkpoint has it
        while self._undecided and self._undecided[0][1] < offset:
            self.stability.forget(self.log.start_offset)
            self.stability.apply(*self._undecided.popleft())
        self._stable = self.stability.first_open(offset)

    @property
    def log_failed(self) -> str:
        """Why it takes no more appends, until the broker is started again; empty while it does, or is offline."""
        return "" if self.offline else self.log.broken

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
        """Where the oldest open transaction begins, or the high watermark: everything before it is decided."""
        return max(self._stable, self.log.start_offset)

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that have anything from `start` to before `end`."""
        return [(each.producer_id, each.first) for each in self.stability.between(start, end)]

    # --- reads for native consumers and the view: up to the last stable offset, without aborted events

    def read_now(self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None) -> Span:
        """Whole batches from `offset` up to the last stable offset, from the page cache alone.

        An aborted batch comes as its header, without records. Raises BlockingIOError when the disk would have to be
        waited for, OffsetOutOfRange outside the log.
        """
        self.check_readable(offset)
        if offset >= self.last_stable_offset:
            return Span(b"", offset, 0)
        span = self.log.read_span(offset, max_bytes, limit=self._limit(limit), max_records=max_records, nowait=True)
        return self._without_aborted(offset, span) if self.stability else span

    async def read(self, offset: int, max_bytes: int, limit: int | None = None, max_records: int | None = None) -> Span:
        """As `read_now`, but waits for the disk in a thread where it must."""
        try:
            return self.read_now(offset, max_bytes, limit, max_records)
        except BlockingIOError:
            read = partial(self.log.read_span, offset, max_bytes, limit=self._limit(limit), max_records=max_records)
            span = await self._in_thread(offset, read)
            return self._without_aborted(offset, span) if self.stability else span

    # --- reads for Kafka's consumers, which leave out aborted events themselves

    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        """Batches as they stand in the log: about `max_bytes` from the batch that contains `offset` on, of batches that
        begin before `limit`.

        A small read is copied into memory, and its CRCs are checked. A large one is sent from the file (sendfile(2)),
        without reading or checking it here; consumers check it. With `min_one`: at least one whole batch. Raises
        BlockingIOError when it would have to wait for the disk, OffsetOutOfRange, and `gone`.
        """
        self.check_readable(offset)
        return self._fetch(offset, max_bytes, limit, min_one, nowait=True)

    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        """As `fetch_now`, but waits for the disk in a thread where it must."""
        try:
            return self.fetch_now(offset, max_bytes, limit, min_one=min_one)
        except BlockingIOError:
            return await self._in_thread(offset, lambda: self._fetch(offset, max_bytes, limit, min_one, nowait=False))

    def _fetch(
        self, offset: int, max_bytes: int, limit: int, min_one: bool, *, nowait: bool, whole: bool = False
    ) -> Raw:
        """`whole`: also batches that compaction has emptied: they tell the last sequences of producers."""
        if max_bytes >= SENDFILE and offset < limit:
            places = self.log.locate(offset, max_bytes, limit, nowait=nowait)
            if places and places[0][2] >= SENDFILE:
                part = FilePart(*places[0])
                if part.size > max_bytes and not min_one:
                    return NOTHING
                check_cached(part) if nowait else warm(part)
                return Raw(part, limit)
        while offset < limit:
            span = self.log.read_span(offset, max_bytes, limit=limit, nowait=nowait, min_one=min_one)
            if whole or not span.data or span.records or span.next_offset >= limit:
                return Raw(span.data, span.next_offset)
            # Compaction has emptied these batches, and others follow: kafkajs does not move on from an answer without a
            # record, and a whole segment may be like that.
            offset = span.next_offset
        return NOTHING

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        """About how many bytes `fetch_now` would give, without reading them. Raises what `fetch_now` does."""
        self.check_readable(offset)
        if offset >= limit:
            return 0
        return sum(size for _, _, size in self.log.locate(offset, max_bytes, limit, nowait=True))

    def told_earliest(self) -> int:
        """The log start, for a connection that asks for the earliest offset."""
        return self.start_offset

    def out_of_range(self) -> None:
        """Called when a connection is told that its offset is out of range. Does nothing here."""

    # --- both

    async def look_at(self, batch: memoryview, work: Callable[[Columns], T]) -> T:
        """Gives what `work` returns for the records of one batch. Runs it in a thread if the batch unpacks to much."""
        return await large.looked_at(batch, work)

    async def _in_thread(self, offset: int, read: Callable[[], T]) -> T:
        """Runs `read`, which reads the log from `offset` on, in a thread. Reads again if aborted transactions were
        forgotten meanwhile. Raises OffsetOutOfRange, and the partition's `gone` if it is closed."""
        while True:
            drops = self.stability.drops
            found = await read_in_thread(self, read)
            self.check_readable(offset)
            if self.stability.drops == drops:
                return found

    def _without_aborted(self, offset: int, span: Span) -> Span:
        aborted = self.stability.between(offset, span.next_offset)
        return span._replace(data=without(memoryview(span.data), aborted)) if aborted else span

    async def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first event below `limit` that is not older than `timestamp`."""
        self._alive()
        return await large.found(self, partial(self.log.find_timestamp, timestamp, limit))

    async def find_latest_time(self, limit: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the event with the highest timestamp, the first such, below `limit`."""
        self._alive()
        return await large.found(self, partial(self.log.find_latest, limit))

    async def offset_at(self, timestamp: int) -> int:
        """The offset of the first event with a timestamp (ms) of at least `timestamp`, else the last stable offset."""
        end = self.last_stable_offset
        found = await self.find_time(timestamp, end)
        return end if found is None else found[0]

    def known_end(self) -> int:
        """Everything before it can be read. Raises NotLeader while a new leader can't tell that yet (KIP-207)."""
        if self.role is Role.LEADER and not self.replicas.knows_end:
            raise self.unsure()
        return self.last_stable_offset

    async def offset_for(self, start: str, start_at: int | None) -> int:
        """Turns a start as the protocol names it into an offset. Raises OffsetOutOfRange; NotLeader as `known_end`."""
        if self.offline:
            self._alive()
        if start == "earliest":
            return self.start_offset
        if start == "latest":
            return self.known_end()
        assert start_at is not None
        if start == "timestamp":
            return await self.offset_at(start_at)
        self.check_readable(start_at)
        return start_at

    def _limit(self, limit: int | None) -> int:
        stable = self.last_stable_offset
        return stable if limit is None else min(limit, stable)

    def check_readable(self, offset: int) -> None:
        """Raises OffsetOutOfRange, and `gone` if it is closed; NotLeader for an offset behind the end of a leader whose
        place another broker may have taken: that one may have the offset."""
        self._alive()
        if not self.start_offset <= offset <= self.readable_end:
            if offset > self.readable_end and self.role is Role.LEADER and not self.still_leads:
                raise self.unsure()
            start, end = self.start_offset, self.high_watermark
            text = f"{self}: offset {offset} is outside {start} to {end}"
            raise OffsetOutOfRange(text, start=start, end=end, topic=self.topic, partition=self.index)

    def check_read(self, offset: int, epoch: int) -> None:
        """For who has read up to a readable offset, its last event in this leader epoch. Raises OffsetOutOfRange if the
        log was cut since, as by an unclean election, and has other events before the offset now (KIP-320)."""
        parts = self.epochs.diverging(epoch, offset, self.readable_end)
        if parts is not None:
            start, cut = self.start_offset, max(self.start_offset, min(parts[1], offset))
            text = f"{self}: what was read in leader epoch {epoch} before offset {offset} is lost from offset {cut} on"
            raise OffsetOutOfRange(text, start=start, end=cut, topic=self.topic, partition=self.index)

    def _alive(self) -> None:
        if self.gone is not None:
            raise self.gone

    async def written(self) -> None:
        """Returns once all batches that were accepted before are readable, or have failed. Here they also fail when
        this broker gets another role."""
        async with self.writing:
            end, role, epoch = self.log.end_offset, self.role, self.epoch

        def done() -> bool:
            if self.gone is not None or self.log_failed or (self.role, self.epoch) != (role, epoch):
                return True
            return self.high_watermark >= end

        await wait_any([self.moved, self.landed], done)

    @property
    def busy(self) -> bool:
        """Whether something is being written that nobody can read yet."""
        return self.writing.locked() or self.log.end_offset > self.high_watermark
