"""A replica with its commit and its view: lookups and waiting for them; how a view begins and ends; and which of its
entries are absent when settings change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from krappy.broker.partition.applier import Applier
from krappy.broker.partition.commit import GroupCommit
from krappy.broker.partition.gone import unless_gone
from krappy.broker.partition.pending import Pending
from krappy.broker.partition.replica import Lent, Replica, Standing
from krappy.broker.partition.strays import Strays, ViewStrays
from krappy.broker.partition.undecided import Undecided
from krappy.core import retention
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import PartitionState
from krappy.entries.entry import entry_offset
from krappy.errors import KrappyError, StorageError, ViewDisabled
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log
from krappy.waiting import wait_any

T = TypeVar("T")
STEP = 1000  # entries that a sweep reads in one go: less than a millisecond
ROOM = 1 << 20  # bytes of entries after which a lookup of many keys stops
SURE_S, SURE_LOOK_S = 2.0, 0.01  # how long a lookup waits for the read lease, and how often it looks
PAUSE_S = 0.01  # between two steps of a sweep, which is in no hurry
LOOK_S = 0.1  # how often a sweep checks whether a snapshot is closed


class Swept:
    """The result of the last sweep over a view."""

    def __init__(self) -> None:
        self.below = 0  # the sweep removed all entries before this offset
        self.left = 0  # how many entries it left


class Viewed(Replica):
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
        super().__init__(lent, topic, index, number, config, log, standing)
        self.commit = GroupCommit(self)
        self.strays = strays  # the topic's
        self.undecided = Undecided(self)
        self.swept = Swept()
        self.floor = self.views.floor(number) if config.view else 0
        self.exact_from = 0  # see `note_holes`
        self.applier = self._applier(self._first_unapplied())

    def _applier(self, applied: int) -> Applier:
        """An applier that folds from this offset on."""
        self.exact_from = 0
        self._note_holes(applied, self.log.end_offset)
        return Applier(self, ViewStrays(self, self.strays, applied), applied)

    def lead(self, state: PartitionState, broker: int) -> None:
        super().lead(state, broker)
        self.strays.tell(self)

    @property
    def is_sure(self) -> bool:
        """Whether it `is_sure_leader`, and its topic has the partitions here that it has in the cluster (scattered.py).
        Only then may it tell what is true now. Raises NotLeader."""
        strays = self.strays
        return self.is_sure_leader() and (strays.mark is None or strays.mark.fits(strays.count))

    async def until_sure(self) -> None:
        """Waits until it `is_sure`. Raises NotLeader if that lasts longer than a lease: this broker may have been
        deposed, and not know it."""
        end = trio.current_time() + SURE_S
        while not self.is_sure:
            if trio.current_time() > end:
                raise self.unsure()
            await trio.sleep(SURE_LOOK_S)
            self._alive()

    def committed(self, offset: int, batches: Sequence[Pending]) -> None:
        super().committed(offset, batches)
        if self.config.view:
            assert self.applier.applied <= self.last_stable_offset <= self.high_watermark
            self.applier.committed(batches)
        else:
            self.applier.applied = self.high_watermark
        self.moved.fire()

    async def settled(self) -> None:
        """Returns when all of the log is committed, or nothing of it will be by this broker: because it does not lead
        any more, or can't write. Raises NotEnoughReplicas."""
        await self.commit.settled()
        await wait_any([self.moved, self.landed], lambda: self._is_settled)
        self.replicas.check_enough(self)

    @property
    def _is_settled(self) -> bool:
        replicas = self.replicas
        if self.gone is not None or self.log_failed or self.role is not Role.LEADER or not replicas.enough:
            return True
        return replicas.knows_end and self.high_watermark >= self.log.end_offset

    async def reshape(self, work: Callable[[], T]) -> T:
        """Runs `work`, which changes the log's segments, in a thread, while nothing is appended. Gives its result.
        Raises `gone`, also if the topic is deleted meanwhile."""
        async with self.writing:
            await self.commit.on_disk()  # what is not durable yet can't be expired
            self._alive()
            with unless_gone(self):
                done = await trio.to_thread.run_sync(work, limiter=self.disk_limiter)
        if self.config.view:
            self.applier.start()  # if a transaction is open, the log may now begin behind all that was folded
        return done

    # --- lookups

    @property
    def applied(self) -> int:
        return self.applier.applied

    def note_holes(self, upto: int) -> None:
        """To be called when the log has got events that lack some which compaction had removed. For each removed event
        there is a later event of its key before the offset `upto`.

        Until a view that is folded from such a log has come to the later event, it shows neither of the two, but an
        older entry of the key, or none. So before `exact_from` it is in a state that the table never had, and answers
        nothing."""
        self._note_holes(self.applied, upto)

    def _note_holes(self, applied: int, upto: int) -> None:
        if max(self.log.clean_upto, self.log.gone_below) > applied:
            self.exact_from = max(self.exact_from, upto)

    def view_target(self, min_offset: int | None) -> int:
        """The offset before which the view must have everything, to be `view_ready`."""
        stable = self.last_stable_offset
        if min_offset is None:
            return stable
        # Each removed event had a later event that was decided. So the view may also stop where a transaction is open.
        exact = self.exact_from if self.high_watermark < self.exact_from else min(self.exact_from, stable)
        return max(min_offset + 1, exact)

    @property
    def view_failed(self) -> KrappyError | None:
        """The error that keeps the view from being folded further, or None."""
        return self.applier.failed

    @property
    def expired_below(self) -> int:
        """Entries with a lower offset are absent: their events expired while cleanup.policy was delete."""
        return self.floor if self.config.compact else self.start_offset

    def view_ready(self, min_offset: int | None) -> bool:
        """Whether the view includes `min_offset`, and is as the table was at some time; None: whether it includes
        everything before the last stable offset. Raises ViewDisabled, and why the view or the partition has failed."""
        self._alive()
        if not self.config.view:
            raise self.no_view()
        if self.applier.failed is not None:
            raise self.applier.failed
        return self.applier.applied >= self.view_target(min_offset)

    def no_view(self) -> ViewDisabled:
        return ViewDisabled(f"the topic '{self.topic}' keeps no view: it has view.enable=false")

    async def view_wait(self, min_offset: int | None, seconds: float) -> bool:
        """Waits for `view_ready`. False when `seconds` passed first."""
        return self.view_ready(min_offset) or await self.applier.caught_up(self.view_target(min_offset), seconds)

    def look_up(self, key: bytes) -> bytes | None:
        """The packed entry of a key, or None. The caller has waited for the view."""
        entry = self.views.get(self.number, key)
        return self._living(entry) if self.expired_below else entry

    def look_up_some(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `look_up` for many keys, in order. Stops after the first keys if their entries are large."""
        found = self.views.get_some(self.number, keys, ROOM)
        if self.expired_below:
            return [self._living(entry) for entry in found]
        return found

    def _living(self, entry: bytes | None) -> bytes | None:
        if entry is not None and entry_offset(entry) < self.expired_below:
            return None
        return entry

    # --- its life

    async def flush_view(self, seconds: float = math.inf) -> None:
        """Returns once the view has everything before the last stable offset, on disk. Raises why it never will, and
        StorageError when it is still behind after `seconds`."""
        if self.config.view:
            if not await self.applier.caught_up(seconds=seconds):
                at, end = self.applied, self.last_stable_offset
                raise StorageError(f"{self}: the view is behind, after {seconds:g} s of waiting: at {at} of {end}")
            self.applier.persist()
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)

    def _first_unapplied(self) -> int:
        """The offset from which the view is folded after a restart.

        The log is the truth. If the view has events, or the end of a transaction, that the log has lost (by a power
        loss with durability "os", or a damaged disk), it is dropped and folded anew. The drop is on disk before the log
        grows again: after that, an old view that a crash brought back could not be told from a right one.

        A view that lacks events which were removed from the log is dropped too. Compaction, and a deletion under
        `compact`, wait until the view has them on disk; so its files were damaged since, or are an older copy, and
        tombstones of its keys may be gone from the log.
        """
        log, views, number = self.log, self.views, self.number
        if not self.config.view or self.offline:
            return self.high_watermark
        applied, lost = views.applied(number), log.recovery.lost_offsets
        end = self.last_stable_offset
        if applied > end or (applied and lost):
            self.report("view_ahead_of_log", applied=applied, end=end, lost=lost)
        elif 0 < applied < self._needed():
            self.report("view_older_than_log", applied=applied, clean=log.clean_upto, start=log.start_offset)
        else:
            return max(applied, log.start_offset) if applied else self._begin()
        views.drop(number)
        views.flush()
        self.floor = 0
        return self._begin()

    def _needed(self) -> int:
        """The offset up to which the view must have been on disk when events were removed from the log.

        A cleaning before the view was begun anew does not count: the view was folded from the cleaned log. Nor does
        what was removed below the floor: it is absent.
        """
        log = self.log
        cleaned = log.clean_upto if self.views.begun(self.number) < log.clean_upto else 0
        return max(cleaned, log.start_offset if self.config.compact and self.floor < log.start_offset else 0)

    def _begin(self) -> int:
        """The offset from which an empty view is folded. Stores that the view was begun after the last cleaning."""
        log = self.log
        if log.clean_upto:
            with suppress(StorageError):  # then a restart before it has caught up begins it once more
                self.views.note_begun(self.number, log.clean_upto)
        return log.start_offset

    async def prepare(self, config: TopicConfig) -> None:
        """Called before its topic gets these settings. If it raises StorageError, the topic must not get them."""
        if config.view and not self.config.view:  # nobody may find entries from before it was turned off
            await self._drop()
        await self._keep_absent(config)

    async def configure(self, config: TopicConfig) -> None:
        before = self.config
        if config.view and not before.view:  # nobody may look things up in what is not folded yet
            self.applier = self._applier(self._begin())
        self.config = self.log.config = config
        if before.view and not config.view:
            self.applier.stop(self.no_view())
            await self.applier.idle.wait()
            try:
                await self._drop()
            except StorageError as error:  # nobody reads it, and `prepare` drops it before it is turned on again
                self.report("view_waits", error)
            self.applier = self._applier(self.high_watermark)
        self.applier.start()

    async def _keep_absent(self, config: TopicConfig) -> None:
        """Called before its topic gets settings under which entries outlive their events. Entries that have expired by
        now must not come back, not even after a crash. This is on disk when it returns. Raises StorageError."""
        if self.config.view and outlives(self.config, config):
            if self.gone is not None:
                raise self.gone  # its log start is not known, so neither is what has expired
            self.raise_floor(self.start_offset)
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)

    def raise_floor(self, offset: int) -> None:
        """Makes entries before this offset absent from now on, under every policy."""
        self.floor = max(self.floor, offset)
        self.views.raise_floor(self.number, self.floor)

    async def _drop(self) -> None:
        """Drops the view, on disk if the disk takes it: a crash must not bring an old view back after retention has
        gone on without it."""
        self.floor, self.swept = 0, Swept()
        self.views.drop(self.number)
        try:
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)
        except StorageError as error:
            self.report("view_waits", error)

    async def drop_view(self) -> None:
        """The log was replaced, or has lost what was committed. Folds it anew from its start on."""
        self.undecided = Undecided(self)
        self.applier.stop(StorageError(f"{self}: its view is folded anew; try again"))
        await self.applier.idle.wait()
        if self.config.view:
            await self._drop()
        self.applier = self._applier(self._begin() if self.config.view else self.high_watermark)
        self.applier.start()

    def fold_anew(self) -> None:
        """Folds the log from its start on, after all views were deleted."""
        self.floor = 0
        self._fold_from(self._begin())

    def fold_on(self) -> None:
        """Folds what the view's files lack, after they were reopened."""
        self.floor = self.views.floor(self.number)
        self._fold_from(max(self.views.applied(self.number), self.log.start_offset))

    def _fold_from(self, offset: int) -> None:
        old, self.swept = self.applier, Swept()
        self.applier = self._applier(offset)
        old.close()  # ends the waits for it to catch up
        self.applier.start()

    async def sweep(self) -> int | None:
        """Removes expired entries from the view, if there may be many. Gives how many entries are left; None: it was
        not done. Raises StorageError.

        It waits for snapshots that are open when it begins, for they may show entries that have expired since.
        """
        swept, below, applier, views = self.swept, self.expired_below, self.applier, self.views
        if not self.config.view or not retention.must_sweep(below - swept.below, swept.left):
            return None
        before = views.open_snapshots()
        left, after = 0, None
        while True:
            while views.busy() or not all(snapshot.closed for snapshot in before):
                await trio.sleep(LOOK_S)
            if self.gone is not None or self.applier is not applier or applier.stopped:
                return None
            some, after = views.take_out_below(self.number, below, after, STEP)
            left += some
            if after is None:
                break
            await trio.sleep(PAUSE_S)
        swept.below, swept.left = below, left
        applier.strays.taken_out()
        return left


def outlives(before: TopicConfig, after: TopicConfig) -> bool:
    """Whether entries outlive their events under the settings `after`, and not under `before`. During such a change
    nothing is removed from the log (`Runtime.shrinking`): the view need not have events that are removed under the old
    settings, and must have those that are removed under the new ones. A view that the same change turns on would fold
    only a part of what is removed."""
    return after.compact and not before.compact
