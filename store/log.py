"""One partition's raw stream log: append, sync, read, retain.

Rules of this file. Appends come one at a time; reads run beside everything. What a reader sees is published in an
order that keeps it whole: bytes in the file, then `size` and `next_offset` of the segment, then the tuple of
segments, then `end_offset`. Nothing is promised before `sync` has returned: an event that was read before may be
gone after a power loss, so the broker's high watermark follows `sync`, not `append`. A sync that failed is never
tried again (fsyncgate: the kernel drops the pages that it could not write): the log takes no more appends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from krappy.batch import STAMPED, BatchHeader, stamp
from krappy.core import retention
from krappy.errors import CorruptBatch, OffsetOutOfRange, StorageError
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import Checkpoint
from krappy.store.disk import OS_DISK, Buffer, Disk, File
from krappy.store.format import INDEX, SUFFIXES, TIME_INDEX
from krappy.store.index import Indexer
from krappy.store.pool import POOL
from krappy.store.producers import ProducerStates
from krappy.store.recovery import Recovered, RecoveryReport, recover
from krappy.store.segment import Segment, SegmentInfo
from krappy.topic_config import TopicConfig
from krappy.types import Span


class _Segments(NamedTuple):
    """What readers go by; replaced as a whole."""

    bases: tuple[int, ...]
    segments: tuple[Segment, ...]


class _Run:
    """Batches of one append that go to one segment."""

    __slots__ = ("buffers", "marks", "position", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.position = segment.size
        self.buffers: list[Buffer] = []
        self.marks: list[tuple[int, BatchHeader, int]] = []  # base offset, header, position


class Log:
    """Made by `Log.open`. `producers` is kept up by `append`; `recovery` tells what opening it found."""

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        self.folder = folder
        self.config = config  # may be replaced at any time
        self.recovery: RecoveryReport = found.report
        self.producers: ProducerStates = found.producers
        self._disk = disk
        self._segments = _segments(found.segments)
        self._active = found.segments[-1]
        self._start = found.start
        self._clean = found.clean
        self._sparse = found.sparse
        self._saved: Checkpoint | None = found.saved
        self.end_offset: int = self._active.next_offset  # the next event gets this one
        self._synced = self.end_offset
        self._lock = Lock()  # held while the log's state changes: short, but for the write of an append
        self._syncing = Lock()  # held during fdatasync: the second of two syncs waits for the first
        self._shaping = Lock()  # held while segments are taken away or replaced, and the checkpoint with them
        self._dirty: dict[File, None] = dict.fromkeys(found.touched)
        self._folder_dirty = False
        self._broken = ""  # why nothing may be appended any more
        self._closed = False

    @classmethod
    def open(cls, folder: Path, config: TopicConfig, *, disk: Disk = OS_DISK, start_offset_hint: int = 0) -> Log:
        """Opens or makes the log in `folder` and recovers it; a new one starts at `start_offset_hint`.

        Raises StorageError when the disk refuses, or segments are missing that no retention explains.
        """
        try:
            found = recover(disk, folder, config.index_interval_bytes, start_offset_hint)
        except OSError as error:
            raise StorageError(f"{folder}: {error}") from error
        log = cls(folder, config, disk, found)
        if found.touched or found.saved is None or not found.report.clean:
            log.sync()
            try:
                log.checkpoint()
            except StorageError:
                if log._broken or not log.size:
                    raise
                # A full disk: what is there can be read all the same, and the next open does this work again.
        return log

    # ---------------------------------------------------------------- what it holds

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
        return sum(segment.size for segment in self._segments.segments)

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Oldest first; the last one is active."""
        return tuple(segment.info() for segment in self._segments.segments)

    @property
    def clean_upto(self) -> int:
        """Everything before it has been compacted once."""
        return self._clean

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
            run = _Run(self._active)
            runs = [run]
            made: list[Segment] = []
            position = run.position
            try:
                for header, data in batches:
                    size = len(data)
                    if size != header.length + 12:
                        raise CorruptBatch(f"a batch of {size} bytes whose header says {header.size}")
                    last = offset + header.last_offset_delta
                    if self._must_roll(run, position, size, last, now_ms):
                        run = _Run(self._new_segment(offset, made))
                        runs.append(run)
                        position = 0
                    run.buffers.append(stamp(header, offset, epoch))
                    run.buffers.append(memoryview(data)[STAMPED:])
                    run.marks.append((offset, header, position))
                    position += size
                    offset = last + 1
                for run in runs:
                    if run.buffers:
                        run.segment.file.write(run.buffers, run.position)
            except BaseException as error:
                self._undo(made)
                if isinstance(error, OSError):
                    raise StorageError(f"{self.folder}: {error}") from error
                raise
            for run in runs:
                self._publish(run, now_ms)
            self.end_offset = offset
            return first

    def _must_roll(self, run: _Run, position: int, size: int, last_offset: int, now_ms: int) -> bool:
        segment = run.segment
        created_ms = segment.created_ms if segment.size else now_ms
        info = SegmentInfo(segment.base_offset, 0, position, 0, created_ms)
        return retention.must_roll(self.config, info, size, last_offset, now_ms)

    def _new_segment(self, base_offset: int, made: list[Segment]) -> Segment:
        segment = Segment(
            self._disk,
            self.folder,
            base_offset,
            next_offset=base_offset,
            interval=self.config.index_interval_bytes,
        )
        made.append(segment)
        segment.activate(self._disk.open(segment.path(), create=True), Indexer(segment.interval))
        return segment

    def _undo(self, made: list[Segment]) -> None:
        """After a failed append: the active file as it was, new ones gone."""
        try:
            self._active.file.truncate(self._active.size)
            for segment in made:
                self._disk.unlink(segment.path())
        except OSError as error:
            self._broken = f"{self.folder}: an append failed, and what it wrote can't be taken back: {error}"

    def _publish(self, run: _Run, now_ms: int) -> None:
        segment = run.segment
        if segment is not self._active:
            self._close_active()
            self._folder_dirty = True
            self._active = segment
            self._segments = _segments([*self._segments.segments, segment])
        if not run.marks:
            return
        if not segment.size:
            segment.created_ms = now_ms
        base, indexer = segment.base_offset, segment.indexer
        assert indexer is not None
        for offset, header, position in run.marks:
            last = offset + header.last_offset_delta
            indexer.note(last - base, position, header.length + 12, header.max_timestamp)
            if header.producer_id >= 0:
                self.producers.apply(header, offset, now_ms)
        segment.max_timestamp = indexer.max_timestamp
        segment.size = position + header.length + 12
        segment.next_offset = last + 1
        self._dirty[segment.file] = None

    def _close_active(self) -> None:
        active = self._active
        self._dirty[active.file] = None
        try:
            for file in active.seal():
                self._dirty[file] = None
        except OSError:  # an index is derived: without its files, whoever needs it rebuilds it
            active.release()
            with suppress(OSError):
                self._disk.unlink(active.path(INDEX))
                self._disk.unlink(active.path(TIME_INDEX))

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
            self._publish(_Run(segment), 0)

    def sync(self) -> int:
        """Makes all that was appended before this call durable; the offset up to which it is. Blocks.

        Raises StorageError when the disk refuses; the log is then closed for appends for good.
        """
        with self._syncing:
            with self._lock:
                if self._broken:
                    raise StorageError(self._broken)
                end, dirty, folder = self.end_offset, self._dirty, self._folder_dirty
                self._dirty, self._folder_dirty = {}, False
            try:
                for file in dirty:
                    file.fdatasync()
                if folder:
                    self._disk.fsync_dir(self.folder)
            except OSError as error:
                self._broken = f"{self.folder}: a sync failed, so what was appended since the last may be lost: {error}"
                raise StorageError(self._broken) from error
            self._synced = end
            return end

    def checkpoint(self) -> None:
        """Syncs, then notes how far: the next open reads nothing before this. Blocks. Raises StorageError."""
        with self._shaping:
            self._save(self._start)

    def _save(self, start: int) -> None:
        """The checkpoint of this moment, with this start of the log. `_shaping` is held."""
        try:
            with self._lock:
                if self._broken:
                    raise StorageError(self._broken)
                active, end = self._active, self.end_offset
                indexer = active.indexer
                assert indexer is not None
                segments = self._segments.segments
                for file in active.flush_indexes():
                    self._dirty[file] = None
                state = Checkpoint(
                    recovery=end,
                    segment=active.base_offset,
                    position=active.size,
                    created_ms=active.created_ms,
                    max_timestamp=indexer.max_timestamp,
                    max_timestamp_offset=indexer.max_timestamp_offset,
                    entries=len(indexer.offsets),
                    time_entries=len(indexer.times),
                    start=start,
                    clean=self._clean,
                    sparse=self._sparse,
                    closed=tuple(segment.info() for segment in segments if segment.base_offset < active.base_offset),
                    producers=self.producers.snapshot(),
                )
            if state == self._saved:
                return
            self.sync()
            checkpoints.save(self._disk, self.folder, state)
            self._saved = state
        except OSError as error:
            raise StorageError(f"{self.folder}: {error}") from error

    # ---------------------------------------------------------------- reading

    def read(
        self, offset: int, max_bytes: int, *, limit: int | None = None, nowait: bool = False, min_one: bool = True
    ) -> Buffer:
        """The bytes of `read_span`."""
        return self.read_span(offset, max_bytes, limit=limit, nowait=nowait, min_one=min_one).data

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

        With `max_records` it ends behind the batch that reaches as many.
        None has a base offset of `limit` or more. When there is any, at least one is given, whatever `max_bytes`
        (unless `min_one` is False). Empty when there is none. From one segment at a time, so it may be less than
        there is. Raises OffsetOutOfRange below the log's start or above its end, CorruptBatch that names file and
        position, StorageError when the disk refuses, BlockingIOError with `nowait` when it would wait for the disk.
        """
        while True:
            stop = self._range(offset, limit)
            known = self._segments
            try:
                for segment in known.segments[bisect_right(known.bases, offset) - 1 :]:
                    if offset >= stop or segment.base_offset >= stop:
                        break
                    span = segment.read(
                        offset, max_bytes, stop, max_records=max_records, nowait=nowait, min_one=min_one
                    )
                    if span.data or (offset < segment.next_offset and not min_one):
                        return span
                return Span(b"", offset, 0)
            except BlockingIOError:
                raise
            except FileNotFoundError as error:
                if self._segments is known:
                    raise StorageError(f"{self.folder}: {error}") from error
            except OSError as error:
                raise StorageError(f"{self.folder}: {error}") from error

    def _range(self, offset: int, limit: int | None) -> int:
        """The offset before which a read stops, once it is known that it may start at `offset`."""
        end = self.end_offset
        if not self._start <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset}: the log has {self._start} to {end}", start=self._start, end=end)
        if self._closed:
            raise StorageError(self._broken)
        return end if limit is None or limit > end else limit

    def locate(self, offset: int, max_bytes: int, limit: int | None = None) -> list[tuple[File, int, int]]:
        """Where `read` would find this: (open file, position, bytes), for sendfile. The last batch may be cut short.

        Nothing is verified. At least the first batch is whole. Raises as `read`.
        """
        stop = self._range(offset, limit)
        known = self._segments
        places: list[tuple[File, int, int]] = []
        try:
            for segment in known.segments[bisect_right(known.bases, offset) - 1 :]:
                if max_bytes <= 0 or offset >= stop or segment.base_offset >= stop:
                    break
                size = segment.size
                position, _ = segment.find(offset)
                until = segment.find(stop)[0] if stop < segment.next_offset else size
                if position >= until:
                    continue
                length = min(max_bytes, until - position)
                if not places:
                    length = max(length, segment.batch_size(position))
                places.append((segment.handle().file, position, length))
                max_bytes -= length
        except OSError as error:
            raise StorageError(f"{self.folder}: {error}") from error
        return places

    def find_timestamp(self, timestamp: int, limit: int | None = None) -> tuple[int, int] | None:
        """The first record (offset, timestamp) whose timestamp is at least `timestamp` (ms); None without one. Blocks.

        Raises CorruptBatch, StorageError.
        """
        stop = self.end_offset if limit is None else min(limit, self.end_offset)
        while True:
            known = self._segments
            try:
                for segment in known.segments:
                    if segment.base_offset >= stop:
                        break
                    found = segment.find_timestamp(timestamp, self._start, stop)
                    if found:
                        return found
                return None
            except FileNotFoundError as error:
                if self._segments is known:
                    raise StorageError(f"{self.folder}: {error}") from error
            except OSError as error:
                raise StorageError(f"{self.folder}: {error}") from error

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
                segments = self._segments.segments
                gone = [segment for segment in segments[:-1] if segment.next_offset <= offset]
                self._segments = _segments(segments[len(gone) :])
                self._start = offset
            infos = [segment.info() for segment in gone]
            try:
                for segment in gone:
                    segment.retired = True
                    POOL.discard(segment)
                    for suffix in SUFFIXES:
                        self._disk.unlink(segment.path(suffix))
            except OSError as error:
                raise StorageError(f"{self.folder}: {error}") from error
            return infos

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """Syncs and checkpoints, so that the next open reads no batch; lets go of all files. Raises StorageError."""
        try:
            if not self._broken:
                self.checkpoint()
        finally:
            with self._lock:
                self._broken = self._broken or f"{self.folder}: the log is closed"
                self._closed = True
                self._dirty = {}
            for segment in self._segments.segments:
                segment.release()

    def destroy(self) -> None:
        """Removes the log with all its files. Raises StorageError."""
        with self._shaping, self._lock:
            self._broken = f"{self.folder}: the log is deleted"
            self._closed = True
            self._dirty = {}
            for segment in self._segments.segments:
                segment.retired = True
                segment.release()
            with suppress(FileNotFoundError):
                try:
                    self._disk.remove_folder(self.folder)
                except OSError as error:
                    raise StorageError(f"{self.folder}: {error}") from error


def _segments(segments: Sequence[Segment]) -> _Segments:
    return _Segments(tuple(segment.base_offset for segment in segments), tuple(segments))
