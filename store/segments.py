"""The segments of a log as its readers see them: an immutable row, replaced as a whole when a segment comes or goes.

A reader takes the row once and keeps it. Segments that were replaced stay readable (they keep their files open); one
that was deleted raises FileNotFoundError, and the reader starts again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from krappy.core.retention import SegmentInfo
from krappy.store import latest_time
from krappy.store.disk import File
from krappy.store.segment import Segment
from krappy.types import Span


class Segments:
    __slots__ = ("_bases", "_row")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._row = tuple(segments)
        self._bases = tuple(segment.base_offset for segment in segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._row)

    @property
    def closed(self) -> tuple[Segment, ...]:
        return self._row[:-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._row)

    def proofs(self) -> list[tuple[int, int]]:
        """(base offset, proof) of each segment that has one."""
        return [(segment.base_offset, segment.proof) for segment in self._row if segment.proof is not None]

    def infos(self) -> tuple[SegmentInfo, ...]:
        return tuple(segment.info() for segment in self._row)

    def plus(self, segment: Segment) -> Segments:
        return Segments((*self._row, segment))

    def without(self, segments: Sequence[Segment]) -> Segments:
        return Segments([segment for segment in self._row if segment not in segments])

    def replaced(self, old: Sequence[Segment], new: Segment) -> Segments | None:
        """The row with `new` in the place of these neighbours; None if one of them is not in the row any more."""
        if not all(segment in self._row for segment in old):
            return None
        at = self._row.index(old[0])
        return Segments((*self._row[:at], new, *self._row[at + len(old) :]))

    def _from(self, offset: int, stop: int) -> Iterator[Segment]:
        """The segments that may hold offsets from `offset` on, below `stop`."""
        if offset < stop:
            for segment in self._row[max(0, bisect_right(self._bases, offset) - 1) :]:
                if segment.base_offset >= stop:
                    return
                yield segment

    def read(
        self, offset: int, max_bytes: int, stop: int, max_records: int | None, nowait: bool, min_one: bool
    ) -> Span:
        """As `Log.read_span`. Raises CorruptBatch, BlockingIOError, OSError."""
        for segment in self._from(offset, stop):
            span = segment.read(offset, max_bytes, stop, max_records=max_records, nowait=nowait, min_one=min_one)
            if span.data or (offset < segment.next_offset and not min_one):
                return span
        return Span(b"", offset, 0)

    def locate(self, offset: int, max_bytes: int, stop: int, nowait: bool = False) -> list[tuple[File, int, int]]:
        """As `Log.locate`. Raises CorruptBatch, BlockingIOError, OSError."""
        places: list[tuple[File, int, int]] = []
        for segment in self._from(offset, stop):
            if max_bytes <= 0:
                break
            size = segment.size
            position, _ = segment.find(offset, nowait=nowait)
            until = segment.end_below(stop) if stop < segment.next_offset else size
            if position < until:
                length = until - position
                if length > max_bytes:
                    length = segment.whole(position, max_bytes)
                    if not places:
                        length = max(length, segment.batch_size(position))
                proven = segment.proven(position, length, first=not places, nowait=nowait)
                if proven:
                    places.append((segment.handle().file, position, proven))
                if proven < length:
                    break
                max_bytes -= length
        return places

    def find_timestamp(self, timestamp: int, start: int, stop: int) -> tuple[int, int] | None:
        """As `Log.find_timestamp`. Raises CorruptBatch, OSError."""
        for segment in self._from(start, stop):
            found = segment.find_timestamp(timestamp, start, stop)
            if found:
                return found
        return None

    def find_latest(self, start: int, stop: int) -> tuple[int, int] | None:
        """As `Log.find_latest`. Raises CorruptBatch, OSError."""
        some = list(self._from(start, stop))
        highest = max((segment.max_timestamp for segment in some), default=-1)
        if highest < 0:
            return None
        return self.find_timestamp(highest, start, stop) or latest_time.search(some, start, stop)
