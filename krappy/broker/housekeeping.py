"""What a broker does by itself, now and then: roll, expire, compact, forget. core/retention.py decides, this does it.

Whatever takes events out of a log first flushes the view past them: a view that a crash throws back could not
fold again what the log does not have any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition import Partition
from krappy.broker.table import SCAN_IDLE_MS
from krappy.core import retention
from krappy.entry import entry_offset, is_tombstone
from krappy.errors import KrappyError
from krappy.store.cleaner import Candidate
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.broker import Broker

SCAN_CHECK_S = 10.0
LOOK_UP = 1000  # keys asked of the view at a time


class Housekeeper:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run(self) -> None:
        """Until cancelled."""
        looked = cleaned = trio.current_time()
        while True:
            config = self._broker.config  # some of it may change while the broker runs
            look_at, clean_at = looked + config.retention_check_ms / 1000, cleaned + config.cleaner_backoff_ms / 1000
            await self._rest(min(SCAN_CHECK_S, max(0.0, min(look_at, clean_at) - trio.current_time())))
            self._close_idle_scans()
            await self._reclaim()
            await self._tend_staging()
            if trio.current_time() >= look_at:
                await self.look(self.tend)
                looked = cleaned = trio.current_time()
            elif trio.current_time() >= clean_at:
                await self.look(self.compact)
                cleaned = trio.current_time()

    async def _rest(self, seconds: float) -> None:
        """Until then, or until settings change."""
        broker, config = self._broker, self._broker.config
        await wait_any([broker.dynamic.changed], lambda: broker.config is not config, seconds)

    def _close_idle_scans(self) -> None:
        now = self._broker.now_ms()
        for scan in [scan for scan in self._broker.scans if now - scan.used_ms > SCAN_IDLE_MS]:
            scan.close()

    async def _tend_staging(self) -> None:
        try:
            await self._broker.staging.tend()
        except KrappyError as error:
            self._broker.report("housekeeping_failed", part="staging", error=str(error))

    async def _reclaim(self) -> None:
        """Gives the disk space of deleted topics' views back. Without this it would go with some later compaction."""
        broker = self._broker
        await broker.finish_deletions()
        while broker.dropped_views:
            number = broker.dropped_views.pop()
            try:
                await trio.to_thread.run_sync(broker.views.reclaim, number, limiter=broker.disk_limiter)
            except KrappyError as error:
                broker.report("view_not_reclaimed", number=number, error=str(error))

    async def look(self, work: Callable[[Partition], Awaitable[None]] | None = None) -> None:
        """One round over all partitions, for `work`, or for all there is to do.

        What fails in one is reported and keeps none of the others waiting.
        """
        self._broker.latest.sets.expire()
        for topic in list(self._broker.topics.values()):
            for partition in list(topic.partitions):
                try:
                    async with self._broker.shrinking:
                        if partition.gone is None:
                            await (work or self.tend)(partition)
                except KrappyError as error:
                    self._broker.report("housekeeping_failed", partition=str(partition), error=str(error))
                except Exception:  # a mistake of ours, which must not end housekeeping for all the others
                    self._broker.report("internal_error", task=f"housekeeping of {partition}", exc_info=True)
                await trio.lowlevel.checkpoint()

    async def tend(self, partition: Partition) -> None:
        """Retention and compaction of one partition, as its settings and the clock want it."""
        log, config = partition.log, partition.config
        now = self._broker.now_ms()
        if retention.is_old(config, log.segments[-1], now):
            await partition.reshape(log.roll)
        count = retention.expired(config, log.segments, now)
        if partition.stability.open:  # what is not decided has not been folded into the view
            stable = partition.last_stable_offset
            count = min(count, sum(segment.next_offset <= stable for segment in log.segments))
        if count == len(log.segments):
            await partition.reshape(log.roll)
        if count:
            before = log.segments[count - 1].next_offset
            await partition.flush_view()
            gone = await partition.reshape(lambda: log.delete_before(before))
            self._broker.report("segments_deleted", partition=str(partition), count=len(gone), start=before)
        await self.compact(partition)
        log.producers.expire(now, self._broker.config.producer_id_expiration_ms)
        if log.unsaved_bytes:  # with durability "os" nothing else checkpoints before the end
            await partition.reshape(log.checkpoint)

    async def compact(self, partition: Partition) -> None:
        """Compaction of one partition, when there is enough to win."""
        log, now = partition.log, self._broker.now_ms()
        if retention.must_clean(partition.config, log.segments, log.clean_upto, now):
            await self.clean(partition, now)

    async def clean(self, partition: Partition, now: int) -> None:
        """Compacts the closed segments of a partition, with its view as the offset map."""
        log, config, views, number = partition.log, partition.config, partition.views, partition.number
        upto = min(retention.cleanable_upto(config, log.segments, now), partition.last_stable_offset)
        await partition.flush_view()
        forgotten: list[tuple[bytes, int]] = []

        def survives(records: list[Candidate]) -> list[bool]:
            kept: list[bool] = []
            for start in range(0, len(records), LOOK_UP):
                some = records[start : start + LOOK_UP]
                found = iter(views.get_many(number, [key for key, *_ in some if key is not None]))
                for key, offset, tombstone, horizon in some:
                    if key is None:
                        kept.append(False)  # as Kafka's cleaner: a compacted log has no place for it
                        continue
                    entry = next(found)
                    latest = None if entry is None else entry_offset(entry)
                    keep = retention.survives(latest, offset, tombstone, horizon, now)
                    if tombstone and not keep and latest == offset:
                        forgotten.append((key, offset))
                    kept.append(keep)
            return kept

        result = await trio.to_thread.run_sync(
            lambda: log.clean(survives, upto, now), limiter=self._broker.disk_limiter
        )
        partition.stability.drop(result.markers)
        # The log first, then the view: the other way round a crash between the two could bring a deleted key back.
        for start in range(0, len(forgotten), LOOK_UP):
            self._forget(partition, forgotten[start : start + LOOK_UP])
            await trio.lowlevel.checkpoint()
        self._broker.report(
            "log_cleaned",
            partition=str(partition),
            before=result.bytes_before,
            after=result.bytes_after,
            removed=result.records_removed,
        )

    def _forget(self, partition: Partition, tombstones: list[tuple[bytes, int]]) -> None:
        """Takes tombstones that the log has lost out of the view, unless their keys have come back meanwhile."""
        found = partition.views.get_many(partition.number, [key for key, _ in tombstones])
        deletes = [
            key
            for (key, offset), entry in zip(tombstones, found, strict=True)
            if entry is not None and is_tombstone(entry) and entry_offset(entry) == offset
        ]
        if deletes:
            partition.views.apply(partition.number, {}, partition.applied, deletes)
