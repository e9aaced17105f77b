"""Opening a log: from a folder's files to segments, producers and a report of what was found.

Everything before the checkpoint's recovery point was on disk and is taken as it is; everything behind it is read and
checked, and the log is cut at the first batch that is torn or corrupt. Damage before it is reported, and met by
whoever reads there; it is never cut away. Nothing here depends on how the last run ended.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from krappy import batch
from krappy.core.retention import SegmentInfo
from krappy.errors import CorruptBatch, StorageError
from krappy.store import checkpoint as checkpoints
from krappy.store.checkpoint import BadCheckpoint, Checkpoint
from krappy.store.disk import Buffer, Disk, File
from krappy.store.format import (
    CHECKPOINT,
    CLEANED,
    INDEX,
    INDEX_ENTRY,
    LOG,
    MAX_RELATIVE,
    SET_ASIDE,
    SUFFIXES,
    SWAP,
    TEMPORARY,
    TIME_ENTRY,
    TIME_INDEX,
    base_offset,
    file_name,
)
from krappy.store.index import BadIndex, Indexer, OffsetIndex, TimeIndex
from krappy.store.producers import ProducerStates
from krappy.store.segment import NONE, Flushed, Segment
from krappy.store.walk import Damage, batches, headers

MAY_BE_BACK = "; so the log starts with its first file, and events of it that had been deleted may be there again"


@dataclass
class RecoveryReport:
    """What opening a log found. `str()` of it is one line for the broker's log."""

    folder: str
    start_offset: int = 0
    end_offset: int = 0
    checked_bytes: int = 0  # read behind the recovery point
    cut_bytes: int = 0  # of the segment's file that was cut, and of files behind it
    cut_file: str = ""
    cut_position: int = 0
    cut_reason: str = ""  # "torn" | "zeros" | "checksum" | "structure" | "offsets"
    cut_text: str = ""
    set_aside: list[str] = field(default_factory=list)  # files that keep cut bytes in which whole batches stand
    lost_offsets: int = 0  # that were on disk once, by the checkpoint, and are gone: they stay empty
    damage: list[str] = field(default_factory=list)  # what stays as it is, and fails when it is read
    notes: list[str] = field(default_factory=list)  # what was put right: a bad checkpoint, a half-done clean

    @property
    def clean(self) -> bool:
        """Nothing was cut, lost, damaged or put right."""
        return not (self.cut_bytes or self.lost_offsets or self.damage or self.notes)

    @property
    def why(self) -> str:
        """What was cut, in words."""
        if not self.cut_bytes:
            return ""
        return f"{self.cut_file} at position {self.cut_position}: {self.cut_reason} ({self.cut_text})"

    def __str__(self) -> str:
        parts = [f"{self.folder}: offsets {self.start_offset} to {self.end_offset}"]
        if self.checked_bytes:
            parts.append(f"{self.checked_bytes} bytes checked")
        if self.cut_bytes:
            parts.append(f"{self.cut_bytes} bytes cut from {self.why}")
        if self.set_aside:
            parts.append("kept aside: " + ", ".join(self.set_aside))
        if self.lost_offsets:
            parts.append(f"{self.lost_offsets} OFFSETS LOST that had been on disk")
        parts += [f"DAMAGE: {text}" for text in self.damage]
        return "; ".join(parts + self.notes)


@dataclass
class Recovered:
    """A folder's log, ready to be read and appended to."""

    segments: list[Segment]  # the last one is active
    producers: ProducerStates
    start: int
    clean: int
    sparse: int
    saved: Checkpoint | None  # as it stands in the folder, in both of its files
    touched: list[File]  # what was checked, cut or written here, and may not be synced yet
    report: RecoveryReport


def go_on() -> None:
    """Never ends a recovery."""


def recover(
    disk: Disk, folder: Path, interval: int, start_hint: int, check_stop: Callable[[], None] = go_on
) -> Recovered:
    """Opens the folder, made if need be: a new log starts at `start_hint`. `interval`: bytes between index entries.

    `check_stop` is called for every batch that is read; what it raises ends the recovery, and leaves the folder as a
    crash in the midst of it would: for the next open. Raises StorageError when segments are missing that no retention
    or compaction explains; OSError.
    """
    return _Recovery(disk, folder, interval, start_hint, check_stop).run()


