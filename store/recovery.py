"""Opening a log: from a folder's files to segments, producers and a report of what was found.

Everything before the checkpoint's recovery point was on disk and is taken as it is; everything behind it is read and
checked (tail.py). Damage before it is found by reads; it is never cut away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from krappy.core.epochs import Epochs
from krappy.core.retention import SegmentInfo
from krappy.errors import CorruptBatch, StorageError
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import BadCheckpoint, Checkpoint
from krappy.store.disk import Disk, File
from krappy.store.format import (
    CHECKPOINT,
    CLEANED,
    DERIVED,
    INDEX,
    LOG,
    SUFFIXES,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    base_offset,
    file_name,
)
from krappy.store.index import Indexer
from krappy.store.producers import ProducerStates
from krappy.store.reached import Reached
from krappy.store.report import RecoveryReport
from krappy.store.segment import Segment
from krappy.store.sums import Sums
from krappy.store.tail import LogTail
from krappy.store.walk import Damage, headers

MAY_BE_BACK = "; so the log starts with its first file, and events of it that had been deleted may be there again"


@dataclass
class Recovered:
    """A folder's log, ready to be read and appended to."""

    segments: list[Segment]  # the last one is active
    producers: ProducerStates
    epochs: Epochs
    start: int
    clean: int
    sparse: int
    gone_below: int
    saved: Checkpoint | None  # the checkpoint, if both of its files hold it
    touched: list[File]  # files that were checked, cut or written here, and may not be synced yet
    report: RecoveryReport
    high_watermark: int | None = None
    cut: bool = False  # a truncation was finished here, and the checkpoint still has `cut`


def go_on() -> None:
    """The `check_stop` that never ends a recovery."""


def recover(
    disk: Disk,
    folder: Path,
    interval: int,
    start_hint: int,
    check_stop: Callable[[], None] = go_on,
    reached: Reached | None = None,
) -> Recovered:
    """Opens the folder, or makes it: a new log starts at `start_hint`. `interval`: bytes between index entries.
    `reached`: how far the log has been on this disk.

    `check_stop` is called for every batch that is read; its exception ends the recovery and leaves the folder as a
    crash would, for the next open. Raises StorageError when segments are missing that neither retention nor compaction
    has removed; OSError.
    """
    return _Recovery(disk, folder, interval, start_hint, check_stop, reached).run()


