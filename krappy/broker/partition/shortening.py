"""How events are deleted from the start of a log, by retention and by DeleteRecords.

The new start of the log must be decided while the partition's lock for writing is held: across an await, events may be
appended and settings may change. But the view must be made ready first, which may take long. So there are three steps:

1. Under the lock: decide. If the active segment is to be deleted too, it is closed in this step; later events go to the
   next one.
2. Without the lock: make the view ready to lose these events.
3. Under the lock: decide again, and delete what both decisions allow. If the settings have changed, or the view was
   begun anew, begin again. Neither can come in this step: a change after which the view outlives its events, and the
   making anew of damaged views, hold `Runtime.shrinking` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.viewed import Viewed
from krappy.core import retention
from krappy.errors import CorruptBatch, OffsetOutOfRange, PolicyViolation, StorageError, TransactionPending

if TYPE_CHECKING:
    from krappy.broker.partition.applier import Applier
    from krappy.core.retention import SegmentInfo
    from krappy.settings.topic import TopicConfig

DELETE_ALL = -1  # stands for the high watermark in DeleteRecords of either protocol
PATIENCE_S = 20.0  # the longest wait for a view that is behind; then a client gets an error, housekeeping tries later


class Shortening:
    def __init__(self, partition: Viewed) -> None:
        self._partition = partition

    def retains(self) -> bool:
        """Whether retention has anything to do. A guess without the lock; `retain` decides."""
        partition = self._partition
        log = partition.log
        return self._retention() != retention.ShorteningPlan(False, log.start_offset)

    async def retain(self) -> list[SegmentInfo]:
        """Closes the active segment if it is old enough, and deletes expired segments. Gives those that it deleted.
        Raises StorageError."""
        partition = self._partition

        def decide() -> int:
            found = self._retention()
            if found.roll:
                partition.log.roll()
            return found.start

        return await self._shorten(decide)

    def _retention(self) -> retention.ShorteningPlan:
        partition = self._partition
        # Events after the last stable offset have not been folded into the view.
        log, stable = partition.log, partition.last_stable_offset
        return retention.shortening(partition.config, log.segments, log.start_offset, stable, partition.now_ms())

    async def delete_records(self, before: int) -> None:
        """As `Partition.delete_records`."""
        partition = self._partition
        self.check_deletable(before)
        wanted = partition.high_watermark if before == DELETE_ALL else before

        def decide() -> int:
            self.check_deletable(wanted)
            if wanted >= partition.log.end_offset > partition.start_offset:
                partition.log.roll()  # so that the last events can be deleted from the disk too
            return wanted

        if wanted > partition.start_offset:
            await self._shorten(decide)

    def check_deletable(self, before: int) -> None:
        """Raises PolicyViolation, OffsetOutOfRange, and the partition's `gone` if it is closed."""
        partition = self._partition
        if partition.gone is not None:
            raise partition.gone
        if partition.config.compact and not partition.config.delete:
            raise PolicyViolation(
                f"{partition}: events of a topic with cleanup.policy=compact are deleted by tombstones and compaction "
                "alone"
            )
        end = partition.high_watermark
        if before != DELETE_ALL and not 0 <= before <= end:
            raise OffsetOutOfRange(
                f"{partition}: events can be deleted up to the high watermark, {end}, not up to {before}",
                start=partition.start_offset,
                end=end,
            )

    async def _shorten(self, decide: Callable[[], int]) -> list[SegmentInfo]:
        """Moves the start of the log up to the offset that `decide` gives. `decide` is called in a thread, while
        nothing is appended."""
        partition = self._partition
        while True:
            config, applier = partition.config, partition.applier
            wanted = await partition.reshape(decide)
            if wanted <= partition.start_offset:
                return []
            await self._ready_view(config, wanted)

            def delete(
                config: TopicConfig = config, applier: Applier = applier, wanted: int = wanted
            ) -> list[SegmentInfo] | None:
                wanted = min(wanted, decide())
                same = partition.config == config and partition.applier is applier
                return partition.log.delete_before(wanted) if same else None

            async with partition.shrinking:
                gone = await partition.reshape(delete)
            if gone is not None:
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
        partition = self._partition
        if not config.view or not config.compact:
            return
        applier, views = partition.applier, partition.views
        try:
            if not await applier.caught_up(before, PATIENCE_S):
                if partition.last_stable_offset < before:
                    raise TransactionPending(
                        f"{partition}: some of it was written beside a transaction that is not decided yet; try again"
                    )
                raise StorageError(f"{partition}: nothing is deleted before the view has it, and that is behind")
            applier.persist()
        except CorruptBatch:
            partition.raise_floor(before)
        await trio.to_thread.run_sync(views.flush, limiter=partition.disk_limiter)
