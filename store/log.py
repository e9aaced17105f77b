"""One partition's raw stream log: append, sync, read, retain.

reading.py, writing.py and cutting.py do most of it. This file opens, compacts and closes a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from krappy.core import retention
from krappy.core.retention import SegmentInfo
from krappy.errors import StorageError
from krappy.settings.topic import TopicConfig
from krappy.store import cleaner
from krappy.store.cleaner import FREELY, CleaningPace, CleanResult, Survives
from krappy.store.cutting import CuttableLog
from krappy.store.disk import OS_DISK, Disk
from krappy.store.pool import POOL
from krappy.store.reached import Reached
from krappy.store.recovery import Recovered, go_on, recover
from krappy.store.refusals import refusals
from krappy.store.report import RecoveryReport
from krappy.store.scrub import scrub
from krappy.store.segment import Segment
from krappy.store.unsynced import Unsynced


class Log(CuttableLog):
    """Made by `Log.open`. `recovery` tells what opening it found."""

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        super().__init__(folder, config, disk, found)
        self.recovery: RecoveryReport = found.report

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
        reached: Reached | None = None,
    ) -> Log:
        """Opens or makes the log in `folder` and recovers it; a new one starts at `start_offset_hint`.

        With `new`, an empty log is not synced and gets no checkpoint until its first events or a call of `checkpoint`.
        `reached`: its record of how far it has been on disk, which it keeps up to date.
        An exception of `check_stop` ends the opening as a crash would. Raises StorageError when the disk refuses.
        """
        with refusals(folder):
            found = recover(disk, folder, config.index_interval_bytes, start_offset_hint, check_stop, reached)
        log = cls(folder, config, disk, found)
        log._reached = reached
        if found.saved is None:  # the name of the first segment must be on disk before a checkpoint that has it
            log._unsynced.names = True
        if new and found.saved is None and found.report.clean and not log.size:
            return log
        if found.touched or found.saved is None or not found.report.clean:
            log.sync()
            try:
                log.checkpoint()
            except StorageError as error:  # a full disk: the log can be read, and the next open repeats this work
                if log._broken or not log.size:
                    raise
                if found.cut:  # the next open would repeat the truncation, and cut what is appended now
                    log._broken = f"{folder}: a truncation was finished, and it could not be noted: {error}"
        return log

    # ---------------------------------------------------------------- what it holds

    @property
    def broken(self) -> str:
        """Why the log takes no more appends until it is opened again; empty while it takes them."""
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
    def is_synced(self) -> bool:
        """Whether all of it is on disk, and no sync is under way: then `sync` would have nothing to do."""
        return not (self.broken or self._syncing.locked() or self._unsynced)

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
        """Bytes appended since the last checkpoint: the next open checks as many after a crash."""
        return self._unsaved

    def dirty_ratio(self, upto: int) -> float:
        """The share of bytes below the offset `upto` that have not been compacted yet."""
        return retention.dirty_ratio(self.segments, self._clean, upto)

    # ---------------------------------------------------------------- compaction

    def clean(
        self, survives: Survives, upto: int, now_ms: int, pace: CleaningPace = FREELY, markers_upto: int | None = None
    ) -> CleanResult:
        """Compacts the closed segments that end at or before the offset `upto`. Blocks; runs beside appends and reads.
        `markers_upto`: transactions' markers from this offset on stay.

        `survives` decides for some records at a time which stay. Raises what `pace` raises; StorageError; CorruptBatch
        where it meets damage. It cleans nothing behind damage: a tombstone must not go before the events it deletes.
        """
        with self._cleaning, self._finding():
            with self._lock:
                upto, transactions = cleaner.decided(self.producers.stability, upto)
            horizon = now_ms + self.config.delete_retention_ms
            cleaning = cleaner.Cleaning(
                survives, self.producers, transactions, now_ms, horizon, pace, self._owned, markers_upto
            )
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
            with self._lock:  # an older version may have removed markers, and died before it forgot their transactions
                self.producers.stability.drop(markers := transactions.gone(done))
            with self._shaping:
                self._clean = max(self._clean, done)
                self._save(self._start)
            after = sum(segment.size for segment in self._segments.closed if segment.next_offset <= upto)
            return CleanResult(before, after, removed, self._clean, markers)

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Held while a file is created or removed by its name. The log can't be deleted meanwhile. Raises StorageError
        after a deletion: then the folder may be another log's."""
        with self._lock:
            if self._closed:
                raise StorageError(self._broken)
            yield

    def _replace(self, group: Sequence[Segment], rewritten: cleaner.Rewritten) -> bool:
        """Swaps a cleaned segment in, by the steps at the head of cleaner.py. False: retention has removed a segment of
        the group meanwhile."""
        with self._shaping:
            if self._segments.replaced(group, rewritten.segment) is None:
                return False
            # During the swap the checkpoint leaves these segments out and allows missing offsets in them: so it is true
            # whenever a crash comes.
            self._sparse = max(self._sparse, rewritten.segment.next_offset)
            with self._lock:
                self.producers.stability.drop(rewritten.markers)
            if rewritten.markers:
                self.lack(max(rewritten.markers) + 1)
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
            try:
                for file in indexes:
                    file.fdatasync()
            except OSError:  # their content is unknown now; removed ones are made anew
                segment.unlink_indexes()
            with suppress(OSError):
                segment.prove(rewritten.sums)
            return True

    # ---------------------------------------------------------------- doctor, the end

    def scrub(self) -> Iterator[tuple[SegmentInfo, list[str]]]:
        """Reads everything; yields each segment with its faults, in words. Blocks. Raises StorageError."""
        with refusals(self.folder):
            for segment in self._segments:
                yield segment.info(), scrub(segment, self.epochs)

    def rebuild_indexes(self) -> None:
        """Makes all indexes anew from the batches. Blocks; no append may run. Raises CorruptBatch, StorageError."""
        with self._shaping, self._lock, refusals(self.folder):
            for segment in self._segments.closed:
                handle = segment.handle()
                POOL.put(segment, handle._replace(index=segment.rebuild(handle.file).offsets))
            self._active.reindex()

    def close(self) -> None:
        """Syncs and writes a checkpoint, so that the next open reads no batch; closes all files. Raises
        StorageError."""
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
        self.abandon()
        with refusals(self.folder):
            self._disk.remove_folder(self.folder)

    def abandon(self) -> None:
        """Closes all files as they are: another log takes the place of this one. A read that has begun may go on."""
        with self._shaping, self._lock:
            self._broken = self._broken or f"{self.folder}: the log is deleted"
            self._closed = True
            self._unsynced = Unsynced()
            for segment in self._segments:
                segment.retired = True
                segment.release()
