"""A replica, its commit, and its view: lookups, waiting for them, and how a view begins, ends, and goes from one rule
of what is absent to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from krappy.broker.partition.applier import Applier
from krappy.broker.partition.commit import GroupCommit
from krappy.broker.partition.lent import Lent
from krappy.broker.partition.queued import Accepted
from krappy.broker.partition.replica import Replica
from krappy.broker.partition.strays import Strays, ViewStrays
from krappy.broker.partition.undecided import Undecided
from krappy.core import retention
from krappy.entries.entry import entry_offset
from krappy.errors import KrappyError, StorageError, ViewDisabled
from krappy.settings.topic import TopicConfig
from krappy.store.log import Log

T = TypeVar("T")
STEP = 1000  # entries looked at in one go by a sweep: less than a millisecond
ROOM = 1 << 20  # bytes of entries that are looked up at once, and of the last one all there are
PAUSE_S = 0.01  # between two of them: it is in no hurry
LOOK_S = 0.1  # between two looks whether a snapshot is closed


class Swept:
    """What the last sweep over a view came to."""

    def __init__(self) -> None:
        self.below = 0  # the offset below which no entry was left
        self.left = 0  # entries that were left


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
    ) -> None:
        super().__init__(lent, topic, index, number, config, log)
        self.commit = GroupCommit(self)
        self.strays = strays  # of its topic
        self.undecided = Undecided(self)
        self.swept = Swept()
        self.floor = self.views.floor(number) if config.view else 0
        self.applier = self._applier(self._first_unapplied())

    def _applier(self, applied: int) -> Applier:
        """One that folds from this offset on."""
        return Applier(self, ViewStrays(self, self.strays, applied), applied)

    def committed(self, accepted: list[Accepted]) -> None:
        super().committed(accepted)
        if self.config.view:
            assert self.applier.applied <= self.last_stable_offset <= self.high_watermark
            self.applier.committed(accepted)
        else:
            self.applier.applied = self.high_watermark
        self.moved.fire()

    async def reshape(self, work: Callable[[], T]) -> T:
        """Runs what changes the log's segments in a thread, between two appends to it."""
        async with self.writing:
            await self.commit.settled()  # what is not durable yet can't be expired
            self._alive()
            done = await trio.to_thread.run_sync(work, limiter=self.disk_limiter)
        if self.config.view:
            self.applier.start()  # beside an open transaction, the log may begin now behind all that was folded
        return done

    # --- lookups

    @property
    def applied(self) -> int:
        return self.applier.applied

    @property
    def view_failed(self) -> KrappyError | None:
        """What keeps the view from being folded further, if anything does."""
        return self.applier.failed

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

    def look_up_some(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The same for the first of many keys: for all, unless their entries are large."""
        found = self.views.get_some(self.number, keys, ROOM)
        if self.expired_below:
            return [self._living(entry) for entry in found]
        return found

    def _living(self, entry: bytes | None) -> bytes | None:
        if entry is not None and self.expired_below and entry_offset(entry) < self.expired_below:
            return None
        return entry

    # --- its life

    async def flush_view(self, seconds: float = math.inf) -> None:
        """Returns once the view holds everything committed now, on disk. Raises why it never will, and StorageError
        when it was still behind after so many seconds."""
        if self.config.view:
            if not await self.applier.caught_up(seconds=seconds):
                at, end = self.applied, self.last_stable_offset
                raise StorageError(f"{self}: the view is behind, after {seconds:g} s of waiting: at {at} of {end}")
            self.applier.persist()
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)

    def _first_unapplied(self) -> int:
        """Where folding goes on after a restart.

        A view that has seen events, or the end of a transaction, which the log does not have any more (a power loss
        with durability "os", a damaged disk) is dropped and folded anew, because the log is the truth. That is on disk
        before the log grows again: a view that a crash brought back could not be told from one that is right.

        So is one that is older than what has left the log: a cleaning, and a deletion under `compact`, wait until the
        view is on disk. Since then its files were damaged, or are an older copy, and the tombstones of its keys may be
        gone.
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
        """The offset up to which the view has been on disk, as the log tells: what is gone from it was in the view
        before.

        Not when the view was begun anew since: it was folded from what the log still had.
        """
        log = self.log
        cleaned = log.clean_upto if self.views.begun(self.number) < log.clean_upto else 0
        return max(cleaned, log.start_offset if self.config.compact else 0)

    def _begin(self) -> int:
        """Where a view without anything in it begins to be folded, which it notes."""
        log = self.log
        if log.clean_upto:
            with suppress(StorageError):  # a start that comes before it has caught up begins it once more, then
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
        """Before its topic gets settings under which entries outlive their events: those that have expired by now must
        not come back, by a crash neither. On disk when it returns. Raises StorageError."""
        if outlives(self.config, config):
            if self.gone is not None:
                raise self.gone  # what has expired in it is not known
            self.raise_floor(self.start_offset)
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)

    def raise_floor(self, offset: int) -> None:
        """Entries below this offset are absent from now on, under every policy."""
        self.floor = max(self.floor, offset)
        self.views.raise_floor(self.number, self.floor)

    async def _drop(self) -> None:
        """On disk when it returns, if the disk lets it: a crash must not bring an old view back where retention has
        gone on without it."""
        self.floor, self.swept = 0, Swept()
        self.views.drop(self.number)
        try:
            await trio.to_thread.run_sync(self.views.flush, limiter=self.disk_limiter)
        except StorageError as error:
            self.report("view_waits", error)

    def fold_anew(self) -> None:
        """Folds the log from its start on, since the views were thrown away."""
        self.floor = 0
        self._fold_from(self._begin())

    def fold_on(self) -> None:
        """Folds what the view has not in its files, which were opened anew."""
        self.floor = self.views.floor(self.number)
        self._fold_from(max(self.views.applied(self.number), self.log.start_offset))

    def _fold_from(self, offset: int) -> None:
        old, self.swept = self.applier, Swept()
        self.applier = self._applier(offset)
        old.close()  # who waited for it to have less to do waits no longer
        self.applier.start()

    async def sweep(self) -> int | None:
        """Takes what has expired out of the view, if that is worth it: how many entries are left. Raises StorageError.

        Snapshots that were taken before hold it up: they may show what has expired since. Later ones do not.
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
    """Whether entries that are absent under the settings `before` would be there under those `after`. From before the
    change is prepared until it is in force nothing is taken out of the log (`Runtime.shrinking`): what goes by the old
    settings need not stand in the view, and what goes by the new ones must."""
    return before.view and after.view and after.compact and not before.compact
