"""Recovers the part of a log behind its recovery point, as a crash or a damaged disk has left it.

Every batch is read and checked. Bytes that a crash may have torn are cut: they were not acknowledged to anybody. Other
bad bytes are damage. Then nothing is removed without a copy. Intact batches behind the damage stay in the log if no
power was lost; in any case their offsets are not given to other events.

How the two are told apart: when the process dies in a write, the file ends too early, with nothing behind. Only a loss
of power, which loses the page cache, can leave gaps. So a checkpoint notes its page cache (`Disk.page_cache`); while
that is the same, every gap is damage.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from pathlib import Path

from krappy.core.epochs import Epochs
from krappy.errors import StorageError
from krappy.records import batch
from krappy.store import loss, salvage
from krappy.store.checkpoint import Checkpoint
from krappy.store.disk import Buffer, Disk, File
from krappy.store.format import (
    CLEANED,
    DERIVED,
    INDEX,
    INDEX_ENTRY,
    LOG,
    MAX_RELATIVE,
    SET_ASIDE,
    TIME_ENTRY,
    TIME_INDEX,
    file_name,
)
from krappy.store.index import BadIndex, Indexer, OffsetIndex, TimeIndex
from krappy.store.loss import Trouble
from krappy.store.producers import ProducerStates
from krappy.store.report import RecoveryReport
from krappy.store.segment import NONE, Flushed, Segment
from krappy.store.walk import Damage, batches, headers, lacking

COPY = 4 << 20  # bytes copied at a time
SHORTEST = 7  # bytes of a record


class LogTail:
    """The base of `recovery.py`: the folder, what was found in it so far, and the recovery of its last segments."""

    def __init__(self, disk: Disk, folder: Path, interval: int, check_stop: Callable[[], None]) -> None:
        self.disk = disk
        self.check_stop = check_stop
        self.folder = folder
        self.interval = interval
        self.report = RecoveryReport(str(folder))
        self.producers = ProducerStates()
        self.epochs = Epochs()
        self.touched: list[File] = []
        self.files: dict[str, tuple[int, int]] = {}
        self.saved: Checkpoint | None = None
        self.misfits = False  # a batch has a leader epoch that it can't have
        self.holes = 0  # the offset at which the last hole found ends; 0: no hole
        self.gone_below = 0  # events from before this offset are missing, as far as was read here

    def remove(self, name: str) -> None:
        self.disk.unlink(self.folder / name)
        self.files.pop(name, None)

    @property
    def no_power_was_lost(self) -> bool:
        """Whether everything written since the checkpoint is there, up to the write in which the process died."""
        return (
            self.saved is not None and bool(self.saved.cache) and self.saved.cache == self.disk.page_cache(self.folder)
        )

    def tail(self, bases: list[int], expected: int | None) -> list[Segment]:
        """The segments from the recovery point on. The last one is active."""
        saved = self.saved
        segments: list[Segment] = []
        dropped: list[int] = []
        for number, base in enumerate(bases):
            if dropped or (expected is not None and base != expected and segments):
                # It stands behind a cut or a torn write, so as far as is known it was never acknowledged.
                if not dropped:
                    self.cut_here(
                        segments[-1], "offsets", f"offset {expected} comes next, a segment begins with {base}"
                    )
                dropped.append(base)
                continue
            later = [other for other in bases[number + 1 :] if self.files[file_name(other, LOG)][0]]
            segment, cut = self.checked(base, saved if saved and base == saved.segment else None)
            if later and self.no_power_was_lost and segment.next_offset <= later[0]:
                if segment.next_offset < later[0]:
                    self.fill(segment, later[0])  # the next file was begun later, so these offsets were given
                cut = False
            segments.append(segment)
            expected = segment.next_offset
            if cut:
                dropped = bases[number + 1 :]
                break
        given = max((self.given_in(base) for base in dropped), default=0)
        if segments and segments[-1].next_offset < given:
            self.fill(segments[-1], given)
            segments[-1].file.fdatasync()  # before the bytes that show these offsets are removed
        for base in dropped:
            self.drop(base)
        for segment in segments[:-1]:
            self.touched += segment.seal()
            segment.release()
        return segments

    def checked(self, base: int, saved: Checkpoint | None) -> tuple[Segment, bool]:
        """One segment, read from its recovery point on; whether it was cut. It comes back activated."""
        size, changed_ms = self.files[file_name(base, LOG)]
        segment = self.segment(base, base, 0, -1, changed_ms)
        file = self.disk.open(segment.path(), write=True)
        indexer, flushed, position, expected = Indexer(self.interval), (NONE, NONE), 0, base
        if saved and size >= saved.position:
            position, expected = saved.position, saved.recovery
            if saved.position and saved.created_ms is not None:  # else its first batch came after the checkpoint
                segment.created_ms = saved.created_ms
            if size == saved.position and saved.appended_ms is not None:  # else it has later batches
                segment.appended_ms = saved.appended_ms
            indexer, flushed = self.known_indexes(segment, file, saved)
        if size > position:
            file.forget_cached()
        checked_from, damage = position, None
        self.report.checked_bytes += size - checked_from
        while True:
            try:
                for at, header, data in batches(file, position, size, expected, dense=segment.dense):
                    if header.last_offset - base > MAX_RELATIVE:
                        raise Damage(at, "offsets", f"offset {header.last_offset} is too far from the segment's first")
                    learn = not saved or expected >= saved.recovery
                    self.note(indexer, base, at, header, changed_ms, learn=learn, data=data)
                    if header.base_offset > expected:
                        self.holes = header.base_offset
                    if learn:
                        self.note_gone(header, expected)
                    position, expected = at + header.size, header.next_offset
            except Damage as found:
                damage = found
            else:
                damage = None
            segment.size, segment.next_offset = position, expected
            segment.activate(file, indexer, flushed)
            if damage is None or (mended := self.mended(segment, size, damage)) is None:
                break
            file, size = mended
        if damage:
            self.cut_here(segment, damage.reason, damage.text)
        if saved and segment.next_offset < saved.recovery:
            self.fill(segment, saved.recovery)
            damage = None
        if size > checked_from or damage:
            self.touched.append(segment.file)
        segment.max_timestamp = indexer.max_timestamp
        return segment, damage is not None

    def known_indexes(self, segment: Segment, file: File, saved: Checkpoint) -> tuple[Indexer, tuple[Flushed, Flushed]]:
        """The indexes up to the recovery point, from their files if those are whole, else from the log."""
        indexer = Indexer(self.interval)
        if not saved.position:
            return indexer, (NONE, NONE)
        base = segment.base_offset
        with contextlib.suppress(FileNotFoundError, BadIndex):
            entries = self.disk.read_derived(segment.path(INDEX))[: INDEX_ENTRY.size * saved.entries]
            times = self.disk.read_derived(segment.path(TIME_INDEX))[: TIME_ENTRY.size * saved.time_entries]
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

    def mended(self, segment: Segment, size: int, damage: Damage) -> tuple[File, int] | None:
        """Rewrites the segment's file without the damaged bytes: (new file, its size).

        Intact batches behind the damage follow on, after an empty batch over the offsets between; the damaged bytes are
        kept in a copy. Or, if only the length of the last batch is damaged, it corrects the length. None when neither
        is possible: nothing intact follows, or power may have been lost. Raises StorageError without room for the
        copies.
        """
        position, first = segment.size, segment.next_offset
        found = None
        if self.no_power_was_lost:
            found = salvage.next_whole(segment.file, position, size, first, dense=segment.dense)
        if found is not None:
            at, header = found
            put = b"" if header.base_offset == first else _empty(first, header.base_offset)
            self.keep_aside(segment, at, needed=True)
            self.lost(segment, first, header.base_offset, f"{damage.reason} ({damage.text})")
        elif (head := salvage.with_length(segment.file, position, size, first)) is not None:
            at, put = position + len(head), head
            where = f"position {position} of {segment.path()}"
            self.report.notes.append(f"the length of the batch at {where} was damaged; it is corrected")
        else:
            return None
        temporary = segment.path(LOG + CLEANED)
        new = self.disk.open(temporary, create=True)
        end = 0
        for start, stop, extra in ((0, position, put), (at, size, b"")):
            while start < stop:
                self.check_stop()
                data = segment.file.pread(min(COPY, stop - start), start)
                new.write([data], end)
                start, end = start + len(data), end + len(data)
            if extra:
                new.write([extra], end)
                end += len(extra)
        new.fdatasync()
        self.disk.rename(temporary, segment.path())
        self.disk.fsync_dir(self.folder)
        return self.disk.open(segment.path(), write=True), end

    def cut_here(self, segment: Segment, reason: str, text: str) -> None:
        """Cuts the file behind the segment's last good batch. Offsets that were surely given to events stay empty."""
        report, position, file = self.report, segment.size, segment.file
        size = file.size()
        given = self.given_behind(segment, size, reason) if size > position else segment.next_offset
        if size > position and (given > segment.next_offset or reason not in ("torn", "zeros")):
            self.keep_aside(segment, size, needed=given > segment.next_offset)
        report.cut_bytes += size - position
        report.cut_file, report.cut_position = str(segment.path()), position
        report.cut_reason, report.cut_text = reason, text
        if given > segment.next_offset:
            self.fill(segment, given)
            file.fdatasync()  # before the bytes that show these offsets are removed
        file.truncate(segment.size)

    def given_behind(self, segment: Segment, size: int, reason: str) -> int:
        """The offset behind the last one that was given to an event in the bytes behind the segment's last good
        batch."""
        position, given = segment.size, segment.next_offset
        moved = salvage.displaced(segment.file, position, size, given) if size - position >= batch.HEADER_SIZE else None
        if moved is not None:
            given = moved.next_offset
        elif self.no_power_was_lost and reason not in ("torn", "zeros"):
            header = salvage.header_at(segment.file, position, size)
            if header is None or not header.dense:  # their number is not known; no record is shorter
                given += max(1, (size - position - batch.HEADER_SIZE) // SHORTEST)
            elif position + header.size == size:  # written to its end, so it had its offsets
                given += header.last_offset_delta + 1
        while (found := salvage.next_whole(segment.file, position, size, given, dense=segment.dense)) is not None:
            position, header = found
            try:
                for at, each, _ in batches(segment.file, position, size, header.base_offset, dense=segment.dense):
                    position, given = at, each.next_offset
                return given
            except Damage as damage:
                position = damage.position
        return given

    def keep_aside(self, segment: Segment, until: int, *, needed: bool) -> None:
        """Copies the bytes behind the last good batch. Raises StorageError when it is `needed` and there is no room."""
        position, number = segment.size, 0
        data = segment.file.pread(until - position, position)
        while True:
            path = segment.path(f"{LOG}.{position}{f'.{number}' if number else ''}{SET_ASIDE}")
            if path.name not in self.files or self.disk.read_file(path) == data:
                break
            number += 1
        try:
            self.disk.write_file(path, data)
            self.disk.fsync_dir(self.folder)
        except OSError as error:
            if needed:
                raise StorageError(f"{path}: there is no room for a copy of damaged bytes: {error}") from error
            return  # torn bytes must not keep the broker from starting on a full disk
        self.files[path.name] = (len(data), 0)
        self.report.set_aside.append(str(path))

    def given_in(self, base: int) -> int:
        """The offset behind the last intact batch of a segment behind the cut, 0 without any."""
        name, given, dense = file_name(base, LOG), 0, self.dense(base)
        with contextlib.suppress(Damage):
            for _, header, _ in batches(self.disk.open(self.folder / name), 0, self.files[name][0], base, dense=dense):
                given = header.next_offset
        return given

    def drop(self, base: int) -> None:
        """Removes a segment behind the cut; one with content is renamed to `*.cut`."""
        name = file_name(base, LOG)
        size = self.files[name][0]
        self.report.cut_bytes += size
        for suffix in DERIVED:
            self.remove(file_name(base, suffix))
        if size:
            self.disk.rename(self.folder / name, self.folder / (name + SET_ASIDE))
            self.report.set_aside.append(str(self.folder / (name + SET_ASIDE)))
            self.files.pop(name)
        else:
            self.remove(name)

    def lost(self, segment: Segment, first: int, until: int, why: str) -> None:
        """Notes the loss of these offsets. To be called before the log is changed: a crash must not leave a log that
        looks whole."""
        text = f"offsets {first} to {until - 1} at position {segment.size} of {segment.path()}: {why}"
        loss.note(self.folder, Trouble.LOST, text, self.disk)
        self.report.lost_offsets += until - first
        self.report.lost.append(text)

    def fill(self, segment: Segment, until: int, why: str = "their events are gone or damaged") -> None:
        """Appends an empty batch over offsets whose events are gone, so that they are never given again."""
        first = segment.next_offset
        if until - 1 - segment.base_offset > MAX_RELATIVE:
            raise StorageError(f"{segment.path()}: it can't hold the offsets {first} to {until - 1}, which are lost")
        self.lost(segment, first, until, why)
        empty = _empty(first, until)
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
            appended_ms=self.files[file_name(base, LOG)][1],
            dense=self.dense(base),
            interval=self.interval,
        )

    def dense(self, base: int) -> bool:
        """Whether it is known that no offset is missing in the segment with this base offset."""
        return self.saved is not None and base >= self.saved.sparse

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
            self.note_epoch(header, self.folder / file_name(base, LOG), position)

    def note_epoch(self, header: batch.BatchHeader, path: Path, position: int) -> None:
        """Notes a batch's leader epoch if the batch can have it. If not, that is damage; but the batch stays, for its
        events are whole. Only the first such damage is reported: behind an epoch that is too high, all others are too
        low."""
        misfit = self.epochs.misfit(header.leader_epoch)
        if not misfit:
            self.epochs.note(header.leader_epoch, header.base_offset)
        elif not self.misfits:
            self.misfits = True
            self.report.damage.append(f"{path} at position {position}: {misfit}")

    def note_gone(self, header: batch.BatchHeader, expected: int) -> None:
        self.gone_below = max(self.gone_below, lacking(header, expected))

    def write_indexes(self, segment: Segment, indexer: Indexer, file: File) -> None:
        """Writes the indexes of a closed segment."""
        segment.activate(file, indexer)
        self.touched += segment.seal()
        segment.release()


def _empty(first: int, until: int) -> bytes:
    """A batch without records over these offsets."""
    one = batch.encode(None, [b""], timestamps=-1, base_offset=first, offsets=[until - 1])
    empty = batch.keep(one, ())
    assert empty is not None
    return empty
