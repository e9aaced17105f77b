"""Writing to a partition's log: append, roll, sync, checkpoint.

Rules of this file. Appends come one at a time; reads may run at any time. What a reader sees is published in an order
that keeps it whole: bytes in the file, then `size` and `next_offset` of the segment, then the tuple of segments, then
`end_offset`. Nothing is promised before `sync` has returned: an event that was read before may be gone after a power
loss, so the broker's high watermark follows `sync`, not `append`. A sync that failed is never tried again (fsyncgate:
the kernel drops the pages that it could not write): the log takes no more appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock

from krappy.core import retention
from krappy.core.epochs import Epochs, fall
from krappy.core.retention import SegmentInfo
from krappy.errors import CorruptBatch, StorageError
from krappy.records.batch import LENGTH_END, BatchHeader, read_stamp, split
from krappy.settings.topic import TopicConfig
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import Checkpoint
from krappy.store.disk import NOT_OPENED, Buffer, Disk
from krappy.store.format import MAX_RELATIVE
from krappy.store.index import Indexer
from krappy.store.producers import ProducerStates
from krappy.store.reached import Reached
from krappy.store.reading import ReadableLog
from krappy.store.recovery import Recovered
from krappy.store.refusals import refusals
from krappy.store.run import AppendRun
from krappy.store.segment import Segment
from krappy.store.unsynced import Unsynced
from krappy.store.walk import lacking
from krappy.types import Span

CHECKPOINT_BYTES = 64 << 20  # appended since the last checkpoint: the most that a crash leaves to be read again
# Offsets by which `sparse` is raised ahead, so that a fetched log with holes needs no checkpoint for each hole.
HOLES_AHEAD = 1 << 20

# Calls the first function in another thread, and then, in the caller's, the second one with its exception or None.
# Gives False if it can't.
BeginSync = Callable[[Callable[[], object], Callable[[Exception | None], None]], bool]
Batch = tuple[BatchHeader, bytes | memoryview]
Placed = tuple[BatchHeader, bytes | memoryview, int, int]  # header, bytes, base offset, leader epoch


class WritableLog(ReadableLog):
    """The part of `Log` that writes. It keeps `producers` and `epochs` up to date.

    `high_watermark`: the offset below which all is committed, set by the caller; None: never set. Each checkpoint saves
    it, so after a crash it may be an earlier one. That is harmless: it rises again.

    `gone_below`: tombstones and transactions' markers from before this offset may be missing: the cleaner has removed
    them, here or on the broker that this log was fetched from. So another log that ends before that offset can't be
    continued with this one: some of its events might never be deleted (see replica_fetch.py).
    """

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        super().__init__(folder, config, disk, found)
        self.producers: ProducerStates = found.producers
        self.epochs: Epochs = found.epochs
        self.high_watermark: int | None = found.high_watermark
        self._clean = found.clean
        self._sparse = found.sparse
        self._gone_below = found.gone_below
        self._saved: Checkpoint | None = found.saved
        self._synced = self.end_offset
        self._syncing = Lock()  # held during fdatasync: the second of two syncs waits for the first
        self._shaping = Lock()  # held while segments are taken away or replaced, and the checkpoint with them
        self._unsynced = Unsynced()
        self._unsynced.mark(found.touched)
        self._unsynced.names = not found.report.clean
        self._unsaved = 0  # bytes appended since the checkpoint
        self._cache = disk.page_cache(folder)
        # Whether the next sync has to write a checkpoint: the saved one has another page cache or active segment, or an
        # earlier version wrote it.
        self._owed = found.saved is None or found.saved.cache != self._cache or not found.saved.noted
        self._first = found.saved is None  # no checkpoint was written yet
        self._reached: Reached | None = None
        self._is_cut = False  # it is being made shorter: its record says nothing meanwhile

    @property
    def gone_below(self) -> int:
        return self._gone_below

    def lack(self, below: int) -> None:
        """To be called before tombstones or markers are removed: `gone_below` is at least this from now on."""
        with self._lock:
            self._gone_below = max(self._gone_below, below)

    def verify_epoch(self, batch: Buffer, cuts: int) -> None:
        """To be called before batches go to another broker's log, with the head of the first one, and with what `cuts`
        was before they were read. Raises CorruptBatch, and notes the damage, if the batch has another leader epoch than
        this log had there: no checksum covers that, and no follower takes it."""
        base, epoch = read_stamp(batch)
        if not self.epochs.mismatch(epoch, base):
            return
        with self._lock:  # the list and the batches change together
            if self._cuts != cuts or not (text := self.epochs.mismatch(epoch, base)):
                return
            self.damage = f"{self.folder}: the batch at offset {base} is damaged: {text}"
            raise CorruptBatch(self.damage)

    def verify(self, offset: int, max_bytes: int) -> Span:
        """As `read_span`; verifies the leader epochs of all its batches, too."""
        cuts = self.cuts
        span = self.read_span(offset, max_bytes)
        for _, data in split(span.data):
            self.verify_epoch(data, cuts)
        return span

    def append(self, batches: Sequence[Batch], epoch: int, now_ms: int) -> int:
        """Gives the batches the next offsets and writes them; returns the first one's base offset. Blocks; one call at
        a time.

        The batches must have been checked (`batch.check`); only their first 16 bytes are changed (`batch.stamp`). Not
        durable before `sync`. All or nothing: raises StorageError when the disk refuses, CorruptBatch when a header
        does not fit its batch, and then nothing is changed.
        """
        if self._first:
            last = self.end_offset + sum(header.last_offset_delta + 1 for header, _ in batches) - 1
            self._prepare_roll(batches, last, now_ms)
        with self._lock:
            first = self.end_offset
            self._write(_following(batches, first, epoch), now_ms)
            self.epochs.note(epoch, first)
            return first

    def append_as_is(self, batches: Sequence[Batch], now_ms: int) -> int:
        """Writes batches as another broker's log has them, with their offsets and leader epochs; returns the log's new
        end.

        Offsets may be missing between and before them, because compaction removed them there. The batches must have
        been checked, as for `append`. Each must begin at or after the end of the one before it, end no further behind
        that than a segment may span, and have no lower leader epoch than the events before it (-1: its epoch is not
        known); else raises ValueError. Raises CorruptBatch if a batch's length is not what its header says. Nothing is
        changed then. The rest is as for `append`.

        Before the first batch behind a hole, a checkpoint is written that allows holes: else they would look like
        damage after a crash.
        """
        holes, gone = self._check_order(batches)
        if holes > self._sparse:
            self._expect_holes(holes)
        if self._first and batches:
            self._prepare_roll(batches, batches[-1][0].last_offset, now_ms)
        with self._lock:
            end = self.end_offset
            self._write([(header, data, header.base_offset, header.leader_epoch) for header, data in batches], now_ms)
            self._gone_below = max(self._gone_below, gone)
            if batches:
                self.epochs.cut(end)  # forgets an epoch without events: the batches may have an earlier one
            for header, _ in batches:
                self.epochs.note(header.leader_epoch, header.base_offset)
            return self.end_offset

    def _check_order(self, batches: Sequence[Batch]) -> tuple[int, int]:
        """(the offset at which the last hole before or between these batches ends, 0 without any; the offset behind the
        last event that is missing before or in them, 0 without any). Raises ValueError."""
        end = self.end_offset
        epoch = self.epochs.at(end - 1)
        holes = gone = 0
        for header, _ in batches:
            if header.base_offset < end:
                raise ValueError(f"{self.folder}: a batch at offset {header.base_offset}, where {end} comes next")
            if header.last_offset - end > MAX_RELATIVE:
                raise ValueError(f"{self.folder}: a batch ends at offset {header.last_offset}, too far behind {end}")
            if why := fall(header.leader_epoch, epoch):
                raise ValueError(f"{self.folder}: the batch at offset {header.base_offset}: {why}")
            if header.base_offset > end:
                holes = header.base_offset
            gone = max(gone, lacking(header, end))
            end, epoch = header.next_offset, max(epoch, header.leader_epoch)
        return holes, gone

    def _expect_holes(self, upto: int) -> None:
        """Notes durably that offsets below `upto` + HOLES_AHEAD may be missing. Raises StorageError."""
        with self._shaping:
            before, self._sparse = self._sparse, upto + HOLES_AHEAD
            try:
                self._save(self._start)
            except BaseException:
                self._sparse = before
                raise
            self._active.dense = False

    def _prepare_roll(self, batches: Sequence[Batch], last_offset: int, now_ms: int) -> None:
        """Writes the log's first checkpoint if these batches may need a second segment. Raises StorageError.

        Without a checkpoint, recovery takes all segments but the last for whole. What a failed sync lost of them would
        then be damage, though nobody was told that it is stored.
        """
        segment, size = self._active, sum(len(data) for _, data in batches)
        created_ms = segment.created_ms if segment.size else now_ms
        info = SegmentInfo(segment.base_offset, self.end_offset, max(1, segment.size), -1, created_ms)
        if retention.must_roll(self.config, info, size, last_offset, now_ms):
            self.checkpoint()

    def _write(self, batches: Iterable[Placed], now_ms: int) -> None:
        """Writes and publishes the batches, or none of them. `_lock` is held. Raises StorageError, CorruptBatch."""
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
        """After a failed append: cuts the active file to its size before, and removes new files. Durable after the next
        sync.

        The last file goes first: after a kill in between, no file may begin behind missing offsets.
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
        if self._first and self._active.size:
            self.checkpoint()
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
        """Makes all durable that was appended before this call. Returns the offset up to which the log is durable.
        Blocks.

        Now and then it writes a checkpoint too, so that little has to be read again after a crash. Raises StorageError
        when the disk refuses; then the log takes no more appends (`broken`), unless only a file descriptor was missing,
        or the folder.
        """
        with self._syncing:
            with self._lock:
                if self._broken:
                    raise StorageError(self._broken)
                end, unsynced, self._unsynced = self.end_offset, self._unsynced, Unsynced()
            try:
                unsynced.sync(self._disk, self.folder)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in NOT_OPENED:
                    with self._lock:
                        self._unsynced.join(unsynced)
                    raise StorageError(f"{self.folder}: not synced yet: {error}") from error
                raise self._lost(error) from error
            self._synced = end
            self._note_reached(end)
        if self._is_due and self._shaping.acquire(blocking=False):
            try:
                with suppress(StorageError):  # a full disk; the sync itself is done
                    self._save(self._start)
            finally:
                self._shaping.release()
        return end

    def is_short(self, size: int, now_ms: int) -> bool:
        """Whether an append of `size` bytes, and then `begin_sync`, would need little more than a system call each: no
        segment is full or too old, no checkpoint is due, no sync is under way, and nobody changes the log."""
        if self._is_due or self._syncing.locked() or self._lock.locked() or self._unsynced.names:
            return False
        segment, end = self._active, self.end_offset
        created_ms = segment.created_ms if segment.size else now_ms
        info = SegmentInfo(segment.base_offset, end, max(1, segment.size), -1, created_ms)
        return not retention.must_roll(self.config, info, size, end, now_ms)

    def begin_sync(self, begin: BeginSync, done: Callable[[int | StorageError], None]) -> bool:
        """As `sync`, but does not block: `begin` makes the system call, and `done` gets the offset or the error. False:
        nothing was begun, because more has to be done than one fdatasync, because somebody else changes or syncs the
        log now, or because `begin` can't. Then call `sync`."""
        if not self._syncing.acquire(blocking=False):
            return False
        begun = False
        try:
            if self._lock.acquire(blocking=False):
                try:
                    file = None if self._broken or self._is_due else self._unsynced.only
                    if file is not None and begin(file.fdatasync, partial(self._end_sync, self.end_offset, done)):
                        self._unsynced, begun = Unsynced(), True
                finally:
                    self._lock.release()
        finally:
            if not begun:
                self._syncing.release()
        return begun

    def _end_sync(self, end: int, done: Callable[[int | StorageError], None], error: Exception | None) -> None:
        """The sync of everything before the offset `end` has ended."""
        result: int | StorageError = end
        try:
            if error is None:
                self._synced = end
                self._note_reached(end)
            else:
                result = self._lost(error)
        finally:
            self._syncing.release()
        done(result)

    @property
    def _is_due(self) -> bool:
        """Whether the next sync has to write a checkpoint."""
        return self._unsaved >= CHECKPOINT_BYTES or bool(self._owed and self._unsaved)

    def _lost(self, error: Exception) -> StorageError:
        """A sync has failed: nobody knows what of the appended is on disk."""
        self._broken = f"{self.folder}: a sync failed, so what was appended since the last may be lost: {error}"
        return StorageError(self._broken)

    @property
    def is_in_place(self) -> bool:
        """Whether its folder is where it was: else an open file takes what is appended, and the next open will not find
        that."""
        segment = self._active
        held = segment.held  # None: it has been closed since
        return held is None or self._disk.is_at(segment.path(), held.file) or held is not segment.held

    def refuse(self, why: str) -> None:
        """It takes no more appends from now on. Does not block: an append may hold the lock while the disk hangs."""
        self._broken = self._broken or f"{self.folder}: {why}"

    def _note_reached(self, end: int) -> None:
        if self._reached is not None and not (self._broken or self._is_cut):
            self._reached.note(end, self.epochs.at(end - 1))

    @property
    def owes_committed(self) -> bool:
        """Whether `note_committed` would note something."""
        high_watermark, reached = self.high_watermark, self._reached
        if high_watermark is None or reached is None:
            return False
        return min(high_watermark, reached.offset) > reached.committed

    def note_committed(self) -> None:
        """Notes how far the log is committed, without a sync: after a kill, the next open knows it. Blocks."""
        if self.owes_committed and self._reached is not None and self.high_watermark is not None and not self._is_cut:
            self._reached.commit(self.high_watermark)

    def checkpoint(self) -> None:
        """Syncs, then writes a checkpoint, so that the next open reads no batch before the present end of the log.
        Blocks. Raises StorageError."""
        with self._shaping:
            self._save(self._start)

    def settle(self) -> None:
        """Syncs and writes the first checkpoint, if there is none yet. Blocks. Raises StorageError."""
        with self._shaping:
            if self._first:
                self._save(self._start)

    def _save(self, start: int, forget: Sequence[Segment] = ()) -> None:
        """Writes a checkpoint of the present state, with this start of the log and without the segments in `forget`.
        `_shaping` is held."""
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
                    gone_below=self._gone_below,
                )
                if self._saved:
                    state = state.knowing(self._saved, max((segment.next_offset for segment in forget), default=0))
                self._unsaved = 0
            self.sync()
            if self._saved and state == self._saved._replace(cache=self._cache):
                return
            self._saved, self._owed = None, True  # a save that fails may have written one file of the two
            checkpoints.save(self._disk, self.folder, state)
            self._first = False
            self._saved, self._owed = state, self._active.base_offset != state.segment


def _following(batches: Iterable[Batch], offset: int, epoch: int) -> Iterator[Placed]:
    """The batches with the offsets from `offset` on, all in this leader epoch."""
    for header, data in batches:
        yield header, data, offset, epoch
        offset += header.last_offset_delta + 1
