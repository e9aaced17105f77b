"""Removing events from a partition's log: the oldest ones by retention, the last ones by truncation.

A follower truncates its log where the leader's differs. An error, a kill or a loss of power may stop a truncation
between any two of its steps, and reads run at the same time. Either all of the log stays, or nothing behind the new
end. The steps, in this order:

1. All is synced. The new end is found, and the producers' states as of it. The record of how far the log has been on
   disk is cleared, durably (reached.py).
2. A checkpoint as of the new end, with `cut` set, is written durably: the decision. From here on, opening the log
   finishes the truncation.
3. Readers see the new end. A read that had begun before is repeated.
4. The segments behind the new end are removed, the last first. The segment that holds the new end is cut and becomes
   active. It loses its checksums (`.sums`), which only closed segments have; its indexes are written anew.
5. All this is synced, and a checkpoint without `cut` is written. Nothing is appended before that: the next open would
   cut it off.

The producers' states as of the new end come from the last checkpoint, as of an offset before that end, and from the
headers of the batches from there on, as in a recovery. As a rule that offset is the high watermark or a little below it
(`Checkpoint.earlier`). A truncation goes below the high watermark only after an unclean election; then all headers of
the log may have to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from krappy.core.retention import SegmentInfo
from krappy.core.stability import Stability
from krappy.errors import OffsetOutOfRange, StorageError
from krappy.records.batch import TRANSACTIONAL, BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import Checkpoint
from krappy.store.disk import Disk
from krappy.store.format import DERIVED, SUFFIXES
from krappy.store.index import Indexer
from krappy.store.pool import POOL
from krappy.store.producers import ProducerStates
from krappy.store.recovery import Recovered
from krappy.store.refusals import refusals
from krappy.store.segment import Segment
from krappy.store.segments import Segments
from krappy.store.walk import Damage, headers
from krappy.store.writing import WritableLog

Transactional = tuple[BatchHeader, int, bytes | None]  # a batch of a transaction: header, offset, a marker's bytes


class CuttableLog(WritableLog):
    """The part of `Log` that makes it shorter."""

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        super().__init__(folder, config, disk, found)
        self._cleaning = Lock()  # held while segments are rewritten, or the log is cut

    def delete_before(self, offset: int) -> list[SegmentInfo]:
        """Moves the start of the log up to `offset` (at most its end) and removes the closed segments before it.

        The new start is durable before a file is removed. Returns the removed segments. Blocks. Raises StorageError.
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

    def truncate(self, offset: int) -> int:
        """Removes the first batch that reaches beyond `offset`, and all behind it. Returns the log's new end. Durable.

        The new end is `offset`; or, if that is within a batch or a hole, the end of the last batch before it. Leader
        epochs that begin there or later are forgotten. From the log's end on, no event is removed.

        Blocks: no append or `roll` may run at the same time, reads may. It waits for a running cleaning. Raises
        OffsetOutOfRange when the new end would be below the log's start: the caller needs a new log then. Raises
        CorruptBatch when it meets damage before the new end. Neither changes anything, nor does a StorageError before
        the decision (step 2). After a later StorageError the log takes no appends until the next open.
        """
        with self._cleaning, self._shaping, self._finding(), self._unnoted(), refusals(self.folder):
            if self._broken:
                raise StorageError(self._broken)
            self.sync()
            if offset >= self.end_offset:
                self.epochs.cut(self.end_offset)
                return self.end_offset
            row = list(self._segments)
            stay = [segment for segment in row if segment.base_offset <= offset]
            active = self._part(stay.pop(), offset) if offset >= self._start else None
            if active is None or active.next_offset < self._start:
                start, end = self._start, self.end_offset
                raise OffsetOutOfRange(
                    f"a truncation to offset {offset}: the log has {start} to {end}", start=start, end=end
                )
            producers = self._producers_at(active.next_offset)
            state = self._cut_state(stay, active, producers)
            if self._reached is not None:
                self._reached.clear()
            checkpoints.write(self._disk, self.folder, state)
            try:
                checkpoints.replace(self._disk, self.folder)
                self._publish_cut(stay, active, producers, state)
                self._take_away([segment for segment in row if segment not in stay], active)
                self._save(self._start)
            except (OSError, StorageError) as error:
                self._broken = f"{self.folder}: a truncation was interrupted; the next start finishes it: {error}"
                raise StorageError(self._broken) from error
            return self.end_offset

    @contextmanager
    def _unnoted(self) -> Iterator[None]:
        """While this is entered, no sync notes how far the log is on disk."""
        self._is_cut = True
        try:
            yield
        finally:
            with self._syncing:  # else a sync that is under way now might note more before this notes less
                self._is_cut = False
                self._note_reached(self._synced)

    def _part(self, segment: Segment, offset: int) -> Segment:
        """The segment up to the first batch that reaches beyond `offset`, ready to be active. Its file is not cut yet.
        Raises CorruptBatch, OSError."""
        indexer = Indexer(self.config.index_interval_bytes)
        base = end = segment.base_offset
        size = 0
        try:
            for at, header in headers(segment.handle().file, 0, segment.size, base, dense=segment.dense):
                if header.next_offset > offset:
                    break
                indexer.note(header.last_offset - base, at, header.size, header.max_timestamp)
                size, end = at + header.size, header.next_offset
        except Damage as damage:
            raise segment.corrupt(damage.position, damage.text) from None
        part = Segment(
            self._disk,
            self.folder,
            base,
            next_offset=end,
            size=size,
            max_timestamp=indexer.max_timestamp,
            created_ms=segment.created_ms if size else None,
            appended_ms=segment.appended_ms,
            dense=segment.dense or not size,
            interval=indexer.interval,
        )
        part.activate(self._disk.open(part.path(), write=True), indexer)
        return part

    def _producers_at(self, end: int) -> ProducerStates:
        """The producers' states as of this offset. Raises CorruptBatch, OSError."""
        found, first = self._known_before(end)
        for header, data in self._headers(first, end):
            found.apply(header, header.base_offset, 0, data)
        return self.producers.cut(end, found)

    def _known_before(self, end: int) -> tuple[ProducerStates, int]:
        """(the producers' states as of an offset up to `end`, that offset), from the last checkpoint."""
        found = ProducerStates()
        known = self._saved.upto(end) if self._saved else None
        oldest = next(iter(self._segments)).base_offset
        if known is None or known.offset < oldest:  # retention has removed markers that are needed
            return found, 0
        found.restore(known.producers, known.transactions)
        return found, known.offset

    def _headers(self, first: int, end: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """The header of each batch from `first` to before `end`, and the bytes of those that are markers. Raises
        CorruptBatch, OSError."""
        for segment in self._segments:
            if segment.next_offset <= first or segment.base_offset >= end:
                continue
            file = segment.handle().file
            try:
                for at, header in headers(file, 0, segment.size, segment.base_offset, dense=segment.dense):
                    if header.base_offset >= end:
                        break
                    if header.base_offset >= first:
                        yield header, file.pread(header.size, at) if header.is_control else None
            except Damage as damage:
                raise segment.corrupt(damage.position, damage.text) from None

    def stability_at(self, offset: int) -> tuple[Stability, list[Transactional]]:
        """Which events were decided when the log ended at `offset`, and the batches of transactions from there on.

        Blocks. Raises CorruptBatch when it meets damage, StorageError.
        """
        with self._cleaning, self._finding(), refusals(self.folder):
            found, first = self._known_before(offset)
            behind: list[Transactional] = []
            for header, data in self._headers(first, self.end_offset):
                if header.base_offset < offset:
                    found.apply(header, header.base_offset, 0, data)
                elif header.attributes & TRANSACTIONAL:
                    behind.append((header, header.base_offset, data))
            return self.producers.stability.cut(offset, found.stability.open), behind

    def _cut_state(self, stay: list[Segment], active: Segment, producers: ProducerStates) -> Checkpoint:
        """The checkpoint with `cut` that decides the truncation."""
        end = active.next_offset
        state = Checkpoint.of(
            active,
            [segment.info() for segment in stay],
            producers,
            start=self._start,
            clean=min(self._clean, end),
            sparse=min(self._sparse, end),
            cache=self._cache,
            proofs=Segments(stay).proofs(),
            epochs=self.epochs,
            high_watermark=self.high_watermark,
            gone_below=min(self._gone_below, end),
        )
        return (state.knowing(self._saved, 0) if self._saved else state)._replace(cut=True)

    def _publish_cut(self, stay: list[Segment], active: Segment, producers: ProducerStates, state: Checkpoint) -> None:
        with self._syncing, self._lock:
            self._synced = self.end_offset = active.next_offset
            self._active, self._segments = active, Segments([*stay, active])
            self.producers, self.high_watermark = producers, state.high_watermark
            self.epochs.cut(self.end_offset)
            self._clean, self._sparse, self._saved = state.clean, state.sparse, state
            self._gone_below = state.gone_below
            self._cuts += 1

    def _take_away(self, gone: list[Segment], active: Segment) -> None:
        """Removes all behind the new end. `gone`: the old segments, first the one that `active` was cut from. Raises
        OSError."""
        for segment in gone:
            segment.retired = True
            segment.release()
        for segment in reversed(gone[1:]):
            for suffix in SUFFIXES:
                self._disk.unlink(segment.path(suffix))
        for suffix in DERIVED:
            self._disk.unlink(active.path(suffix))
        active.file.truncate(active.size)
        with self._lock:
            self._unsynced.mark([active.file])
            self._unsynced.names = True
