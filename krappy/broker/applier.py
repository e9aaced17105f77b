"""Folding a partition's log into its view.

The applier follows the high watermark: fresh batches come with their columns already decoded, anything older is
read back from the log, which is also how a restart catches up: live path and recovery are one loop. RocksDB's
write holds the GIL, so an apply is at most `SLICE` records and yields to the event loop between.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import trio

from krappy import batch as batches
from krappy.batch import Columns
from krappy.entry import pack_columns
from krappy.errors import CorruptBatch, KrappyError, StorageError
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.partition import Partition
    from krappy.broker.queued import Accepted

SLICE = 500  # records of one WriteBatch
KEPT = 8 << 20  # bytes of decoded batches held for the applier; beyond, it reads the log
READ = 1 << 20
RETRY_S = 1.0  # pause after the disk refused an apply


class Applier:
    def __init__(self, partition: Partition, applied: int) -> None:
        self._partition = partition
        self.applied = applied  # the next offset to fold in: everything below is in the view
        self._fresh: deque[tuple[int, Columns, int]] = deque()  # (base offset, columns, bytes)
        self._kept = 0
        self._lag = 0  # bytes committed and not applied yet
        self._running = False
        self.failed: KrappyError | None = None
        self._stopped = False
        self._closing = False
        self.moved = Signal()
        self.idle = trio.Event()
        self.idle.set()

    @property
    def behind(self) -> bool:
        return self.applied < self._partition.high_watermark

    def committed(self, accepted: list[Accepted]) -> None:
        """Tells of batches that have just become readable."""
        for item in accepted:
            self._lag += item.header.size
            if item.columns is not None and self._kept < KEPT:
                self._kept += item.header.size
                self._fresh.append((item.offset, item.columns, item.header.size))
        self.start()

    def start(self) -> None:
        if not self._running and self.behind and self.failed is None and not self._stopped:
            self._running = True
            self.idle = trio.Event()
            self._partition.spawn(self._run)

    def stop(self) -> None:
        """Folds no further; used when the view is turned off."""
        self._stopped = True
        self._lag = 0
        self.moved.fire()

    async def caught_up(self, offset: int | None = None, seconds: float = math.inf) -> bool:
        """Waits until everything below `offset` (the high watermark of now by default) is in the view."""
        target = self._partition.high_watermark if offset is None else offset
        done = await wait_any([self.moved], lambda: self.applied >= target or self.failed is not None, seconds)
        if self.failed is not None:
            raise self.failed
        return done

    async def within(self, lag: int) -> None:
        """Waits until at most `lag` bytes wait to be applied."""
        await wait_any([self.moved], lambda: self._lag <= lag or self.failed is not None)

    async def _run(self) -> None:
        partition = self._partition
        try:
            while self.behind and not self._stopped:
                try:
                    await self._step()
                except CorruptBatch as error:
                    # The log is the truth: what can't be read can't be folded. Lookups of this partition fail with
                    # the same error, which names the file and the position; everything else goes on.
                    self.failed = error
                    partition.report("view_failed", error)
                    break
                except StorageError as error:
                    # A full disk, say: RocksDB goes on by itself once there is room, and so does this.
                    partition.report("view_waits", error)
                    if self._closing:
                        break
                    await trio.sleep(RETRY_S)
        finally:
            self._running = False
            self.idle.set()
            self.moved.fire()

    async def _step(self) -> None:
        if self._fresh and self._fresh[0][0] <= self.applied:
            await self._apply_fresh()
        else:
            await self._apply_from_log()
        if not self.behind:
            self._lag = 0
        self.moved.fire()

    async def finish(self) -> None:
        """Catches up if the disk lets it, and ends."""
        self._closing = True
        await self.idle.wait()

    async def _apply_fresh(self) -> None:
        """One slice out of the batches in memory: several small ones together, or a part of a large one."""
        entries: dict[bytes, bytes] = {}
        count = done = 0
        applied = self.applied
        while self._fresh and self._fresh[0][0] <= applied and count < SLICE:  # a gap is the log's to fill
            base, columns, size = self._fresh[0]
            total = len(columns.keys)
            start = applied - base
            stop = min(total, start + SLICE - count)
            if start < stop:
                entries.update(_packed(columns, range(base, base + total), start, stop))
                count += stop - start
                applied = base + stop
            if stop >= total:
                self._fresh.popleft()
                self._kept -= size
                done += size
        await self._store(entries, applied)
        self._lag = max(0, self._lag - done)
        await trio.lowlevel.checkpoint()

    async def _apply_from_log(self) -> None:
        partition = self._partition
        stop_at = min(partition.high_watermark, self._fresh[0][0] if self._fresh else partition.high_watermark)
        self.applied = max(self.applied, partition.log.start_offset)
        data = (await partition.read(self.applied, READ, limit=stop_at)).data
        if not data:
            self.applied = stop_at
            return
        for header, view in batches.split(data):
            if header.next_offset <= self.applied:
                continue
            if not header.is_control:
                columns = batches.decode(view)
                offsets = columns.offsets
                start = next((i for i, offset in enumerate(offsets) if offset >= self.applied), len(offsets))
                while start < len(offsets):
                    stop = min(len(offsets), start + SLICE)
                    await self._store(_packed(columns, offsets, start, stop), offsets[stop - 1] + 1)
                    start = stop
                    await trio.lowlevel.checkpoint()
            self.applied = max(self.applied, header.next_offset)
            self._lag = max(0, self._lag - header.size)
            self.moved.fire()

    async def _store(self, entries: dict[bytes, bytes], applied: int) -> None:
        if entries:
            while self._partition.views.busy():  # flushes are behind: wait here rather than inside RocksDB
                await trio.sleep(0.005)
            self._partition.views.apply(self._partition.number, entries, applied)
        self.applied = applied

    def persist(self) -> None:
        """Writes the applied offset itself, so that keyless batches at the end are not read again."""
        self._partition.views.apply(self._partition.number, {}, self.applied)


def _packed(columns: Columns, offsets: object, start: int, stop: int) -> dict[bytes, bytes]:
    return pack_columns(offsets, columns.timestamps, columns.keys, columns.values, columns.headers, start, stop)  # type: ignore[arg-type]
