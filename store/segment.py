"""One segment: a `.log` file of whole batches and its two indexes.

The active segment holds its file and its growing indexes; a closed one gets both from the pool when it is read. Reads
run while the one appender writes. It sets `size`, then `next_offset`: all offsets below that can be read.
"""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import NamedTuple

from krappy.core.retention import SegmentInfo
from krappy.errors import CorruptBatch
from krappy.records.batch import (
    BEGINS,
    HEADER_SIZE,
    LENGTH_END,
    REACHES,
    BatchHeader,
    measure,
    read_header,
)
from krappy.store.disk import Buffer, Disk, File
from krappy.store.format import INDEX, INDEX_ENTRY, LOG, SUMS, TIME_ENTRY, TIME_INDEX, file_name
from krappy.store.index import BadIndex, Indexer, OffsetIndex, TimeIndex
from krappy.store.opening import first_since
from krappy.store.pool import POOL, Handle
from krappy.store.sums import ProvenFile, Sums
from krappy.store.walk import WINDOW, Damage, headers
from krappy.types import Span

_MAX_HINTS = 64
LEAST_READ = 64 << 10  # bytes read at once, even if `max_records` needs fewer
THIN = 64 << 10  # bytes of batches without an index entry, above which the index counts as bad
_NO_LIMIT = 2**63 - 1


class Flushed(NamedTuple):
    """How many entries of an index are in its file, and their CRC-32."""

    entries: int
    crc: int


NONE = Flushed(0, 0)


