"""Writing to a partition's log: append, roll, sync, checkpoint.

Rules of this file. Appends come one at a time; reads run beside everything. What a reader sees is published in an
order that keeps it whole: bytes in the file, then `size` and `next_offset` of the segment, then the tuple of
segments, then `end_offset`. Nothing is promised before `sync` has returned: an event that was read before may be
gone after a power loss, so the broker's high watermark follows `sync`, not `append`. A sync that failed is never
tried again (fsyncgate: the kernel drops the pages that it could not write): the log takes no more appends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from krappy.batch import LENGTH_END, BatchHeader
from krappy.core import retention
from krappy.core.epochs import Epochs
from krappy.errors import CorruptBatch, StorageError
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import Checkpoint
from krappy.store.disk import NO_DESCRIPTOR, Disk
from krappy.store.index import Indexer
from krappy.store.producers import ProducerStates
from krappy.store.reading import ReadableLog
from krappy.store.recovery import Recovered
from krappy.store.refusals import refusals
from krappy.store.run import Run
from krappy.store.segment import Segment, SegmentInfo
from krappy.store.unsynced import Unsynced
from krappy.topic_config import TopicConfig

CHECKPOINT_BYTES = 64 << 20  # appended since the last checkpoint: the most that a crash leaves to be read again


class WritableLog(ReadableLog):
    """The part of `Log` that writes. `producers` is kept up by `append`."""

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        super().__init__(folder, config, disk, found)
        self.producers: ProducerStates = found.producers
        self.epochs: Epochs = found.epochs
        self._clean = found.clean
        self._sparse = found.sparse
        self._saved: Checkpoint | None = found.saved
        self._synced = self.end_offset
        self._syncing = Lock()  # held during fdatasync: the second of two syncs waits for the first
        self._shaping = Lock()  # held while segments are taken away or replaced, and the checkpoint with them
        self._unsynced = Unsynced()
        self._unsynced.mark(found.touched)
        self._unsynced.names = not found.report.clean
        self._unsaved = 0  # bytes appended since the checkpoint
        self._cache = disk.page_cache(folder)
        # The next sync checkpoints too, which does not tell of the page cache or the segment that now counts.
        self._owed = found.saved is None or found.saved.cache != self._cache

    def append(self, batches: Sequence[tuple[BatchHeader, bytes | memoryview]], epoch: int, now_ms: int) -> int:
        """Gives the batches the next offsets and writes them; the first one's base offset. Blocks; one at a time.

        The batches must have been checked (`batch.check`); their bytes are written as they are but for the first
        16 (`batch.stamp`). All or nothing: when the disk refuses, nothing is changed and StorageError raised. Not
        durable before `sync`. Raises CorruptBatch when a header is not its batch's.
        """
        with self._lock:
            if self._broken:
                raise StorageError(self._broken)
            first = offset = self.end_offset
            run = Run(self._active)
            runs = [run]
            made: list[Segment] = []
            try:
                for header, data in batches:
                    if len(data) != header.length + LENGTH_END:
                        raise CorruptBatch(f"a batch of {len(data)} bytes whose header says {header.size}")
                    if self._must_roll(run, header, offset, now_ms):
                        run = Run(self._new_segment(offset, made))
                        runs.append(run)
                    run.add(header, data, offset, epoch)
                    offset += header.last_offset_delta + 1
                for run in runs:
                    run.write()
            except BaseException as error:
                self._undo(made)
                if isinstance(error, OSError):
                    raise StorageError(f"{self.folder}: {error}") from error
                raise
            for run in runs:
                self._publish(run, now_ms)
            self.end_offset = offset
            self.epochs.note(epoch, first)
            return first

    def _must_roll(self, run: Run, header: BatchHeader, offset: int, now_ms: int) -> bool:
        segment = run.segment
        info = SegmentInfo(segment.base_offset, offset, run.end, -1, segment.created_ms if segment.size else now_ms)
        return retention.must_roll(self.config, info, header.size, offset + header.last_offset_delta, now_ms)

    def _new_segment(self, base_offset: int, made: list[Segment]) -> Segment:
        interval = self.config.index_interval_bytes
        segment = Segment(self._disk, self.folder, base_offset, next_offset=base_offset, interval=interval)
        made.append(segment)
        segment.activate(self._disk.open(segment.path(), create=True), Indexer(segment.interval))
        return segment

    def _undo(self, made: list[Segment]) -> None:
        """After a failed append: the active file as it was, new ones gone; for good, after the next sync.

        The last file goes first: after a kill in between, no file may begin behind offsets that are not there.
        """
        self._unsynced.mark([self._active.file])
        self._unsynced.names = True
        try:
            for segment in reversed(made):
                self._disk.unlink(segment.path())
            self._active.file.truncate(self._active.size)
        except OSError as error:
            self._broken = f"{self.folder}: an append failed, and what it wrote can't be taken back: {error}"

    def _publish(self, run: Run, now_ms: int) -> None:
        segment = run.segment
        if segment is not self._active:
            self._unsynced.mark([self._active.file, *self._active.seal()])
            self._unsynced.names = True
            self._active = segment
            self._segments = self._segments.plus(segment)
            self._owed = True
        run.publish(self.producers, now_ms)
        self._unsynced.mark([segment.file])
        self._unsaved += run.end - run.start

    def roll(self) -> None:
        """Closes the active segment and starts the next, unless it is empty. Raises StorageError."""
        with self._lock:
            if self._broken:
                raise StorageError(self._broken)
            if not self._active.size:
                return
            made: list[Segment] = []
            try:
                segment = self._new_segment(self.end_offset, made)
            except OSError as error:
                self._undo(made)
                raise StorageError(f"{self.folder}: {error}") from error
            self._publish(Run(segment), 0)

    def sync(self) -> int:
        """Makes all that was appended before this call durable; the offset up to which it is. Blocks.

        Now and then it checkpoints too, so that a crash leaves little to be read again. Raises StorageError when the
        disk refuses; the log is then closed for appends for good (`broken`), but not where a file could not be opened.
        """
        with self._syncing:
            with self._lock:
                if self._broken:
                    raise StorageError(self._broken)
                end, unsynced, self._unsynced = self.end_offset, self._unsynced, Unsynced()
            try:
                unsynced.sync(self._disk, self.folder)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    with self._lock:
                        self._unsynced.join(unsynced)
                    raise StorageError(f"{self.folder}: not synced yet: {error}") from error
                self._broken = f"{self.folder}: a sync failed, so what was appended since the last may be lost: {error}"
                raise StorageError(self._broken) from error
            self._synced = end
        due = self._unsaved >= CHECKPOINT_BYTES or (self._owed and self._unsaved)
        if due and self._shaping.acquire(blocking=False):
            try:
                with suppress(StorageError):  # a full disk; what was asked for is done
                    self._save(self._start)
            finally:
                self._shaping.release()
        return end

    def checkpoint(self) -> None:
        """Syncs, then notes how far: the next open reads nothing before this. Blocks. Raises StorageError."""
        with self._shaping:
            self._save(self._start)

    def _save(self, start: int, forget: Sequence[Segment] = ()) -> None:
        """The checkpoint of this moment, with this start of the log, silent on `forget`. `_shaping` is held."""
        with refusals(self.folder):
            with self._lock:
                if self._broken:
                    raise StorageError(self._broken)
                self._unsynced.mark(self._active.flush_indexes())
                state = Checkpoint.of(
                    self._active,
                    [segment.info() for segment in self._segments.closed if segment not in forget],
                    self.producers,
                    start=start,
                    clean=self._clean,
                    sparse=self._sparse,
                    cache=self._cache,
                    proofs=self._segments.without(forget).proofs(),
                    epochs=self.epochs,
                )
                self._unsaved = 0
            self.sync()
            if self._saved and state == self._saved._replace(cache=self._cache):
                return
            self._saved, self._owed = None, True  # a save that fails may have written one file of the two
            checkpoints.save(self._disk, self.folder, state)
            self._saved, self._owed = state, self._active.base_offset != state.segment