class _Recovery:
    def __init__(
        self, disk: Disk, folder: Path, interval: int, start_hint: int, check_stop: Callable[[], None]
    ) -> None:
        self.disk = disk
        self.check_stop = check_stop
        self.folder = folder
        self.interval = interval
        self.start_hint = start_hint
        self.report = RecoveryReport(str(folder))
        self.producers = ProducerStates()
        self.touched: list[File] = []
        self.files: dict[str, tuple[int, int]] = {}
        self.saved: Checkpoint | None = None
        self.whole = False  # it stands in both of its files

    def run(self) -> Recovered:
        self.disk.mkdir(self.folder)
        self.files = self.disk.names(self.folder)
        self.load_checkpoint()
        self.tidy()
        bases = self.bases()
        saved = self.saved
        start = saved.start if saved else bases[0] if bases else self.start_hint
        if not bases:
            bases = [self.first_segment()]
        bases = self.drop_expired(bases, start)
        if bases[0] > start:
            raise StorageError(f"{self.folder}: the log starts at offset {start}, but its first segment at {bases[0]}")
        self.producers.stability.forget(start)
        segments = self.closed(bases)
        segments += self.tail(bases[len(segments) :], segments[-1].next_offset if segments else None)
        active = segments[-1]
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
            self.report.start_offset,
            saved.clean if saved else bases[0],
            saved.sparse if saved else active.base_offset,
            saved if self.whole else None,
            self.touched,
            self.report,
        )

    # ---------------------------------------------------------------- what stands in the folder

    def load_checkpoint(self) -> None:
        try:
            loaded = checkpoints.load(self.disk, self.folder)
            self.saved, self.whole = loaded.checkpoint, loaded.whole
            self.producers.restore(self.saved.producers, self.saved.transactions)
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
        """Throws away what was never finished; finishes what had been decided."""
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
            for suffix in (INDEX, TIME_INDEX):
                base = base_offset(name, suffix)
                if base is not None and file_name(base, LOG) not in self.files:
                    self.remove(name)

    def finish_swap(self, name: str) -> None:
        """A cleaned segment that had been made to replace others: they go, it takes its place (see FORMAT.md)."""
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

    def remove(self, name: str) -> None:
        self.disk.unlink(self.folder / name)
        self.files.pop(name, None)

    def bases(self) -> list[int]:
        return sorted(base for name in self.files if (base := base_offset(name, LOG)) is not None)

    def first_segment(self) -> int:
        saved = self.saved
        if saved:
            raise StorageError(
                f"{self.folder}: there are no segments, and each log has one; it held offsets up to {saved.recovery}, or more"
            )
        base = self.start_hint
        self.disk.open(self.folder / file_name(base, LOG), create=True)
        self.disk.fsync_dir(self.folder)
        self.files[file_name(base, LOG)] = (0, 0)
        return base

    def drop_expired(self, bases: list[int], start: int) -> list[int]:
        """Finishes a deletion: the start had moved, the files had not all gone."""
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
            return []  # it went with a deletion, and what came after the recovery point begins with the first segment
        if saved and saved.segment not in bases:
            raise StorageError(
                f"{self.folder}: {file_name(saved.segment, LOG)} is missing; it held offsets from {saved.segment} on, "
                f"up to {saved.recovery}"
            )
        until = saved.segment if saved else bases[-1]
        known = {info.base_offset: info for info in saved.closed} if saved else {}
        return [
            self.trusted(known[base]) if base in known else self.measured(base, following)
            for base, following in pairwise(bases)
            if base < until
        ]

    def trusted(self, info: SegmentInfo) -> Segment:
        segment = self.segment(info.base_offset, info.next_offset, info.size, info.max_timestamp, info.created_ms)
        size, changed_ms = self.files[segment.path().name]
        if segment.created_ms is None:
            segment.created_ms = changed_ms
        if size != info.size:
            self.report.damage.append(f"{segment.path()} has {size} bytes; it had {info.size} when it was closed")
        return segment

    def measured(self, base: int, following: int) -> Segment:
        """A closed segment of which no checkpoint tells: its headers are read, its indexes made anew."""
        name = file_name(base, LOG)
        size, changed_ms = self.files[name]
        segment = self.segment(base, base, size, -1, changed_ms)
        indexer = Indexer(self.interval)
        file = self.disk.open(segment.path())
        try:
            for position, header in headers(file, 0, size, base, dense=segment.dense):
                if header.next_offset > following:
                    raise Damage(position, "offsets", f"offset {header.last_offset} where the next segment begins")
                learn = self.saved is None
                data = file.pread(header.size, position) if learn and header.is_control else None
                self.note(indexer, base, position, header, changed_ms, learn=learn, data=data)
                segment.next_offset = header.next_offset
        except Damage as damage:
            self.report.damage.append(f"{segment.path()} at position {damage.position}: {damage.text}")
            segment.next_offset = following
            segment.max_timestamp = changed_ms  # behind it may be later ones than before it: those must not expire
        segment.max_timestamp = max(segment.max_timestamp, indexer.max_timestamp)
        self.write_indexes(segment, indexer, file)
        return segment

    # ---------------------------------------------------------------- behind the recovery point

    def tail(self, bases: list[int], expected: int | None) -> list[Segment]:
        """The segments from the recovery point on, every batch checked; cut at the first that is wrong."""
        saved = self.saved
        segments: list[Segment] = []
        cut = False
        for base in bases:
            if cut or (expected is not None and base != expected and segments):
                # A file that was cut, or never written in full: what is behind it was never promised to anybody.
                if not cut:
                    self.cut_here(
                        segments[-1], "offsets", f"offset {expected} comes next, a segment begins with {base}"
                    )
                cut = True
                self.drop(base)
                continue
            from_here = saved if saved and base == saved.segment else None
            segment, cut = self.checked(base, from_here)
            segments.append(segment)
            expected = segment.next_offset
        for segment in segments[:-1]:
            self.touched += segment.seal()
            segment.release()
        return segments

    def checked(self, base: int, saved: Checkpoint | None) -> tuple[Segment, bool]:
        """One segment, read from its recovery point on; whether it was cut. It comes back activated."""
        size, changed_ms = self.files[file_name(base, LOG)]
        segment = self.segment(base, base, 0, -1, changed_ms)
        segment.dense = base >= (self.saved.sparse if self.saved else base)
        file = self.disk.open(segment.path(), write=True)
        indexer, flushed, position, expected = Indexer(self.interval), (NONE, NONE), 0, base
        if saved and size >= saved.position:
            position, expected = saved.position, saved.recovery
            if saved.position and saved.created_ms is not None:  # else what it got came later
                segment.created_ms = saved.created_ms
            indexer, flushed = self.known_indexes(segment, file, saved)
        checked_from, damage = position, None
        try:
            for at, header, data in batches(file, position, size, expected, dense=segment.dense):
                if header.last_offset - base > MAX_RELATIVE:
                    raise Damage(at, "offsets", f"offset {header.last_offset} is too far from the segment's first")
                learn = not saved or expected >= saved.recovery
                self.note(indexer, base, at, header, changed_ms, learn=learn, data=data)
                position, expected = at + header.size, header.next_offset
        except Damage as found:
            damage = found
        self.report.checked_bytes += size - checked_from
        segment.size, segment.next_offset = position, expected
        segment.activate(file, indexer, flushed)
        if damage:
            self.cut_here(segment, damage.reason, damage.text)
        if saved and expected < saved.recovery:
            self.fill(segment, saved.recovery)
            damage = None
        if size > checked_from or damage:
            self.touched.append(file)
        segment.max_timestamp = indexer.max_timestamp
        return segment, damage is not None

    def known_indexes(self, segment: Segment, file: File, saved: Checkpoint) -> tuple[Indexer, tuple[Flushed, Flushed]]:
        """The indexes up to the recovery point, from their files if those are whole, else from the log."""
        indexer = Indexer(self.interval)
        if not saved.position:
            return indexer, (NONE, NONE)
        base = segment.base_offset
        with contextlib.suppress(FileNotFoundError, BadIndex):
            entries = self.disk.read_file(segment.path(INDEX))[: INDEX_ENTRY.size * saved.entries]
            times = self.disk.read_file(segment.path(TIME_INDEX))[: TIME_ENTRY.size * saved.time_entries]
            if zlib.crc32(entries) == saved.entries_crc and zlib.crc32(times) == saved.time_entries_crc:
                indexer.offsets = OffsetIndex.unpack(entries, saved.position)
                indexer.times = TimeIndex.unpack(times)
                indexer.since = saved.position - (indexer.offsets.positions[-1] if entries else 0)
                indexer.max_timestamp = saved.max_timestamp
                indexer.max_timestamp_offset = saved.max_timestamp_offset
                return indexer, (
                    Flushed(saved.entries, saved.entries_crc),
                    Flushed(saved.time_entries, saved.time_entries_crc),
                )
        try:
            for at, header in headers(file, 0, saved.position, base, dense=segment.dense):
                self.check_stop()
                indexer.note(header.last_offset - base, at, header.size, header.max_timestamp)
        except Damage as damage:
            self.report.damage.append(f"{segment.path()} at position {damage.position}: {damage.text}")
        self.report.notes.append(f"the indexes of {segment.path().name} were rebuilt")
        return indexer, (NONE, NONE)

    def cut_here(self, segment: Segment, reason: str, text: str) -> None:
        """Cuts the file behind the segment's last good batch."""
        report, position, file = self.report, segment.size, segment.file
        size = file.size()
        if size > position and reason not in ("torn", "zeros"):
            self.keep_aside(segment, size)
        report.cut_bytes += size - position
        report.cut_file, report.cut_position = str(segment.path()), position
        report.cut_reason, report.cut_text = reason, text
        file.truncate(position)

    def keep_aside(self, segment: Segment, size: int) -> None:
        """When a whole batch follows the bad one, it is damage and no torn write: people may want the bytes."""
        data = segment.file.pread(size - segment.size, segment.size)
        try:
            batch.check(data, int.from_bytes(data[8 : batch.LENGTH_END], "big") + batch.LENGTH_END)
        except CorruptBatch:
            return
        path = segment.path(f"{LOG}.{segment.size}{SET_ASIDE}")
        with contextlib.suppress(OSError):  # a full disk must not stop the broker from starting
            self.disk.write_file(path, data)
            self.report.set_aside.append(str(path))

    def drop(self, base: int) -> None:
        """A segment behind the cut."""
        name = file_name(base, LOG)
        size = self.files[name][0]
        self.report.cut_bytes += size
        for suffix in (INDEX, TIME_INDEX):
            self.remove(file_name(base, suffix))
        if size:
            self.disk.rename(self.folder / name, self.folder / (name + SET_ASIDE))
            self.report.set_aside.append(str(self.folder / (name + SET_ASIDE)))
            self.files.pop(name)
        else:
            self.remove(name)

    def fill(self, segment: Segment, until: int) -> None:
        """An empty batch over offsets that were given out and are gone, so that they are never given out again."""
        first = segment.next_offset
        self.report.lost_offsets += until - first
        one = batch.encode(None, [b""], timestamps=-1, base_offset=first, offsets=[until - 1])
        empty = batch.keep(one, ())
        assert empty is not None
        assert segment.indexer is not None
        segment.file.write([empty], segment.size)
        segment.indexer.note(until - 1 - segment.base_offset, segment.size, len(empty), -1)
        segment.size += len(empty)
        segment.next_offset = until
        self.touched.append(segment.file)

    # ---------------------------------------------------------------- parts

    def segment(self, base: int, next_offset: int, size: int, max_timestamp: int, created_ms: int | None) -> Segment:
        return Segment(
            self.disk,
            self.folder,
            base,
            next_offset=next_offset,
            size=size,
            max_timestamp=max_timestamp,
            created_ms=created_ms,
            dense=self.saved is not None and base >= self.saved.sparse,
            interval=self.interval,
        )

    def note(
        self,
        indexer: Indexer,
        base: int,
        position: int,
        header: batch.BatchHeader,
        now_ms: int,
        *,
        learn: bool,
        data: Buffer | None,
    ) -> None:
        self.check_stop()
        indexer.note(header.last_offset - base, position, header.size, header.max_timestamp)
        if learn:
            self.producers.apply(header, header.base_offset, now_ms, data)

    def write_indexes(self, segment: Segment, indexer: Indexer, file: File) -> None:
        """Of a segment that is closed."""
        segment.activate(file, indexer)
        self.touched += segment.seal()
        segment.release()
