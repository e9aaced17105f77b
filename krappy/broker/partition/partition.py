"""One partition: its replica (replica.py) and view (viewed.py), publishing to it, and deletion from its start.

Events are deleted from the start of a log by retention and by DeleteRecords. The new start must be decided while the
partition's lock for writing is held: across an await, events may be appended and settings may change. But the view must
be made ready first, which may take long. So there are three steps:

1. Under the lock: decide. If the active segment is to be deleted too, it is closed in this step; later events go to the
   next one.
2. Without the lock: make the view ready to lose these events.
3. Under the lock: decide again, and delete what both decisions allow. If the settings have changed, or the view was
   begun anew, begin again. Neither can happen during this step: changes after which the view outlives its events, and
   the rebuilding of damaged views, hold `Runtime.shrinking` too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.appender import Appender
from krappy.broker.partition.gone import read_in_thread
from krappy.broker.partition.page_cache import head
from krappy.broker.partition.replica import Lent, Standing
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed
from krappy.core import retention
from krappy.core.cluster.replica_set import FollowerLag, Proposal, ReplicaSet
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY, PartitionState
from krappy.core.refused_batches import NextBatch, RefusedByPartitions
from krappy.core.stability import marker
from krappy.core.staging import OWN
from krappy.errors import (
    CorruptBatch,
    InvalidTransaction,
    KrappyError,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimeout,
    StorageError,
    TransactionPending,
)
from krappy.ports import Raw, StoredAt, TransactionalSender, TransactionEnd
from krappy.records import batch as batches
from krappy.records.batch import STAMPED, BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log
from krappy.types import Record
from krappy.waiting import Later, Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.partition.applier import Applier
    from krappy.core.retention import SegmentInfo

DELETE_ALL = -1  # stands for the high watermark in DeleteRecords of either protocol
PATIENCE_S = 20.0  # the longest wait for a view that is behind; then a client gets an error, housekeeping tries later


class Partition(Viewed):
    def __init__(
        self,
        lent: Lent,
        topic: str,
        index: int,
        number: int,
        config: TopicConfig,
        log: Log,
        strays: Strays[Viewed],
        standing: Standing | None = None,
    ) -> None:
        super().__init__(lent, topic, index, number, config, log, strays, standing)
        self.appender = Appender(self)
        self._led = -1  # the leader epoch in which it led last
        self._barred = -1  # it must not lead in a leader epoch up to this one: it led then with another log
        self.state_version = -1  # the version of the cluster's state that it took last as the leader
        self.shortened = Signal()  # replicas may have followed a deletion
        self._told = ""  # the damage of its log that was reported last

    def end_of_epoch(self, epoch: int, position: int) -> tuple[int, int] | None:
        """For a group that has come to `position`, behind an event of this leader epoch: (the highest epoch up to it
        that the log has, the offset behind its last event), as OffsetForLeaderEpoch (KIP-320). `epoch`: -1 if it is not
        known. Then a position inside the log is believed. For a position behind the log's end, all that was appended in
        the present leader epoch counts as new. None if this broker can't tell: it may lack events unless it surely
        leads."""
        end = self.log.end_offset
        if self.offline:
            return None
        if epoch < 0 and position <= end:
            return epoch, position
        sure = self.still_leads
        if epoch < 0:
            start = self.epochs.start_of(self.epoch)
            return (epoch, end if start is None else start) if sure else None
        found = self.epochs.end_of(epoch, end if sure else max(position, end))
        return (self.epoch, end) if found is None and sure else found

    # --- publish

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
        """Appends one RecordBatch v2. Raises at once what is wrong with the batch itself; other errors come through the
        Later.

        `expect`: conditions, each (index of a record, the offset that its key must stand at, or ABSENT). `by_header`:
        conditions are in the records' headers (core/conditions.py). `taken`: as for `publish_record`. `alone`: it is
        answered once it is on this broker's disk (Kafka's acks=1), whether or not other replicas have it. With
        conditions it is answered once it is committed. `epoch`: the only leader epoch in which it may be appended.
        `sender`: who sends a batch of a transaction; without it such a batch raises TransactionalIdAuthorizationFailed.
        `refused`: what was refused for now of the batches that came by the same connection; None: the producer is not
        idempotent.
        """
        self._alive()
        if not taken:
            self._lent.check_room(len(data))
        return self.appender.publish(
            *(data, expect),
            by_header=by_header,
            taken=taken,
            alone=alone,
            epoch=epoch,
            sender=sender,
            refused=refused,
        )

    def publish_record(self, record: Record, expect: int | None = None, *, taken: bool = False) -> Later[StoredAt]:
        """Appends one record. `taken`: it was accepted once before, so that neither its timestamp nor the room on the
        disk is checked."""
        self._alive()
        if not taken:
            self._lent.check_room(len(record.value or b""))
        return self.appender.publish_record(record, expect, taken=taken)

    def publish_own(self, header: BatchHeader, data: bytes) -> Later[StoredAt]:
        """Appends a batch of a transaction of the broker's own. Raises RecordTooLarge, StorageError."""
        self._alive()
        self._lent.check_room(len(data))
        return self.appender.publish_own(header, data)

    def publish_staged(self, data: bytes | memoryview) -> Later[StoredAt]:
        """As `publish_own`, for a job that another broker publishes. Raises CorruptBatch, InvalidTransaction as
        well."""
        header = batches.check(data)
        if header.producer_id < OWN or not header.is_transactional or header.is_control:
            raise InvalidTransaction(f"{self}: not a batch of a staged job")
        return self.publish_own(header, bytes(data))

    def end_transaction(self, producer_id: int, epoch: int, commit: bool) -> Later[StoredAt]:
        """Appends the marker that ends a producer's transaction in this partition, after all earlier publishes. This
        broker alone has decided it."""
        self._alive()
        return self.appender.publish_marker(marker(producer_id, epoch, commit, self.now_ms()))

    def end_as_told(self, end: TransactionEnd) -> Later[StoredAt]:
        """As `end_transaction`, for what any coordinator has decided. The Later raises CoordinatorFenced if a newer
        coordinator has ended a transaction of the producer here, ProducerFenced and InvalidTransaction if this
        transaction was ended here before, and the producer has gone on."""
        self._alive()
        data = marker(end.producer_id, end.epoch, end.commit, self.now_ms(), end.coordinator_epoch)
        return self.appender.publish_marker(data, end)

    def following(self, producer_id: int) -> NextBatch | None:
        """The batch that it expects next of a producer; None: it does not know that."""
        return self.log.producers.following(producer_id)

    # --- reads for the log of another broker

    def fetch_all_now(self, offset: int, max_bytes: int, *, min_one: bool = True) -> Raw:
        """As `fetch_now`, but for a replica: it reads up to the log's end, and raises CorruptBatch if the leader epoch
        of the first batch is damaged."""
        self._alive()
        return self._fetch_all(offset, max_bytes, min_one, nowait=True)

    async def fetch_all(self, offset: int, max_bytes: int, *, min_one: bool = True) -> Raw:
        """As `fetch_all_now`, but waits for the disk in a thread where it must."""
        try:
            return self.fetch_all_now(offset, max_bytes, min_one=min_one)
        except BlockingIOError:
            fetch = partial(self._fetch_all, offset, max_bytes, min_one, nowait=False)
            return await read_in_thread(self, fetch)

    def _fetch_all(self, offset: int, max_bytes: int, min_one: bool, *, nowait: bool) -> Raw:
        log, cuts = self.log, self.log.cuts
        raw = self._fetch(offset, max_bytes, log.end_offset, min_one, nowait=nowait, whole=True)
        if len(raw.records):
            log.verify_epoch(head(raw.records, STAMPED), cuts)
        return raw

    # --- its role

    async def take(self, state: PartitionState, version: int, role: Role, broker: int) -> None:
        """Takes the role that this broker (`broker`: its id) has by this state. A state of an earlier leader epoch is
        ignored. Raises StorageError when the disk refuses; then the role is as before. But a replica whose log takes no
        more events may follow."""
        if role is Role.LEADER and state.leader_epoch <= self._barred:
            role = Role.OFFLINE
        if (role, state.leader_epoch) == (self.role, self.epoch):
            if version > self.state_version:
                self.know(state, version, self.epoch)
            return
        async with self.writing:
            if state.leader_epoch < self.epoch:
                return
            led = self.role is Role.LEADER
            needs_sync = role is Role.LEADER or (role is Role.FOLLOWER and not self.log_failed)
            if needs_sync and not self.log.is_synced:  # many partitions get a new role at once
                await trio.to_thread.run_sync(self.log.sync, limiter=self.disk_limiter)
            if role is Role.LEADER:
                self.lead(state, broker)
                self._led = state.leader_epoch
                self.state_version = version
                self.commit.begin()
            else:
                self.role, self.epoch, self.leader = role, state.leader_epoch, state.leader
                self.strays.tell(self)
                self.replicas = ReplicaSet(NOBODY, (), 1, self.high_watermark)
                self.epochs.cut(self.log.end_offset)
        if led and role is not Role.LEADER:
            self.commit.end(self.deposed())
        self.grown.fire()
        self.moved.fire()

    async def rest(self) -> None:
        """Takes part in nothing, until the next `take`. Waits for a write under way, which is then refused, too."""
        async with self.writing:
            led, self.role = self.role is Role.LEADER, Role.OFFLINE
            self.leader = NOBODY
            self.strays.tell(self)
            if led:
                self.replicas = ReplicaSet(NOBODY, (), 1, self.high_watermark)
        if led:
            self.commit.end(self.deposed())
        self.grown.fire()
        self.moved.fire()

    @property
    def spoiled(self) -> str:
        """Why its log is not what other replicas have, or can't be read as a whole; empty if no such fault is known."""
        return self.offline or self.log.lost or self.log.damage

    def tell_damage(self) -> None:
        """Reports the damage of its log that was found last, by whoever read it, unless it was told."""
        if self._told != self.log.damage:
            self._told = self.log.damage
            self.report("log_damaged", why=self._told)

    def renew(self, log: Log) -> None:
        """Takes another log in the place of its own: nothing of the old log counts any more. The caller calls `stand`
        next.

        Followers may have events of the old log that the new log lacks. It will give their offsets to other events,
        which must not be of the same leader epoch."""
        self.log, self._told = log, ""
        self.commit.forget_sync()
        self._barred = self._led
        if self.offline:
            self.offline, self.gone = "", None

    def know(self, state: PartitionState, version: int, epoch: int, proposal: Proposal | None = None) -> None:
        """Takes the ISR in force, as the leader in this leader epoch. `version`: of the state; an earlier version is
        ignored. `proposal`: the state was read after this proposal was written."""
        if self.role is not Role.LEADER or not self.epoch == epoch == state.leader_epoch:
            return
        if version < self.state_version:
            return
        replicas = self.replicas
        if version == self.state_version:
            replicas.settle(proposal, state.isr, state.min_isr)
        else:
            replicas.take(state.isr, state.min_isr)
        self.state_version = version
        self.commit.settle()
        if not replicas.enough:
            self.commit.refuse(replicas.too_few(self))
        self.shortened.fire()

    def fetched_by(self, replica: int, broker_epoch: int, offset: int, start: int = 0) -> None:
        """Notes that a replica has everything from `start` to before `offset` on its disk. The high watermark may
        rise."""
        now = trio.current_time() * 1000
        if self.replicas.fetched(replica, broker_epoch, offset, self.log.end_offset, now, start):
            self.commit.settle()
        self.shortened.fire()

    def is_outdated(self, replica: int, broker_epoch: int, offset: int) -> bool:
        """Whether a replica that has events, all of them before `offset`, has to begin anew. It was away, and may have
        events that were deleted meanwhile, whose tombstones are not in this log any more (Kafka has this hole)."""
        now = trio.current_time() * 1000
        return offset < self.log.gone_below and self.replicas.is_new(replica, broker_epoch, now, self._lent.lag_ms)

    def kept_from(self) -> float:
        """Tombstones and markers from this offset on must stay in the log, for a follower that is catching up; infinite
        if no follower is."""
        return self.replicas.slowest(trio.current_time() * 1000, self._lent.lag_ms)

    def lack(self, below: int) -> bool:
        """To be called before tombstones and markers from before this offset are removed from the log. False: a
        follower came meanwhile that needs them, so they must stay."""
        if below > self.kept_from():
            return False
        self.log.lack(below)
        return True

    def throttles(self, replica: int) -> bool:
        """Whether a replica is sent events no faster than the broker's quota allows (KIP-73)."""
        throttled = self.config.throttled_leaders
        return throttled.has(self.index, self.replicas.leader) and replica not in self.replicas.isr

    def lags(self) -> dict[int, FollowerLag]:
        """By broker id: how far each follower is that has fetched in this leader epoch. Empty unless it leads."""
        return self.replicas.lags(self.log.end_offset, trio.current_time() * 1000)

    # --- deletion from its start

    def retains(self) -> bool:
        """Whether retention has anything to do. A guess without the lock; `retain` decides."""
        log = self.log
        return self._retention() != retention.ShorteningPlan(False, log.start_offset)

    async def retain(self) -> list[SegmentInfo]:
        """Closes the active segment if it is old enough, and deletes expired segments. Gives those that it deleted.
        Raises StorageError."""

        def decide() -> int:
            found = self._retention()
            if found.roll:
                self.log.roll()
            return found.start

        return await self.shorten(decide)

    def _retention(self) -> retention.ShorteningPlan:
        # Events after the last stable offset have not been folded into the view.
        log, stable = self.log, self.last_stable_offset
        found = retention.shortening(self.config, log.segments, log.start_offset, stable, self.now_ms())
        # A replica that follows deletes what its leader has deleted, whatever its own clock tells.
        return found if self.role is Role.LEADER else found._replace(start=log.start_offset)

    async def delete_records(self, before: int) -> int:
        """Deletes the events before the offset `before` (-1: the high watermark). Gives the new log start (KIP-107).

        It is durable here on return; `deleted_everywhere` waits for the other replicas. Whole segments are removed from
        disk at once; the rest goes later, with its segment. A log start that is higher already stays. Raises
        OffsetOutOfRange beyond the high watermark, NotEnoughReplicas, and, as Kafka does, PolicyViolation under
        cleanup.policy=compact alone. Raises TransactionPending where the table outlives its events and an open
        transaction began before `before`.
        """
        self.check_deletable(before)
        wanted = self.high_watermark if before == DELETE_ALL else before

        def decide() -> int:
            self.check_deletable(wanted)
            if wanted >= self.log.end_offset > self.start_offset:
                self.log.roll()  # so that the last events can be deleted from the disk too
            return wanted

        if wanted > self.start_offset:
            await self.shorten(decide)
        self.replicas.delete(self.start_offset)
        return self.start_offset

    async def deleted_everywhere(self, before: int, seconds: float = PATIENCE_S) -> None:
        """Returns when all replicas in sync have deleted the events before this offset, durably: so these do not come
        back with another leader. Raises RequestTimeout, NotLeader, NotEnoughReplicas, and `gone`."""
        epoch = self.epoch

        def done() -> bool:
            return self.elsewhere is not None or self.epoch != epoch or self.replicas.has_deleted(before)

        in_time = await wait_any([self.shortened, self.moved], done, min(seconds, PATIENCE_S))
        self._alive()
        self.check_leads(epoch)
        if not in_time:
            self.replicas.check_enough(self)
            raise RequestTimeout(f"{self}: not all replicas in sync have deleted the events before {before} yet")

    def check_deletable(self, before: int) -> None:
        """Raises what `delete_records` would, before anything is changed: PolicyViolation, OffsetOutOfRange, and `gone`
        if it is closed."""
        self._alive()
        if self.config.compact and not self.config.delete:
            raise PolicyViolation(
                f"{self}: events of a topic with cleanup.policy=compact are deleted by tombstones and compaction alone"
            )
        self.replicas.check_enough(self)
        end = self.high_watermark
        if before != DELETE_ALL and not 0 <= before <= end:
            raise OffsetOutOfRange(
                f"{self}: events can be deleted up to the high watermark, {end}, not up to {before}",
                start=self.start_offset,
                end=end,
            )

    async def shorten(self, decide: Callable[[], int]) -> list[SegmentInfo]:
        """Moves the start of the log up to the offset that `decide` gives. `decide` is called in a thread, while
        nothing is appended."""
        while True:
            config, applier = self.config, self.applier
            wanted = await self.reshape(decide)
            if wanted <= self.start_offset:
                return []
            await self._ready_view(config, wanted)

            def delete(
                config: TopicConfig = config, applier: Applier = applier, wanted: int = wanted
            ) -> list[SegmentInfo] | None:
                wanted = min(wanted, decide())
                same = self.config == config and self.applier is applier
                return self.log.delete_before(wanted) if same else None

            async with self.shrinking.of(self.topic):
                gone = await self.reshape(delete)
            if gone is not None:
                self.moved.fire()  # replicas are told at once
                return gone

    async def _ready_view(self, config: TopicConfig, before: int) -> None:
        """Makes the view ready for the deletion of the events before `before`. Raises StorageError and
        TransactionPending when it can't now.

        Under `delete` alone it is always ready, whatever state a crash leaves it in: entries of events that are not in
        the log any more are absent, and folding goes on at the log's start. Where entries outlive their events, the
        view must have folded these events, durably. Else it would show older entries of their keys for ever. So this
        waits for open transactions before that offset. If the log is damaged and can't be folded, the table loses the
        damaged events and all entries before `before`: nobody knows which of them are outdated.
        """
        if not config.view or not config.compact:
            return
        applier, views = self.applier, self.views
        try:
            if not await applier.caught_up(before, PATIENCE_S):
                if self.last_stable_offset < before:
                    raise TransactionPending(
                        f"{self}: some of it was written since a transaction began that is not decided yet; try again"
                    )
                raise StorageError(f"{self}: nothing is deleted before the view has it, and the view is behind")
            applier.persist()
        except CorruptBatch:
            self.raise_floor(before)
        await trio.to_thread.run_sync(views.flush, limiter=self.disk_limiter)

    # --- its end

    async def close(self, error: KrappyError | None = None) -> None:
        """Writes what waits to be written, lets the view catch up, and closes the files cleanly.

        With an `error`, all later calls raise it, and the files are left open until `remove`: so a topic can be deleted
        on a full disk, where they can't be closed cleanly.
        """
        self.appender.close(error)
        if error is not None:
            self.applier.stop(error)
        self.applier.close()
        await self.appender.idle()
        await self.applier.finish()
        if error is not None:
            self.gone = error
            self.commit.end(error)  # in a cluster events may wait for replicas that are not there any more
            self.moved.fire()
            return
        if self.config.view and self.applier.failed is None and not self.offline:
            self.applier.persist()
        await trio.to_thread.run_sync(self.log.close, limiter=self.disk_limiter)

    async def remove(self) -> None:
        """Closes and deletes its files, after `close` with an error. Raises StorageError."""
        await trio.to_thread.run_sync(self.log.destroy, limiter=self.disk_limiter)
