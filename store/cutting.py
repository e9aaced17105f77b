"""Taking events away from a partition's log: the oldest, for retention."""

from __future__ import annotations

from krappy.store.format import SUFFIXES
from krappy.store.pool import POOL
from krappy.store.refusals import refusals
from krappy.store.segment import SegmentInfo
from krappy.store.writing import WritableLog


class CuttableLog(WritableLog):
    """The part of `Log` that makes it shorter."""

    def delete_before(self, offset: int) -> list[SegmentInfo]:
        """Moves the start of the log up to `offset` (at most its end) and removes the closed segments before it.

        The new start is durable before a file goes. Returns what went. Blocks. Raises StorageError.
        """
        with self._shaping:
            offset = min(offset, self.end_offset)
            if offset <= self._start:
                return []
            self._save(offset)
            with self._lock:
                self._start = offset
                self.producers.stability.forget(offset)
                gone = [segment for segment in self._segments.closed if segment.next_offset <= offset]
                self._segments = self._segments.without(gone)
            with refusals(self.folder):
                for segment in gone:
                    segment.retired = True
                    POOL.discard(segment)
                    for suffix in SUFFIXES:
                        self._disk.unlink(segment.path(suffix))
            return [segment.info() for segment in gone]