class _Recovery(LogTail):
    def __init__(
        self,
        disk: Disk,
        folder: Path,
        interval: int,
        start_hint: int,
        check_stop: Callable[[], None],
        reached: Reached | None,
    ) -> None:
        super().__init__(disk, folder, interval, check_stop)
        self.start_hint, self.reached = start_hint, reached
        self.proofs: dict[int, int] = {}  # of segments, by their base offsets
        self.whole = False  # both files hold the checkpoint

    def run(self) -> Recovered:
        self.disk.mkdir(self.folder)
        self.files = self.disk.names(self.folder)
        if self.files:  # a killed process's renames may not be on disk yet, and all that follows builds on them
            self.disk.fsync_dir(self.folder)
        self.load_checkpoint()
        self.tidy()
        saved = self.saved
        if saved and saved.cut:
            self.finish_cut(saved)
        bases = self.bases()
        start = saved.start if saved else bases[0] if bases else self.start_hint
        self.report.start_unknown = saved is None and bool(bases) and start > 0
        if not bases:
            bases = [self.first_segment()]
        bases = self.drop_expired(bases, start)
        if bases[0] > start:
            raise StorageError(f"{self.folder}: the log starts at offset {start}, but its first segment at {bases[0]}")
        self.producers.stability.forget(start)
        segments = self.closed(bases)
        segments += self.tail(bases[len(segments) :], segments[-1].next_offset if segments else None)
        active = segments[-1]
        if self.reached is not None and saved is not None and not saved.noted:
            self.reached.clear()  # a version that does not know it may have made the log shorter
        elif self.reached is not None:
            self.compare(active, start, self.reached)
        sparse = saved.sparse if saved else max(active.base_offset, self.holes)
        active.dense = active.base_offset >= sparse
        for earlier, later in pairwise(segments):
            if earlier.next_offset != later.base_offset:
                raise StorageError(
                    f"{self.folder}: offsets {earlier.next_offset} to {later.base_offset} are missing: "
                    f"{earlier.path().name} ends where no segment goes on"
                    if earlier.next_offset < later.base_offset
                    else f"{self.folder}: {earlier.path().name} and {later.path().name} overlap"
                )
        self.report.start_offset, self.report.end_offset = min(start, active.next_offset), active.next_offset
        return Recovered(
            segments,
            self.producers,
            self.epochs,
            self.report.start_offset,
            saved.clean if saved else bases[0],
            sparse,
            max(self.gone_below, saved.gone_below if saved else 0),
            saved if self.whole else None,
            self.touched,
            self.report,
            self.high_watermark(active.next_offset),
            saved is not None and saved.cut,
        )

    def compare(self, active: Segment, start: int, reached: Reached) -> None:
        """Finds out whether this is the log that was here, as far as that is known."""
        end, last = reached.offset, reached.offset - 1
        if end > active.next_offset:
            why = "they were on this disk; so this is an old copy of the folder, or the disk has lost them"
            self.fill(active, end, why)
        elif end > start and self.tells_epoch(active, last) and -1 != (found := self.epochs.at(last)) < reached.epoch:
            why = f"it is of leader epoch {found}; this disk had one of {reached.epoch}, so this is an old copy"
            self.lost(active, last, end, why)

    def tells_epoch(self, active: Segment, offset: int) -> bool:
        """Whether the list of leader epochs can be trusted at this offset. A list that was made anew from batches lacks
        the epochs whose events the cleaner has all removed. After a damaged epoch the list is not trusted at all."""
        if self.saved is None:
            return offset >= active.base_offset and not self.misfits
        return self.saved.epochs is not None and not self.misfits

    # ---------------------------------------------------------------- the folder's files

    def load_checkpoint(self) -> None:
        try:
            loaded = checkpoints.load(self.disk, self.folder)
            self.saved, self.whole = loaded.checkpoint, loaded.whole
            self.producers.restore(self.saved.producers, self.saved.transactions)
            known = self.saved.epochs
            self.epochs = Epochs(
                ((0, self.saved.start),) if known is None else known
            )  # None: an earlier version wrote it
            if CHECKPOINT not in self.files:
                self.report.notes.append("the checkpoint was missing; its copy is taken")
            self.report.notes += [f"{problem}; the other one is taken" for problem in loaded.problems]
        except FileNotFoundError:
            if any(base_offset(name, LOG) is not None for name in self.files):
                self.report.notes.append(f"there was no checkpoint{MAY_BE_BACK}")
        except (BadCheckpoint, CorruptBatch) as error:
            self.saved = None
            self.report.notes.append(f"the checkpoint was damaged: {error}{MAY_BE_BACK}")

    def tidy(self) -> None:
        """Deletes unfinished files; finishes swaps that had been decided."""
        for name in sorted(self.files):
            if name.endswith((CLEANED, TEMPORARY)):
                self.remove(name)
        for name in sorted(self.files):
            if name.endswith(LOG + SWAP):
                self.finish_swap(name)
        for name in sorted(self.files):
            if name.endswith(SWAP):
                self.remove(name)
        for name in sorted(self.files):
            for suffix in DERIVED:
                base = base_offset(name, suffix)
                if base is not None and file_name(base, LOG) not in self.files:
                    self.remove(name)

    def finish_swap(self, name: str) -> None:
        """Puts a cleaned segment in the place of those that it replaces (see FORMAT.md)."""
        base = base_offset(name.removesuffix(SWAP), LOG)
        if base is None:
            return
        end = base
        file = self.disk.open(self.folder / name)
        try:
            for _, header in headers(file, 0, self.files[name][0], base, dense=False):
                self.check_stop()
                end = header.next_offset
        except Damage as damage:
            raise StorageError(f"{self.folder / name} at position {damage.position}: {damage.text}") from None
        replaced = [other for other in self.bases() if base < other < end]
        for other in (*replaced, base):
            for suffix in SUFFIXES:
                if other != base or suffix != LOG:
                    self.remove(file_name(other, suffix))
        self.disk.fsync_dir(self.folder)
        self.disk.rename(self.folder / name, self.folder / file_name(base, LOG))
        self.disk.fsync_dir(self.folder)
        self.files[file_name(base, LOG)] = self.files.pop(name)
        self.report.notes.append(f"a cleaning of offsets {base} to {end} was finished")

    def finish_cut(self, saved: Checkpoint) -> None:
        """Finishes a truncation that had been decided: removes all behind its end (see cutting.py)."""
        for base in reversed(self.bases()):
            if base > saved.segment:
                for suffix in SUFFIXES:
                    self.remove(file_name(base, suffix))
        for suffix in DERIVED:
            self.remove(file_name(saved.segment, suffix))
        name = file_name(saved.segment, LOG)
        size, changed_ms = self.files.get(name, (0, 0))
        if size > saved.position:
            file = self.disk.open(self.folder / name, write=True)
            file.truncate(saved.position)
            self.touched.append(file)
            self.files[name] = saved.position, changed_ms
        self.report.notes.append(f"a truncation to offset {saved.recovery} was finished")

    def high_watermark(self, end: int) -> int | None:
        """The high watermark of the checkpoint, or of the log's record, limited to the log's offsets; None if neither
        is known."""
        saved, noted = self.saved, 0 if self.reached is None else self.reached.committed
        known = None if saved is None else saved.high_watermark
        if noted:
            known = max(noted, known or 0)
        return None if known is None else max(self.report.start_offset, min(known, end))

    def bases(self) -> list[int]:
        return sorted(base for name in self.files if (base := base_offset(name, LOG)) is not None)

    def first_segment(self) -> int:
        saved = self.saved
        if saved:
            raise StorageError(f"{self.folder}: there are no segments; it held offsets up to {saved.recovery} at least")
        base = self.start_hint
        self.disk.open(self.folder / file_name(base, LOG), create=True)  # its name is synced with its first checkpoint
        self.files[file_name(base, LOG)] = (0, 0)
        return base

    def drop_expired(self, bases: list[int], start: int) -> list[int]:
        """Finishes a deletion that had moved the start but not removed all files. Returns the base offsets left."""
        while len(bases) > 1 and bases[1] <= start:
            for suffix in SUFFIXES:
                self.remove(file_name(bases[0], suffix))
            bases = bases[1:]
        return bases

    # ---------------------------------------------------------------- before the recovery point

    def closed(self, bases: list[int]) -> list[Segment]:
        """The segments before the one that holds the recovery point; without a checkpoint, all but the last."""
        saved = self.saved
        if saved and saved.segment < bases[0] and saved.recovery <= bases[0]:
            return []  # a deletion removed it, and all segments begin at or behind the recovery point
        if saved and saved.segment not in bases:
            raise StorageError(
                f"{self.folder}: {file_name(saved.segment, LOG)} is missing; it held offsets from {saved.segment} on, "
                f"up to {saved.recovery}"
            )
        until = saved.segment if saved else bases[-1]
        known = {info.base_offset: info for info in saved.closed} if saved else {}
        self.proofs = dict(saved.proofs) if saved else {}
        return [
            self.trusted(known[base]) if base in known else self.measured(base, following)
            for base, following in pairwise(bases)
            if base < until
        ]

    def trusted(self, info: SegmentInfo) -> Segment:
        segment = self.segment(info.base_offset, info.next_offset, info.size, info.max_timestamp, info.created_ms)
        segment.proof = self.proofs.get(info.base_offset)
        size, changed_ms = self.files[segment.path().name]
        if segment.created_ms is None:
            segment.created_ms = changed_ms
        if info.appended_ms is not None:
            segment.appended_ms = info.appended_ms
        if size != info.size:
            self.report.damage.append(f"{segment.path()} has {size} bytes; it had {info.size} when it was closed")
        if any(segment.path(suffix).name not in self.files for suffix in (INDEX, TIME_INDEX)):  # lost with the power
            file = self.disk.open(segment.path())
            with contextlib.closing(file), contextlib.suppress(OSError, CorruptBatch):  # a read tries again, and tells
                segment.rebuild(file)
        return segment

    def measured(self, base: int, following: int) -> Segment:
        """A closed segment that is in no checkpoint: its headers are read, its indexes made anew."""
        name = file_name(base, LOG)
        size, changed_ms = self.files[name]
        segment = self.segment(base, base, size, -1, changed_ms)
        indexer = Indexer(self.interval)
        file = self.disk.open(segment.path())
        learn = self.saved is None
        if learn:  # it may not be on disk, and the next checkpoint will say that it is
            file.forget_cached()
            self.touched.append(file)
        try:
            for position, header in headers(file, 0, size, base, dense=segment.dense):
                if header.next_offset > following:
                    raise Damage(position, "offsets", f"offset {header.last_offset} where the next segment begins")
                data = file.pread(header.size, position) if learn and header.is_control else None
                self.note(indexer, base, position, header, changed_ms, learn=learn, data=data)
                if learn:
                    self.note_gone(header, segment.next_offset)
                segment.next_offset = header.next_offset
        except Damage as damage:
            self.report.damage.append(f"{segment.path()} at position {damage.position}: {damage.text}")
            segment.next_offset = following
            segment.max_timestamp = changed_ms  # behind the damage may be later events: those must not expire
        segment.max_timestamp = max(segment.max_timestamp, indexer.max_timestamp)
        self.write_indexes(segment, indexer, file)
        if self.saved and not segment.dense and not self.report.damage:  # the cleaner had just been here
            with contextlib.suppress(OSError):
                segment.prove(Sums.of(file, size, lambda _: self.check_stop()))
        return segment
