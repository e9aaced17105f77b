"""One partition's raw stream log: append, sync, read, retain.

Rules of this file. Appends come one at a time; reads run beside everything. What a reader sees is published in an
order that keeps it whole: bytes in the file, then `size` and `next_offset` of the segment, then the tuple of
segments, then `end_offset`. Nothing is promised before `sync` has returned: an event that was read before may be
gone after a power loss, so the broker's high watermark follows `sync`, not `append`. A sync that failed is never
tried again (fsyncgate: the kernel drops the pages that it could not write): the log takes no more appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from krappy.batch import LENGTH_END, BatchHeader
from krappy.core import retention
from krappy.core.epochs import Epochs
from krappy.errors import CorruptBatch, OffsetOutOfRange, StorageError
from krappy.store import checkpoint as checkpoints
from krappy.store import cleaner
from krappy.store.checkpoint import Checkpoint
from krappy.store.cleaner import FREELY, CleanResult, Pace, Survives
from krappy.store.disk import NO_DESCRIPTOR, OS_DISK, Buffer, Disk, File
from krappy.store.format import SUFFIXES
from krappy.store.index import BadIndex, Indexer
from krappy.store.pool import POOL
from krappy.store.producers import ProducerStates
from krappy.store.recovery import Recovered, go_on, recover
from krappy.store.refusals import refusals
from krappy.store.report import RecoveryReport
from krappy.store.run import Run
from krappy.store.scrub import scrub
from krappy.store.segment import Segment, SegmentInfo
from krappy.store.segments import Segments
from krappy.store.unsynced import Unsynced
from krappy.topic_config import TopicConfig
from krappy.types import Span

T = TypeVar("T")
CHECKPOINT_BYTES = 64 << 20  # appended since the last checkpoint: the most that a crash leaves to be read again


class Log:
    """Made by `Log.open`. `producers` is kept up by `append`; `recovery` tells what opening it found."""

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        self.folder = folder
        self.config = config  # may be replaced at any time
        self.recovery: RecoveryReport = found.report
        self.producers: ProducerStates = found.producers
        self.epochs: Epochs = found.epochs
        self._disk = disk
        self._segments = Segments(found.segments)
        self._active = found.segments[-1]
        self._start = found.start
        self._clean = found.clean
        self._sparse = found.sparse
        self._saved: Checkpoint | None = found.saved
        self.end_offset: int = self._active.next_offset  # the next event gets this one
        self._synced = self.end_offset
        self._lock = Lock()  # held while the log's state changes: short, but for the write of an append
        self._syncing = Lock()  # held during fdatasync: the second of two syncs waits for the first
        self._cleaning = Lock()  # held while segments are rewritten
        self._shaping = Lock()  # held while segments are taken away or replaced, and the checkpoint with them
        self._unsynced = Unsynced()
        self._unsynced.mark(found.touched)
        self._unsynced.names = not found.report.clean
        self._unsaved = 0  # bytes appended since the checkpoint
        self._cache = disk.page_cache(folder)
        # The next sync checkpoints too, which does not tell of the page cache or the segment that now counts.
        self._owed = found.saved is None or found.saved.cache != self._cache
        self._broken = ""  # why nothing may be appended any more
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: Path,
        config: TopicConfig,
        *,
        disk: Disk = OS_DISK,
        start_offset_hint: int = 0,
        check_stop: Callable[[], None] = go_on,
        new: bool = False,
    ) -> Log:
        """Opens or makes the log in `folder` and recovers it; a new one starts at `start_offset_hint`.

        With `new`, one that holds nothing is not synced and has no checkpoint before its first events, or its maker's
        word. `check_stop` may end it by what it raises, as a crash would. Raises StorageError when the disk refuses.
        """
        with refusals(folder):
            found = recover(disk, folder, config.index_interval_bytes, start_offset_hint, check_stop)
        log = cls(folder, config, disk, found)
        if found.saved is None:  # the name of the first segment is on disk before a checkpoint that tells of it
            log._unsynced.names = True
        if new and found.saved is None and found.report.clean and not log.size:
            return log
        if found.touched or found.saved is None or not found.report.clean:
            log.sync()
            try:
                log.checkpoint()
            except StorageError:  # a full disk: what is there can be read, and the next open does this work again
                if log._broken or not log.size:
                    raise
        return log

    # ---------------------------------------------------------------- what it holds

    @property
    def broken(self) -> str:
        """Why it takes no more appends, until it is opened again; empty while it does."""
        return self._broken

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._start

    @property
    def synced_offset(self) -> int:
        """Everything before it is on disk."""
        return self._synced

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self._segments.size

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Oldest first; the last one is active."""
        return self._segments.infos()

    @property
    def clean_upto(self) -> int:
        """Everything before it has been compacted once."""
        return self._clean

    @property
    def unsaved_bytes(self) -> int:
        """What was appended since the last checkpoint: so much a crash would leave to be checked."""
        return self._unsaved

    def dirty_ratio(self, upto: int) -> float:
        """The share of bytes below the offset `upto` that have not been compacted yet."""
        return retention.dirty_ratio(self.segments, self._clean, upto)

    # ---------------------------------------------------------------- writing

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

    # ---------------------------------------------------------------- reading

    def read(
        self, offset: int, max_bytes: int, *, limit: int | None = None, nowait: bool = False, min_one: bool = True
    ) -> Buffer:
        """The bytes of `read_span`."""
        data: Buffer = self.read_span(offset, max_bytes, limit=limit, nowait=nowait, min_one=min_one).data
        return data

    def read_span(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int | None = None,
        max_records: int | None = None,
        nowait: bool = False,
        min_one: bool = True,
    ) -> Span:
        """Whole batches, checksums verified, about `max_bytes` of them; the first contains `offset` or is the next.

        None has a base offset of `limit` or more. It ends behind the batch that reaches `max_records`. When there is
        any, at least one is given, whatever `max_bytes` (unless `min_one` is False). Empty when there is none. From
        one segment at a time, so it may be less than there is. Raises OffsetOutOfRange below the log's start or above
        its end, CorruptBatch that names file and position, StorageError when the disk refuses, BlockingIOError with
        `nowait` when it would wait for the disk.
        """
        return self._reading(
            lambda known: known.read(offset, max_bytes, self._range(offset, limit), max_records, nowait, min_one)
        )

    def locate(
        self, offset: int, max_bytes: int, limit: int | None = None, *, nowait: bool = False
    ) -> list[tuple[File, int, int]]:
        """Where `read` would find this: (open file, position, bytes), for sendfile. The last batch may be cut short.

        Nothing is verified. At least the first batch is whole. Raises as `read`.
        """
        return self._reading(lambda known: known.locate(offset, max_bytes, self._range(offset, limit), nowait))

    def find_timestamp(self, timestamp: int, limit: int | None = None) -> tuple[int, int] | None:
        """The first record (offset, timestamp) whose timestamp is at least `timestamp` (ms); None without one. Blocks.

        `limit`: the offset before which to look. Raises CorruptBatch, StorageError.
        """
        return self._reading(lambda known: known.find_timestamp(timestamp, self._start, self._stop(limit)))

    def find_latest(self, limit: int | None = None) -> tuple[int, int] | None:
        """The record (offset, timestamp) with the highest timestamp, the first such. As `find_timestamp`."""
        return self._reading(lambda known: known.find_latest(self._start, self._stop(limit)))

    def _range(self, offset: int, limit: int | None) -> int:
        """The offset before which a read stops, once it is known that it may start at `offset`."""
        end = self.end_offset
        if not self._start <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset}: the log has {self._start} to {end}", start=self._start, end=end)
        return self._stop(limit)

    def _stop(self, limit: int | None) -> int:
        if self._closed:
            raise StorageError(self._broken)
        end = self.end_offset
        return end if limit is None or limit > end else limit

    def _reading(self, read: Callable[[Segments], T]) -> T:
        """Runs a read on the segments of this moment; again, when they went away under it."""
        while True:
            known = self._segments  # taken before the start is looked at, which is published first
            try:
                return read(known)
            except BadIndex as error:
                self._rescue(error)
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                if not isinstance(error, FileNotFoundError) or self._segments is known:
                    raise StorageError(f"{self.folder}: {error}") from error

    def _rescue(self, reason: BadIndex) -> None:
        """Makes the active segment's indexes anew, because one of them was found wrong."""
        with self._lock:
            if self._active.rebuilt > 3:
                raise StorageError(f"{self.folder}: the index can't be rebuilt: {reason}")
            with refusals(self.folder):
                self._active.reindex()

    # ---------------------------------------------------------------- retention

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

    def clean(self, survives: Survives, upto: int, now_ms: int, pace: Pace = FREELY) -> CleanResult:
        """Compacts the closed segments that end at or before the offset `upto`. Blocks; runs beside appends and reads.

        `survives` answers for some records at a time. Raises what `pace` does; StorageError; CorruptBatch where it
        meets damage, and cleans nothing behind it: no tombstone goes before what it deletes.
        """
        with self._cleaning:
            with self._lock:
                upto, transactions = cleaner.decided(self.producers.stability, upto)
            horizon = now_ms + self.config.delete_retention_ms
            cleaning = cleaner.Cleaning(survives, self.producers, transactions, now_ms, horizon, pace, self._owned)
            segments = [segment for segment in self._segments.closed if segment.next_offset <= upto]
            before, removed = sum(segment.size for segment in segments), 0
            groups = cleaner.groups(segments, self.config.segment_bytes)
            with refusals(self.folder):
                for group, new in cleaner.rewrites(self._disk, groups, cleaning, lambda: self._segments):
                    if new is None:
                        cleaner.prove(group, pace, self._shaping)
                        continue
                    with cleaner.discarded(self._disk, new, self._owned), pace.swapping(new.markers):
                        removed += new.removed if self._replace(group, new) else 0
            done = segments[-1].next_offset if segments else 0
            with self._lock:  # those whose markers an older version took, and was killed before it forgot them
                self.producers.stability.drop(markers := transactions.gone(done))
            with self._shaping:
                self._clean = max(self._clean, done)
                self._save(self._start)
            after = sum(segment.size for segment in self._segments.closed if segment.next_offset <= upto)
            return CleanResult(before, after, removed, self._clean, markers)

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Held while a file comes or goes by its name beside a deletion, after which the folder may be another log's.
        Raises StorageError."""
        with self._lock:
            if self._closed:
                raise StorageError(self._broken)
            yield

    def _replace(self, group: Sequence[Segment], rewritten: cleaner.Rewritten) -> bool:
        """Swaps a cleaned segment in, by the steps at the head of cleaner.py; False when retention was faster."""
        with self._shaping:
            if self._segments.replaced(group, rewritten.segment) is None:
                return False
            # From before the swap until after it the checkpoint knows nothing of these segments, and that offsets
            # may be missing in them: so it is true wherever a crash comes.
            self._sparse = max(self._sparse, rewritten.segment.next_offset)
            with self._lock:
                self.producers.stability.drop(rewritten.markers)
            self._save(self._start, forget=group)
            try:
                cleaner.swap(self._disk, self.folder, group, rewritten)
            except OSError as error:
                self._broken = f"{self.folder}: a cleaning was interrupted; the next start finishes it: {error}"
                raise StorageError(self._broken) from error
            segment = rewritten.segment
            segment.activate(rewritten.file, rewritten.indexer)
            indexes = segment.seal()
            with self._lock:
                row = self._segments.replaced(group, segment)
                assert row is not None
                self._segments = row
            with suppress(OSError):
                for file in indexes:
                    file.fdatasync()
                segment.prove(rewritten.sums)
            return True

    # ---------------------------------------------------------------- doctor, the end

    def scrub(self) -> Iterator[tuple[SegmentInfo, list[str]]]:
        """Reads everything; for each segment what is wrong with it, in words. Blocks. Raises StorageError."""
        with refusals(self.folder):
            for segment in self._segments:
                yield segment.info(), scrub(segment)

    def rebuild_indexes(self) -> None:
        """Makes all indexes anew from the batches. Blocks; no append may run. Raises CorruptBatch, StorageError."""
        with self._shaping, self._lock, refusals(self.folder):
            for segment in self._segments.closed:
                handle = segment.handle()
                POOL.put(segment, handle._replace(index=segment.rebuild(handle.file).offsets))
            self._active.reindex()

    def close(self) -> None:
        """Syncs and checkpoints, so that the next open reads no batch; lets go of all files. Raises StorageError."""
        try:
            if not self._broken:
                self.checkpoint()
        finally:
            with self._lock:
                self._broken = self._broken or f"{self.folder}: the log is closed"
                self._closed = True
                self._unsynced = Unsynced()
            for segment in self._segments:
                segment.release()

    def destroy(self) -> None:
        """Removes the log with all its files. Raises StorageError."""
        with self._shaping, self._lock:
            self._broken = f"{self.folder}: the log is deleted"
            self._closed = True
            self._unsynced = Unsynced()
            for segment in self._segments:
                segment.retired = True
                segment.release()
            with refusals(self.folder):
                self._disk.remove_folder(self.folder)
