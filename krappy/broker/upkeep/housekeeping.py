"""A broker's periodic work: roll segments, expire events, compact, forget. core/retention.py decides, this does it.

A partition whose disk or view prevents that is skipped until the next round. If its disk hangs, the others are looked
after all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.broker.tables.table import SCAN_IDLE_MS
from krappy.broker.upkeep import cleaning
from krappy.broker.upkeep.log_places import LogPlaces
from krappy.core import retention
from krappy.core.throttle import Throttle
from krappy.errors import KrappyError, UnknownTopic
from krappy.waiting import HANGS_S, Errands, Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.latest.latest import LatestTables
    from krappy.broker.runtime import Runtime
    from krappy.broker.staging.staging import StagingCoordinator
    from krappy.broker.topics.topic_changes import TopicChanges

SCAN_CHECK_S = 10.0
STILL_S = 60.0  # a compaction without a step for so long hangs: others are done beside it


class Housekeeper:
    def __init__(
        self, runtime: Runtime, changes: TopicChanges, staging: StagingCoordinator, latest: LatestTables
    ) -> None:
        self._runtime = runtime
        self._changes = changes
        self._staging = staging
        self._latest = latest
        self._throttle = Throttle()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            errands: Errands[Partition | str] = Errands(nursery, HANGS_S, lambda _: None)
            ended = Signal()
            compactions: Errands[Partition] = Errands(nursery, STILL_S, lambda _: ended.fire())

            async def retain(partition: Partition) -> None:
                await errands.run({partition: partial(self._attempt, self.retain, partition)})

            nursery.start_soon(self._every, lambda: self._runtime.config.retention_check_ms, retain)

            async def compact(partition: Partition) -> None:
                if not self._is_dirty(partition):
                    return
                steps = self._throttle.steps
                await compactions.run({partition: partial(self._attempt, self.compact, partition)})
                while partition in compactions and steps != self._throttle.steps:
                    steps = self._throttle.steps
                    await wait_any([ended], lambda: partition not in compactions, STILL_S)

            nursery.start_soon(self._every, self._compaction_ms, compact)
            nursery.start_soon(self._every, lambda: self._runtime.config.retention_check_ms, self.sweep)
            nursery.start_soon(LogPlaces(self._runtime).run)
            while True:
                await trio.sleep(min(SCAN_CHECK_S, self._compaction_ms() / 1000))
                self._close_idle_scans()
                self._tell_damage()
                self._latest.sets.expire()
                await errands.run({"deleted topics": self._reclaim, "staged jobs": self._tend_staging})

    def _compaction_ms(self) -> int:
        return min(self._runtime.config.cleaner_backoff_ms, self._runtime.config.retention_check_ms)

    async def _every(self, period_ms: Callable[[], int], work: Callable[[Partition], Awaitable[None]]) -> None:
        while True:
            looked = trio.current_time()
            while (left := looked + period_ms() / 1000 - trio.current_time()) > 0:
                await self._rest(left)
            await self.look(work)

    async def _rest(self, seconds: float) -> None:
        """Sleeps for `seconds`, or until settings change."""
        runtime, config = self._runtime, self._runtime.config
        await wait_any([runtime.settings_changed], lambda: runtime.config is not config, seconds)

    def _close_idle_scans(self) -> None:
        now = self._runtime.clock.steady_ms()
        for scan in [scan for scan in self._runtime.scans if now - scan.used_ms > SCAN_IDLE_MS]:
            scan.close()

    def _tell_damage(self) -> None:
        for partition in self._runtime.topics.local():
            if partition.log.damage:
                partition.tell_damage()

    async def _tend_staging(self) -> None:
        try:
            await self._staging.tend()
        except KrappyError as error:
            self._runtime.report("housekeeping_failed", part="staging", error=str(error))

    async def _reclaim(self) -> None:
        """Frees the disk space of deleted topics' views, which would otherwise wait for some later compaction."""
        runtime = self._runtime
        await self._changes.finish_deletions()
        while runtime.dropped_views:
            number = runtime.dropped_views.pop()
            try:
                await trio.to_thread.run_sync(runtime.views.reclaim, number, limiter=runtime.disk_limiter)
            except KrappyError as error:
                runtime.report("view_not_reclaimed", number=number, error=str(error))

    async def look(self, work: Callable[[Partition], Awaitable[None]]) -> None:
        """One round of `work` over all partitions; none while the data folder is away."""
        if self._runtime.room.away:
            return
        for topic in list(self._runtime.topics.values()):
            for partition in list(topic.local.values()):
                await self._attempt(work, partition)
                await trio.lowlevel.checkpoint()

    async def _attempt(self, work: Callable[[Partition], Awaitable[None]], partition: Partition) -> None:
        """An error in one partition is reported, and the others go on."""
        try:
            if partition.gone is None:
                await work(partition)
        except UnknownTopic:
            pass  # it was deleted meanwhile
        except KrappyError as error:
            self._runtime.report("housekeeping_failed", partition=str(partition), error=str(error))
        except Exception:  # a bug of ours, which must not end housekeeping for the others
            self._runtime.report("internal_error", task=f"housekeeping of {partition}", exc_info=True)

    async def tend(self, partition: Partition) -> None:
        """Retention and compaction of one partition, if due."""
        await self.retain(partition)
        await self.compact(partition)

    async def retain(self, partition: Partition) -> None:
        """Closes an old active segment, deletes expired segments, forgets producers that were silent for long."""
        log = partition.log
        if partition.retains():
            gone = await partition.retain()
            if gone:
                start = partition.start_offset
                self._runtime.report("segments_deleted", partition=str(partition), count=len(gone), start=start)
        # Producers' times are the wall clock's. If that was set, forget them too late rather than too early. Nobody can
        # see that it was set while the broker was down.
        clock = self._runtime.clock
        now, life = min(clock.now_ms(), clock.steady_ms()), self._runtime.config.producer_id_expiration_ms
        publishing = self._staging.owners  # only these states tell what of their jobs the log has already
        if clock.ran_ms > life and log.producers.silent(now, life, publishing):
            await partition.reshape(lambda: log.producers.expire(now, life, publishing))
        if log.unsaved_bytes:  # with durability "os" nothing else checkpoints before the end
            await partition.reshape(log.checkpoint)

    async def sweep(self, partition: Partition) -> None:
        """Removes entries of expired events from its view, if there may be many, and looks for strays if needed."""
        partition.applier.strays.tend()
        left = await partition.sweep()
        if left is not None:
            self._runtime.report("view_swept", partition=str(partition), below=partition.swept.below, left=left)

    async def compact(self, partition: Partition) -> None:
        """Compaction of one partition, if it frees enough."""
        if self._is_dirty(partition):
            await self.clean(partition, self._runtime.now_ms())

    def _is_dirty(self, partition: Partition) -> bool:
        log = partition.log
        return retention.must_clean(partition.config, log.segments, log.clean_upto, self._runtime.now_ms())

    async def clean(self, partition: Partition, now: int) -> None:
        """Compacts the closed segments of a partition, even if it frees little. `now` in ms."""
        try:
            await cleaning.clean(self._runtime, partition, now, self._throttle)
        except KrappyError:
            if partition.gone is None:
                raise