class Segment:
    """Made by recovery, a roll or the cleaner; read by anybody, appended to by the log alone."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        base_offset: int,
        *,
        next_offset: int,
        size: int = 0,
        max_timestamp: int = -1,
        created_ms: int | None = None,
        appended_ms: int | None = None,
        dense: bool = True,
        interval: int = 4096,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = next_offset  # behind the last batch
        self.size = size  # bytes of whole batches
        self.max_timestamp = max_timestamp
        self.created_ms = created_ms
        self.appended_ms = appended_ms  # when the last batch came
        self.proof: int | None = None  # CRC-32C of its `.sums`; None: not known, or it has none
        self.dense = dense  # no offset is missing: no cleaner has been here, this broker's or another's
        self.interval = interval  # bytes between index entries, when an index has to be rebuilt
        self.indexer: Indexer | None = None  # while active
        self.retired = False  # removed from the log; a reader may still use it
        self.rebuilt = 0  # how often an index was found bad
        self.flushed = (NONE, NONE)  # which part of the two indexes is in their files
        self.held: Handle | None = None  # used instead of the pool's handle
        self._hints: dict[int, int] = {}  # offset -> position of its batch, where readers will go on

    def info(self) -> SegmentInfo:
        times = self.created_ms, self.appended_ms
        return SegmentInfo(self.base_offset, self.next_offset, self.size, self.max_timestamp, *times)

    def path(self, suffix: str = LOG) -> Path:
        return self.folder / file_name(self.base_offset, suffix)

    # ---------------------------------------------------------------- appending

    def activate(self, file: File, indexer: Indexer, flushed: tuple[Flushed, Flushed] = (NONE, NONE)) -> None:
        """Makes this the active segment. `flushed`: entries of the indexer that are in the files already."""
        self.indexer = indexer
        self.flushed = flushed
        self.held = Handle(file, indexer.offsets)

    @property
    def file(self) -> File:
        """The open file of an active segment."""
        assert self.held is not None
        return self.held.file

    def flush_indexes(self) -> list[File]:
        """Writes the new index entries to the files; returns those, to be synced. Raises OSError."""
        assert self.indexer is not None
        files: list[File] = []
        columns: tuple[tuple[str, OffsetIndex | TimeIndex, int], ...] = (
            (INDEX, self.indexer.offsets, INDEX_ENTRY.size),
            (TIME_INDEX, self.indexer.times, TIME_ENTRY.size),
        )
        flushed = []
        for (suffix, index, entry), done in zip(columns, self.flushed, strict=True):
            data = index.pack(done.entries)
            if data or not done.entries:
                file = self.disk.open(self.path(suffix), write=True, create=not done.entries)
                file.write([data], done.entries * entry)
                file.truncate(done.entries * entry + len(data))
                files.append(file)
            flushed.append(Flushed(done.entries + len(data) // entry, zlib.crc32(data, done.crc)))
        self.flushed = (flushed[0], flushed[1])
        return files

    def seal(self) -> list[File]:
        """Closes the active segment: writes the indexes, hands the file to the pool. Returns index files to be synced.

        If the indexes can't be written, their files are removed: a later read rebuilds them.
        """
        assert self.indexer is not None
        assert self.held is not None
        self.indexer.seal()
        try:
            files = self.flush_indexes()
        except OSError:
            files = []
            self.unlink_indexes()
        POOL.put(self, self.held)
        self.held, self.indexer = None, None
        return files

    def unlink_indexes(self) -> None:
        """Removes the index files: a later read rebuilds them."""
        for suffix in (INDEX, TIME_INDEX):
            with contextlib.suppress(OSError):
                self.disk.unlink(self.path(suffix))

    # ---------------------------------------------------------------- files

    def handle(self, *, nowait: bool = False) -> Handle:
        """The open file and its index. With `nowait` raises BlockingIOError when that needs the disk."""
        held = self.held or (POOL.peek(self) if nowait else None)
        if held is not None:
            return held
        if nowait:
            raise BlockingIOError(f"{self.path()} is not open")
        return POOL.get(self, self._open)

    def pin(self) -> None:
        """Keeps the open file as long as this object lives, for another file is about to get its name."""
        self.held, self.retired = self.handle(), True
        POOL.discard(self)

    def release(self) -> None:
        """Drops the references to open files."""
        self.held, self.indexer = None, None
        POOL.discard(self)

    def _open(self) -> Handle:
        try:
            file = self._proven(self.disk.open(self.path()))
            if self.retired:  # the file of this name may have been a cleaned segment, or of another log
                raise FileNotFoundError(f"{self.path()} is no segment of its log any more")
        except FileNotFoundError:
            if self.held is None:
                raise
            return self.held  # it was pinned, and its file removed, since `handle` looked
        try:
            index = OffsetIndex.unpack(self.disk.read_derived(self.path(INDEX)), self.size)
        except (FileNotFoundError, BadIndex):
            index = self.rebuild(file).offsets
        return Handle(file, index)

    def _proven(self, file: File) -> File:
        """The file; if the segment has a proof, as a ProvenFile whose reads are compared with the checksums. Missing or
        damaged checksums are made anew. Raises CorruptBatch when the segment is damaged as well, OSError. A retired
        segment's file is given unproven if it is another one by now."""
        if self.proof is None:
            return file
        sums = Sums.read(self.disk, self.path(SUMS), self.size, self.proof)
        if sums is None:
            sums = Sums.of(file, self.size)
            if not self.retired:
                if sums.proof != self.proof:
                    text = f"its {SUMS} can't be read, and it does not match their proof: both are damaged"
                    raise self.corrupt(0, text)
                with contextlib.suppress(OSError):  # a full disk must not stop a reader
                    self.disk.replace_file(self.path(SUMS), sums.pack())
        return ProvenFile(file, sums)

    def prove(self, sums: Sums) -> None:
        """Writes the segment's checksums; from here on reads are compared with them. Raises OSError: no change."""
        self.disk.replace_file(self.path(SUMS), sums.pack())
        handle = self.handle()
        self.proof = sums.proof
        POOL.put(self, handle._replace(file=ProvenFile(handle.file, sums)))

    def rebuild(self, file: File, *, seal: bool = True) -> Indexer:
        """Both indexes of a closed segment (of an active one without `seal`), made anew from its batches' headers.

        Batches behind damage are not indexed: they can't be reached. `find` and `_known_before` detect
        entries that are not true. Raises CorruptBatch, OSError.
        """
        indexer = Indexer(self.interval)
        try:
            for position, header in headers(file, 0, self.size, self.base_offset, dense=self.dense):
                indexer.note(header.last_offset - self.base_offset, position, header.size, header.max_timestamp)
        except Damage as damage:
            if not damage.position:
                raise self.corrupt(damage.position, damage.text) from None
        if seal:
            indexer.seal()
        self.rebuilt += 1
        if not self.retired:
            with contextlib.suppress(OSError):  # a full disk must not stop a reader
                self.disk.replace_file(self.path(INDEX), indexer.offsets.pack())
                self.disk.replace_file(self.path(TIME_INDEX), indexer.times.pack())
        return indexer

    def reindex(self) -> None:
        """Makes the active segment's indexes anew. No append may run. Raises CorruptBatch, OSError."""
        self.activate(self.file, self.rebuild(self.file, seal=False))

    def _times(self) -> TimeIndex:
        """The time index; of a closed segment read anew each time."""
        indexer = self.indexer
        if indexer is not None:
            return indexer.times
        try:
            times = TimeIndex.unpack(self.disk.read_derived(self.path(TIME_INDEX)))
        except FileNotFoundError as error:
            raise BadIndex(str(error)) from None
        # Its entries may be true and its end be missing: then every lookup would walk through the whole segment.
        if not self.rebuilt and (times.timestamps[-1] if times.timestamps else -1) != max(-1, self.max_timestamp):
            raise BadIndex(f"it does not end with {self.max_timestamp}")
        return times

    def corrupt(self, position: int, text: str) -> CorruptBatch:
        path = self.path()
        return CorruptBatch(f"{path} at position {position}: {text}", file=str(path), position=position)

    # ---------------------------------------------------------------- reading

    def find(self, offset: int, *, nowait: bool = False) -> tuple[int, int]:
        """(position of the batch that contains `offset`, or else of the next one; its lowest possible base offset).

        The position is `size` when there is none. Raises CorruptBatch, BlockingIOError, OSError; BadIndex when the
        active segment's index is not true.
        """
        if (hint := self._hints.get(offset)) is not None:
            return hint, offset
        try:
            return self._find(self.handle(nowait=nowait), offset, nowait)
        except BadIndex as error:
            if nowait:
                raise BlockingIOError(str(error)) from None
            if self.indexer is not None:
                raise  # the log handles it, and keeps the appender away while the index is made anew
        file = self.handle().file
        handle = Handle(file, self.rebuild(file).offsets)
        if self.held is None:
            POOL.put(self, handle)
        try:
            return self._find(handle, offset, nowait)
        except BadIndex as error:
            raise self.corrupt(0, f"its index can't be rebuilt: {error}") from None

    def _find(self, handle: Handle, offset: int, nowait: bool) -> tuple[int, int]:
        """As `find`. Raises BadIndex when the entry used is not true, CorruptBatch when the log isn't."""
        end, size = self.next_offset, self.size
        index, relative = handle.index, offset - self.base_offset
        entry = index.lookup(relative)
        position, promised, expected = 0, None, self.base_offset
        if entry >= 0:
            position, promised = index.positions[entry], self.base_offset + index.offsets[entry]
        pread = handle.file.pread_nowait if nowait else handle.file.pread
        window: Buffer = b""
        start = first = position
        far = first + max(THIN, 4 * self.interval)
        while position < size:
            at = position - start
            if len(window) - at < HEADER_SIZE:
                want = min(WINDOW if self.interval > WINDOW else self.interval + HEADER_SIZE, size - position)
                window, start, at = pread(want, position), position, 0
                if len(window) < min(want, HEADER_SIZE):
                    if nowait:
                        raise BlockingIOError("a part of the pages is not in the cache")
                    raise self._short(position, len(window))
                if want < HEADER_SIZE:
                    raise self.corrupt(position, f"{want} bytes: less than a batch header")
            base, length, delta = REACHES.unpack_from(window, at)
            last = base + delta
            if promised is not None:
                if last != promised:
                    raise BadIndex(f"no batch that ends with offset {promised} starts at position {position}")
                promised, expected = None, base
            if (
                length < HEADER_SIZE - LENGTH_END
                or position + LENGTH_END + length > size
                or delta < 0
                or (base != expected and (self.dense or base < expected))
            ):
                raise self.corrupt(
                    position,
                    f"base offset {base}, length {length}, last offset delta {delta}; offset {expected} comes next",
                )
            if last >= offset:
                return position, expected
            if position > far and not self.rebuilt:
                raise BadIndex(f"no entry between positions {first} and {position}")
            position += LENGTH_END + length
            expected = last + 1
        if expected < end:
            raise self.corrupt(position, f"the segment ends with offset {expected - 1}, not {end - 1}")
        return size, expected

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit: int,
        *,
        max_records: int | None = None,
        nowait: bool = False,
        min_one: bool = True,
    ) -> Span:
        """Whole batches, checked, from the one that contains `offset` (or the next), with base offsets below `limit`.

        Ends behind the batch that reaches `max_records`. Empty when there is none, or when `min_one` is False and the
        first alone is above `max_bytes`. Raises CorruptBatch that names file and position, BlockingIOError with
        `nowait`, OSError.
        """
        position, expected = self.find(offset, nowait=nowait)
        size = self.size
        left = size - position
        if left <= 0:
            return Span(b"", offset, 0)
        file = self.handle(nowait=nowait).file
        pread = file.pread_nowait if nowait else file.pread
        want = min(max(max_bytes, HEADER_SIZE), left, self._bytes_of(max_records))
        while True:
            data = pread(want, position)
            taken, expected, records, missing = self._take(data, position, expected, limit, left, max_records)
            if taken:
                break
            if not missing:
                return Span(b"", offset, 0)
            if nowait and len(data) < want:
                raise BlockingIOError("a part of the pages is not in the cache")
            if len(data) < want:
                raise self._short(position, len(data))
            if not min_one and missing > max_bytes:
                return Span(b"", offset, 0)
            want = missing
        hints = self._hints
        if len(hints) >= _MAX_HINTS:
            hints.clear()
        hints[expected] = position + taken
        return Span(data if taken == len(data) else memoryview(data)[:taken], expected, records)

    def _bytes_of(self, records: int | None) -> int:
        """About how many bytes are enough for so many records and the batch in which they end; no limit for None."""
        if records is None:
            return _NO_LIMIT
        each = self.size // max(1, self.next_offset - self.base_offset) + 1
        return LEAST_READ + 2 * each * records

    def _take(
        self, data: Buffer, position: int, expected: int, limit: int, left: int, max_records: int | None
    ) -> tuple[int, int, int, int]:
        """(bytes of whole batches at the start of `data`, the offset behind them, how many records they hold, size of
        a first batch that is cut short). A corrupt batch ends the bytes; if it is the first one, raises CorruptBatch.
        """
        at, end, dense = 0, len(data), self.dense
        view = memoryview(data)
        records, enough = 0, _NO_LIMIT if max_records is None else max(1, max_records)
        while end - at >= HEADER_SIZE and records < enough and expected < limit:
            base, length = BEGINS.unpack_from(data, at)
            stop = at + LENGTH_END + length
            if base != expected and (dense or base < expected):
                wrong = f"base offset {base} where {expected} comes next"
            elif base >= limit:
                return at, expected, records, 0
            elif stop <= end:
                try:
                    _, last_offset_delta, count = measure(view, at)
                except CorruptBatch as error:
                    wrong = error.text
                else:
                    expected = base + last_offset_delta + 1
                    records += count
                    at = stop
                    continue
            elif stop <= left:
                return at, expected, records, stop - at
            else:
                wrong = f"a batch of length {length} runs past the segment's end"
            if not at:
                raise self.corrupt(position, wrong)
            break
        return at, expected, records, 0 if at or expected >= limit else HEADER_SIZE

    def _short(self, position: int, held: int) -> CorruptBatch:
        """The error to raise for a read at `position` that gave too few bytes."""
        try:
            self.handle().file.pread(1, position + held)
        except CorruptBatch as error:
            return self.corrupt(position, error.text)
        return self.corrupt(position, f"the file ends at {position + held} of {self.size} bytes")

    def proven(self, position: int, size: int, *, first: bool, nowait: bool) -> int:
        """How many of these bytes may be sent without a check (`File.proven`); with `first` they hold at least the
        first batch. Raises CorruptBatch, BlockingIOError, OSError."""
        proven = self.handle(nowait=nowait).file.proven(position, size, nowait=nowait)
        if first and proven < size and proven < self.batch_size(position):
            raise self._short(position, proven)
        return proven

    def batch_size(self, position: int) -> int:
        """Bytes of the batch at `position`. Raises CorruptBatch, OSError."""
        return self._header(position).size

    def whole(self, position: int, max_bytes: int) -> int:
        """About how many bytes of whole batches lie in the `max_bytes` from `position` on; `max_bytes` if not known.

        Taken from the index, without a comparison with the log: a wrong entry cuts a batch short, as `max_bytes` does.
        Consumers drop a batch that is cut, and fetch it again.
        """
        end = self.handle().index.last_start(position + max_bytes)
        return end - position if end > position else max_bytes

    def end_below(self, limit: int) -> int:
        """The position at which the batches with base offsets below `limit` end. Raises CorruptBatch, OSError."""
        position, _ = self.find(limit - 1)
        if position >= self.size:
            return position
        header = self._header(position)
        return position + header.size if header.base_offset < limit else position

    def _header(self, position: int) -> BatchHeader:
        data = self.handle().file.pread(HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            raise self._short(position, len(data))
        try:
            return read_header(data)
        except CorruptBatch as error:
            raise self.corrupt(position, error.text) from None

    def _known_before(self, timestamp: int, times: TimeIndex) -> int:
        """An offset before which every event is earlier than `timestamp`, by the time index. Raises BadIndex."""
        entry = times.before(timestamp)
        if entry is None:
            return self.base_offset
        last = self.base_offset + entry[1]
        position, _ = self.find(last)
        header = self._header(position) if position < self.size else None
        if header is None or (header.last_offset, header.max_timestamp) != (last, entry[0]):
            raise BadIndex(f"no batch ends with offset {last} and has the timestamp {entry[0]}")
        return last + 1

    def find_timestamp(self, timestamp: int, start: int, limit: int) -> tuple[int, int] | None:
        """The first record at or after offset `start`, below `limit`, whose timestamp is at least `timestamp` (ms)."""
        if self.max_timestamp < timestamp:
            return None
        size = self.size
        try:
            known = self._known_before(timestamp, self._times())
        except BadIndex:
            if self.indexer is not None:
                raise
            known = self._known_before(timestamp, self.rebuild(self.handle().file).times)
        position, expected = self.find(max(start, known))
        file = self.handle().file
        try:
            for at, header in headers(file, position, size, expected, dense=self.dense):
                if header.base_offset >= limit:
                    return None
                if header.max_timestamp < timestamp or not header.count:
                    continue
                found = first_since(file.pread(header.size, at), timestamp, start)
                if found is not None:
                    return found if found[0] < limit else None
        except Damage as damage:
            raise self.corrupt(damage.position, damage.text) from None
        except CorruptBatch as error:
            raise error if "file" in error.details else self.corrupt(at, error.text) from None
        return None
