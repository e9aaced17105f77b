"""A partition of this broker that follows another broker's: it copies the leader's log (see `FollowerPort`).

Each change of the log holds the partition's lock for writing, and looks under it whether the partition still follows in
that leader epoch: its role changes under the same lock.

It never cuts off events that it knows to be committed, unless an election was unclean after they were written. Where
its leader lacks such events (`krappy.core.cluster.claims`), it is `ahead`, and its broker takes the lead; or its log is
set aside, and copied anew (failed_logs.py does both).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import TypeVar

import trio

from krappy.broker.partition.partition import Partition
from krappy.broker.partition.replica import Standing
from krappy.core.cluster.claims import Claim, Cut, judge
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY, PartitionState
from krappy.core.epochs import fall
from krappy.errors import CorruptBatch, KrappyError, OffsetOutOfRange, StorageError
from krappy.records import batch as batches
from krappy.records.batch import TRANSACTIONAL, BatchHeader
from krappy.store.disk import Buffer
from krappy.store.log import Log
from krappy.store.reading import NO_CLAIM
from krappy.store.writing import Batch

T = TypeVar("T")
KEPT_BY_CLEANER = attrgetter("last_offset_delta", "max_timestamp", "producer_id", "producer_epoch", "base_sequence")


class Follower:
    """Implements `FollowerPort`. `topic_id`: 16 bytes. `leader`, `state`: set with each new state."""

    def __init__(self, partition: Partition, topic_id: bytes, make_log: Callable[[int], Log], broker: int) -> None:
        """`make_log(start)` removes the partition's log and makes an empty one that begins at this offset. It
        blocks. `broker`: this one's id."""
        self._partition, self._broker = partition, broker
        self._make_log = make_log
        self.topic, self.index, self.topic_id = partition.topic, partition.index, topic_id
        self.leader, self.state = NOBODY, PartitionState()
        self._ahead: tuple[PartitionState, str] = (self.state, "")  # in which state, and why
        self._high_watermark = 0  # the leader's, as it told last
        self._log_start = 0
        self._shortening = False

    def __str__(self) -> str:
        return str(self._partition)

    @property
    def in_sync(self) -> bool:
        return self._broker in self.state.isr

    @property
    def ahead(self) -> str:
        """Which committed events its leader lacks; empty: none that are known."""
        state, why = self._ahead
        return why if state == self.state and self.follows(state.leader_epoch) else ""

    @property
    def _committed(self) -> Claim:
        end = self._partition.high_watermark
        return self._partition.log.epochs.at(end - 1), end

    @property
    def claim(self) -> Claim:
        """How far its log is committed, or may be."""
        return max(self._partition.log.claim, self._committed)

    @property
    def copies(self) -> bool:
        """Whether it copies what its leader has. A spoiled log that is not in sync gets no copies: its leader would
        take it for whole. It is made anew."""
        return self.leader != NOBODY and (self.in_sync or not self._partition.spoiled)

    @property
    def epoch(self) -> int:
        return self._partition.epoch

    @property
    def is_throttled(self) -> bool:
        return not self.in_sync and self._partition.config.throttled_followers.has(self.index, self._broker)

    def follows(self, epoch: int) -> bool:
        """Whether it follows in this leader epoch."""
        partition = self._partition
        return partition.role is Role.FOLLOWER and partition.epoch == epoch and partition.gone is None

    @property
    def start_offset(self) -> int:
        return self._partition.start_offset

    def position(self) -> tuple[int, int]:
        return self._reached, self._partition.log.epochs.at(self._reached - 1)

    @property
    def _reached(self) -> int:
        """Everything before it is on this broker's disk; with durability "os": in its memory."""
        partition = self._partition
        return partition.log.synced_offset if partition.fsync else partition.log.end_offset

    async def last_batch(self) -> tuple[int, int] | None:
        partition = self._partition
        log, end = partition.log, self._reached
        if end <= log.start_offset or partition.spoiled:
            return None
        data = await self._read(log, end - 1)
        if not data:
            return None  # compaction has removed it
        first = batches.read_header(data).base_offset
        return first, log.epochs.at(first - 1) if first > log.start_offset else -1

    async def compare(self, epoch: int, data: bytes | memoryview, high_watermark: int) -> None:
        partition = self._partition
        async with partition.writing:
            if not self.follows(epoch):
                return
            log, theirs = partition.log, batches.read_header(data)
            if not log.start_offset <= theirs.base_offset < log.end_offset:
                return  # compaction has removed the batch from the leader's log
            own = await self._read(log, theirs.base_offset)
            if not own or _is_same(theirs, batches.read_header(own)):
                return
            last = log.epochs.at(theirs.base_offset)
            await self._cut(log.epochs.start_of(last) or log.start_offset, high_watermark)

    async def append(self, epoch: int, data: bytes | memoryview, high_watermark: int, log_start: int) -> None:
        partition = self._partition
        async with partition.writing:
            if not self.follows(epoch):
                return
            if log_start >= partition.log.claim[1]:
                self._check_claim()
            if data:
                await self._in_thread(lambda: self._append_and_sync(data, epoch))
                partition.note_holes(max(high_watermark, partition.log.end_offset))
                partition.grown.fire()
            self._high_watermark, self._log_start = high_watermark, log_start
            if high_watermark >= partition.log.claim[1]:  # its leader has all of these events
                partition.log.claim = NO_CLAIM

    def _append_and_sync(self, data: bytes | memoryview, epoch: int) -> None:
        self._append(data, epoch)
        if self._partition.fsync:
            with suppress(StorageError):  # `sync`, which is called next, tells of it
                self._partition.log.sync()

    def _append(self, data: bytes | memoryview, epoch: int) -> None:
        partition, found = self._partition, list[Batch]()
        position, last = 0, partition.log.epochs.at(partition.log.end_offset - 1)
        view = memoryview(data)
        while position < len(view):
            header = batches.check(view, position)
            # The batch is damaged, or the leader has been replaced since (KAFKA-18723). The next request begins with
            # this batch, and then a leader finds out that it is damaged.
            why = fall(header.leader_epoch, last)
            if why or header.leader_epoch > epoch:
                if found:
                    break
                why = why or f"its leader epoch is {header.leader_epoch}, beyond the leader's"
                raise CorruptBatch(
                    f"{partition}: its leader of epoch {epoch} sent the batch at offset {header.base_offset}: {why}"
                )
            if found and header.leader_epoch > last:
                break  # the next request begins with it; so its leader looks whether it was written in that epoch
            last = max(last, header.leader_epoch)
            found.append((header, view[position : position + header.size]))
            position += header.size
        try:
            partition.log.append_as_is(found, partition.later_ms())
        except ValueError as error:
            raise CorruptBatch(f"{partition}: what its leader sent does not fit: {error}") from error
        for header, batch in found:
            if header.attributes & TRANSACTIONAL:
                partition.note_undecided(header, header.base_offset, bytes(batch) if header.is_control else None)

    async def sync(self) -> None:
        partition = self._partition
        epoch = partition.epoch
        refused = partition.log_failed or ("" if self.in_sync else partition.spoiled)
        if refused:  # its leader must not take it for one that follows
            raise StorageError(refused)
        if self._reached < partition.log.end_offset:
            await self._in_thread(partition.log.sync)
        if not self.follows(epoch):
            return
        committed = min(self._high_watermark, self._reached)
        if committed > partition.high_watermark:
            partition.committed(committed, ())
        if self._new_start() > partition.start_offset and not self._shortening:
            self._shortening = True
            partition.spawn(self._follow_start)

    def _new_start(self) -> int:
        """Up to where it may delete what the leader has deleted: not before it is committed and decided here."""
        return min(self._log_start, self._partition.last_stable_offset)

    async def _follow_start(self) -> None:
        partition = self._partition
        try:
            await partition.shorten(self._new_start)
        except KrappyError as error:  # the next sync tries again
            partition.report("housekeeping_failed", error)
        finally:
            self._shortening = False

    async def diverged(self, epoch: int, diverging: tuple[int, int], high_watermark: int) -> None:
        log = self._partition.log
        async with self._partition.writing:
            if self.follows(epoch):
                await self._cut(log.epochs.common(diverging, log.end_offset), high_watermark)

    async def _cut(self, cut: int, high_watermark: int) -> None:
        """Cuts the log at this offset. `high_watermark`: the leader's. Raises CorruptBatch."""
        partition = self._partition
        log = partition.log
        if cut < max(partition.high_watermark, log.claim[1]):
            self._check_loss(cut, high_watermark)
        try:
            end = await self._in_thread(lambda: log.truncate(cut))
            partition.exact_from = min(partition.exact_from, end)
        except OffsetOutOfRange:
            await self._start_over(max(self._log_start, 0))
            return
        if end < partition.high_watermark:  # after an unclean election: what was committed is gone
            partition.report("committed_events_cut", high_watermark=partition.high_watermark, end=end)
            await self._stand_anew(Standing.whole(log))
        else:
            partition.cut_undecided(end)
        partition.report("log_cut", end=end)

    def _check_loss(self, cut: int, high_watermark: int) -> None:
        """Raises CorruptBatch unless all events from `cut` on may go. `high_watermark`: the leader's."""
        log = self._partition.log
        verdict = judge(self.state, self._broker, cut, self._committed, log.claim, high_watermark)
        if verdict is Cut.GO:
            return
        end = self._committed[1]
        text = f"{log.folder}: its leader lacks the events from offset {cut} on, which"
        text = f"{text} were committed here (up to {end})" if cut < end else f"{text} may be committed"
        if verdict is Cut.ASIDE:
            log.damage, log.is_parted = f"{text}, or has others in their place", True
            raise CorruptBatch(log.damage)
        self._ahead = (self.state, text)
        raise CorruptBatch(text)

    def _check_claim(self) -> None:
        """Raises CorruptBatch if events may be committed here that its leader never had. It has deleted what it had in
        their place, so the logs can't be compared."""
        log, state = self._partition.log, self.state
        may_have_more = log.claim > (state.claim or NO_CLAIM) and log.claim[0] >= state.unclean
        if may_have_more and log.claim[1] > log.start_offset:
            log.damage = f"{log.folder}: its leader may never have had its events, and its log begins behind them"
            log.is_parted = True
            raise CorruptBatch(log.damage)

    async def start_over(self, epoch: int, log_start: int) -> None:
        async with self._partition.writing:
            if self.follows(epoch):
                self._check_claim()
                await self._start_over(log_start)

    async def _start_over(self, log_start: int) -> None:
        partition = self._partition
        log = await self._in_thread(lambda: self._make_log(log_start))
        partition.renew(log)
        await self._stand_anew(Standing.whole(log))
        partition.report("log_started_over", start=log_start)

    async def renew(self, make_log: Callable[[], tuple[Log, Standing]]) -> bool:
        """Takes the log that `make_log` gives in the place of its own. `make_log` blocks. False if nothing was done,
        since the partition leads by now or is closed. Raises what `make_log` raises; then `renew` must be called
        again."""
        partition = self._partition
        with trio.CancelScope(shield=True):
            async with partition.writing:
                if partition.role is Role.LEADER or (partition.gone is not None and not partition.offline):
                    return False
                log, standing = await self._in_thread(make_log)
                partition.renew(log)
                await self._stand_anew(standing)
        return True

    async def _stand_anew(self, standing: Standing) -> None:
        """What was committed is not there any more, so the view is folded anew."""
        partition = self._partition
        partition.stand(standing)
        partition.log.high_watermark = standing.high_watermark
        await partition.drop_view()

    async def _read(self, log: Log, offset: int) -> Buffer:
        """The batch that contains this offset, or is the next one; empty: there is none."""
        with suppress(BlockingIOError):
            return log.read(offset, 1, nowait=True)
        return await self._in_thread(lambda: log.read(offset, 1))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._partition.disk_limiter)


def _is_same(one: BatchHeader, other: BatchHeader) -> bool:
    """Whether two batches may be of the same log, as far as that can be told: the cleaner may have taken events from
    either, or one of them as a whole. Then what is left of them has these fields as they were."""
    if one.leader_epoch != other.leader_epoch:
        return True  # they will turn out to diverge
    if one.base_offset != other.base_offset:
        return one.last_offset < other.base_offset or other.last_offset < one.base_offset
    is_whole = one.dense and other.dense and one.delete_horizon == other.delete_horizon
    return KEPT_BY_CLEANER(one) == KEPT_BY_CLEANER(other) and (one.crc == other.crc or not is_whole)
