"""The batches of one append that go to one segment: gathered, written by one call, then made visible."""

from __future__ import annotations

from krappy.records.batch import LENGTH_END, STAMPED, BatchHeader, stamp
from krappy.store.disk import Buffer
from krappy.store.producers import ProducerStates
from krappy.store.segment import Segment


class AppendRun:
    __slots__ = ("_batches", "_buffers", "end", "segment", "start")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.start = self.end = segment.size  # in the file
        self._buffers: list[Buffer] = []
        self._batches: list[tuple[int, BatchHeader, int, Buffer]] = []  # base offset, header, position, bytes

    def add(self, header: BatchHeader, data: Buffer, offset: int, epoch: int) -> None:
        """Adds a batch with this base offset and leader epoch; its other bytes are neither copied nor changed."""
        self._buffers.append(stamp(header, offset, epoch))
        self._buffers.append(memoryview(data)[STAMPED:])
        self._batches.append((offset, header, self.end, data))
        self.end += len(data)

    def write(self) -> None:
        """Writes the run. Raises OSError; then a part may be in the file, behind the segment's `size`."""
        if self._buffers:
            self.segment.file.write(self._buffers, self.start)

    def publish(self, producers: ProducerStates, now_ms: int) -> None:
        """Makes the written batches part of the segment, and notes them in `producers`."""
        segment = self.segment
        indexer, base = segment.indexer, segment.base_offset
        assert indexer is not None
        if self._batches and not segment.size:
            segment.created_ms = now_ms
        if self._batches:
            segment.appended_ms = max(now_ms, segment.appended_ms or now_ms)  # the clock may have been set back
        last = segment.next_offset - 1
        for offset, header, position, data in self._batches:
            last = offset + header.last_offset_delta
            indexer.note(last - base, position, header.length + LENGTH_END, header.max_timestamp)
            if header.producer_id >= 0:
                producers.apply(header, offset, now_ms, data)
        segment.max_timestamp = indexer.max_timestamp
        segment.size = self.end
        segment.next_offset = last + 1
