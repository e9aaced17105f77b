"""How events leave a log at its start, by retention and by DeleteRecords.

Where the log is to start is decided while the partition's lock for writing is held, in the same step as the deed: what
was seen before an await may not be so after it, for events were appended or settings changed. So there are three steps:

1. Under the lock: decide. Where the active segment is to go as well, it is closed in this step; events that come later
   are in the next one.
2. Without it: the view is made ready to lose these events, which may take long.
3. Under the lock: decide again, and delete what both decisions say. If the settings are others now, begin anew. They
   become no others meanwhile where that matters: who makes the view outlive its events holds `Runtime.shrinking` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.viewed import Viewed
from krappy.core import retention
from krappy.errors import CorruptBatch, OffsetOutOfRange, PolicyViolation, StorageError, TransactionPending

if TYPE_CHECKING:
    from krappy.core.retention import SegmentInfo
    from krappy.settings.topic import TopicConfig

DELETE_ALL = -1  # for the high watermark, as DeleteRecords of either protocol writes it
PATIENCE_S = 20.0  # with a view that is behind: until the next round of housekeeping, or an error for a client


class Shortening:
    def __init__(self, partition: Viewed) -> None:
        self._partition = partition

    def retains(self) -> bool:
        """Whether retention has anything to do: a look without the lock, which decides nothing."""
        partition = self._partition
        log = partition.log
        return self._retention() != retention.ShorteningPlan(False, log.start_offset)

    async def retain(self) -> list[SegmentInfo]:
        """Closes a segment that is old and takes away what has expired; the segments that went. Raises StorageError."""
        partition = self._partition

        def decide() -> int:
            found = self._retention()
            if found.roll:
                partition.log.roll()
            return found.start

        return await self._shorten(decide)

    def _retention(self) -> retention.ShorteningPlan:
        partition = self._partition
        # What is not decided has not been folded into the view.
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
                partition.log.roll()  # so that everything goes from the disk
            return wanted

        if wanted > partition.start_offset:
            await self._shorten(decide)

    def check_deletable(self, before: int) -> None:
        """Raises PolicyViolation, OffsetOutOfRange, what the partition has become."""
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
        """Moves the start of the log up to where `decide` says, which a thread asks while nothing is appended."""
        partition = self._partition
        while True:
            config = partition.config
            wanted = await partition.reshape(decide)
            if wanted <= partition.start_offset:
                return []
            await self._ready_view(config, wanted)

            def delete(config: TopicConfig = config, wanted: int = wanted) -> list[SegmentInfo] | None:
                wanted = min(wanted, decide())
                return None if partition.config != config else partition.log.delete_before(wanted)

            async with partition.shrinking:
                gone = await partition.reshape(delete)
            if gone is not None:
                return gone

    async def _ready_view(self, config: TopicConfig, before: int) -> None:
        """Sees to it that the view does without the events below `before`. Raises StorageError and TransactionPending
        when it can't just now.

        Under `delete` alone it always does, in whatever state a crash leaves it: its entries of events that are not in
        the log any more are absent, and folding goes on at the log's start. Where entries outlive their events, the
        view must have folded these, durably: else it would go on showing what they had overtaken. So what an open
        transaction holds back is waited for. What can't be folded, since the log is damaged, is lost to the table too,
        and so is what came before it: nobody knows which entries it overtook.
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
