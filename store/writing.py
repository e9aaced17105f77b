"""Writing to a partition's log: append, roll, sync, checkpoint.

Rules of this file. Appends come one at a time; reads run beside everything. What a reader sees is published in an
order that keeps it whole: bytes in the file, then `size` and `next_offset` of the segment, then the tuple of
segments, then `end_offset`. Nothing is promised before `sync` has returned: an event that was read before may be
gone after a power loss, so the broker's high watermark follows `sync`, not `append`. A sync that failed is never
tried again (fsyncgate: the kernel drops the pages that it could not write): the log takes no more appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from krappy.core import retention
from krappy.core.epochs import Epochs
from krappy.core.retention import SegmentInfo
from krappy.errors import CorruptBatch, StorageError
from krappy.records.batch import LENGTH_END, BatchHeader
from krappy.settings.topic import TopicConfig
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import Checkpoint
from krappy.store.disk import NO_DESCRIPTOR, Disk
from krappy.store.format import MAX_RELATIVE
from krappy.store.index import Indexer
from krappy.store.producers import ProducerStates
from krappy.store.reading import ReadableLog
from krappy.store.recovery import Recovered
from krappy.store.refusals import refusals
from krappy.store.run import AppendRun
from krappy.store.segment import Segment
from krappy.store.unsynced import Unsynced

CHECKPOINT_BYTES = 64 << 20  # appended since the last checkpoint: the most that a crash leaves to be read again
HOLES_AHEAD = (
    1 << 20
)  # offsets: who fetches a log with holes writes a checkpoint for so many of them, not for each hole

Batch = tuple[BatchHeader, bytes | memoryview]
Placed = tuple[BatchHeader, bytes | memoryview, int, int]  # and its base offset and leader epoch


class WritableLog(ReadableLog):
    """The part of `Log` that writes. `producers` and `epochs` are kept up by it.

    `high_watermark`: the offset below which all is committed, as the caller says; None: nobody has said it. It is saved
    with each checkpoint, so after a crash it may be an earlier one. That is harmless: it rises again.
    """

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        super().__init__(folder, config, disk, found)
        self.producers: ProducerStates = found.producers
        self.epochs: Epochs = found.epochs
        self.high_watermark: int | None = found.high_watermark
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

    def append(self, batches: Sequence[Batch], epoch: int, now_ms: int) -> int:
        """Gives the batches the next offsets and writes them; the first one's base offset. Blocks; one at a time.

        The batches must have been checked (`batch.check`); their bytes are written as they are but for the first
        16 (`batch.stamp`). All or nothing: when the disk refuses, nothing is changed and StorageError raised. Not
        durable before `sync`. Raises CorruptBatch when a header is not its batch's.
        """
        with self._lock:
            first = self.end_offset
            self._write(_following(batches, first, epoch), now_ms)
            self.epochs.note(epoch, first)
            return first

    def append_as_is(self, batches: Sequence[Batch], now_ms: int) -> int:
        """Writes batches as another broker's log has them, with their offsets and leader epochs; the log's end then.

        Offsets may be left out between them and before them, as compaction there has left them out. The batches must
        have been checked, as for `append`. Looked at here: each is as long as its header says, begins where the one
        before it ends or later, no more than a segment may span behind that, and has no lower leader epoch than the
        events before it (-1: its epoch is not known). Else ValueError, or CorruptBatch for the length, and nothing is
        changed. The rest is as for `append`.

        Before the first batch behind a hole is written, a checkpoint is that says that there may be holes: else a crash
        would leave what looks like damage.
        """
        holes = self._check_order(batches)
        if holes > self._sparse:
            self._expect_holes(holes)
        with self._lock:
            end = self.end_offset
            self._write([(header, data, header.base_offset, header.leader_epoch) for header, data in batches], now_ms)
            if batches:
                self.epochs.cut(end)  # one that begins here has no events, and what comes may be of one before it
            for header, _ in batches:
                self.epochs.note(header.leader_epoch, header.base_offset)
            return self.end_offset

    def _check_order(self, batches: Sequence[Batch]) -> int:
        """Where the last hole ends that these batches leave, 0 without any. Raises ValueError."""
        end = self.end_offset
        epoch = self.epochs.at(end - 1)
        holes = 0
        for header, _ in batches:
            if header.base_offset < end:
                raise ValueError(f"{self.folder}: a batch at offset {header.base_offset}, where {end} comes next")
            if header.last_offset - end > MAX_RELATIVE:
                raise ValueError(f"{self.folder}: a batch ends at offset {header.last_offset}, too far behind {end}")
            if 0 <= header.leader_epoch < epoch:
                raise ValueError(
                    f"{self.folder}: the batch at offset {header.base_offset} has the leader epoch "
                    f"{header.leader_epoch}, and what stands before it has {epoch}"
                )
            if header.base_offset > end:
                holes = header.base_offset
            end, epoch = header.next_offset, max(epoch, header.leader_epoch)
        return holes

    def _expect_holes(self, upto: int) -> None:
        """Notes durably that offsets below `upto`, and some way ahead, may be left out. Raises StorageError."""
        with self._shaping:
            before, self._sparse = self._sparse, upto + HOLES_AHEAD
            try:
                self._save(self._start)
            except BaseException:
                self._sparse = before
                raise
            self._active.dense = False

    def _write(self, batches: Iterable[Placed], now_ms: int) -> None:
        """Writes and publishes them; none, if the disk refuses. `_lock` is held. Raises StorageError, CorruptBatch."""
        if self._broken:
            raise StorageError(self._broken)
        end = self.end_offset
        run = AppendRun(self._active)
        runs = [run]
        made: list[Segment] = []
        try:
            for header, data, offset, epoch in batches:
                if len(data) != header.length + LENGTH_END:
                    raise CorruptBatch(f"a batch of {len(data)} bytes whose header says {header.size}")
                if self._must_roll(run, header, offset, now_ms):
                    run = AppendRun(self._new_segment(end, made))
                    runs.append(run)
                run.add(header, data, offset, epoch)
                end = offset + header.last_offset_delta + 1
            for run in runs:
                run.write()
        except BaseException as error:
            self._undo(made)
            if isinstance(error, OSError):
                raise StorageError(f"{self.folder}: {error}") from error
            raise
        for run in runs:
            self._publish(run, now_ms)
        self.end_offset = end

    def _must_roll(self, run: AppendRun, header: BatchHeader, offset: int, now_ms: int) -> bool:
        segment = run.segment
        info = SegmentInfo(segment.base_offset, offset, run.end, -1, segment.created_ms if segment.size else now_ms)
        return retention.must_roll(self.config, info, header.size, offset + header.last_offset_delta, now_ms)

    def _new_segment(self, base_offset: int, made: list[Segment]) -> Segment:
        interval = self.config.index_interval_bytes
        dense = base_offset >= self._sparse
        segment = Segment(self._disk, self.folder, base_offset, next_offset=base_offset, dense=dense, interval=interval)
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

    def _publish(self, run: AppendRun, now_ms: int) -> None:
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
            self._publish(AppendRun(segment), 0)

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
                    high_watermark=self.high_watermark,
                )
                if self._saved:
                    state = state.knowing(self._saved, max((segment.next_offset for segment in forget), default=0))
                self._unsaved = 0
            self.sync()
            if self._saved and state == self._saved._replace(cache=self._cache):
                return
            self._saved, self._owed = None, True  # a save that fails may have written one file of the two
            checkpoints.save(self._disk, self.folder, state)
            self._saved, self._owed = state, self._active.base_offset != state.segment


def _following(batches: Iterable[Batch], offset: int, epoch: int) -> Iterator[Placed]:
    """With the offsets from `offset` on."""
    for header, data in batches:
        yield header, data, offset, epoch
        offset += header.last_offset_delta + 1
