"""Reads a segment whole and says all that is wrong with it: for `krappy doctor`, and for tests. Changes nothing."""

from __future__ import annotations

from krappy.core.epochs import Epochs
from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.records.batch import BatchHeader, validate
from krappy.store.format import INDEX, SUMS, TIME_INDEX
from krappy.store.index import BadIndex, OffsetIndex, TimeIndex
from krappy.store.segment import Segment
from krappy.store.sums import ProvenFile, Sums
from krappy.store.walk import Damage, batches


def scrub(segment: Segment, epochs: Epochs) -> list[str]:
    """Checks every checksum, batch, offset and index entry, and that the batches have the leader epochs of the log
    (`epochs`); returns the faults, in words. Of wrong epochs only the first is told. Raises OSError."""
    problems: list[str] = []
    path, base = segment.path(), segment.base_offset
    end, size = segment.next_offset, segment.size
    file = segment.disk.open(path)  # not the pool's file: opening that would rebuild a bad index
    file_size = file.size()
    if segment.proof is not None:
        sums = Sums.read(segment.disk, segment.path(SUMS), size, segment.proof)
        if sums is not None:
            file = ProvenFile(file, sums)
        elif Sums.of(file, size).proof == segment.proof:
            problems.append(f"{segment.path(SUMS)}: it is missing or damaged")
        else:
            problems.append(f"{segment.path(SUMS)}: it is missing or damaged, and {path} is not what it was made of")
    if file_size != size and segment.indexer is None:
        problems.append(f"{path}: it has {file_size} bytes, {size} are expected")
    check = _IndexCheck(segment, problems)
    expected, misfit = base, ""
    try:
        for position, header, data in batches(file, 0, size, base, dense=segment.dense):
            try:
                validate(data)
            except (CorruptBatch, UnsupportedCompression) as error:
                problems.append(f"{path} at position {position}: {error}")
            if not misfit and (misfit := epochs.mismatch(header.leader_epoch, header.base_offset)):
                problems.append(f"{path} at position {position}: {misfit}")
            check.see(position, header)
            expected = header.next_offset
    except Damage as damage:
        problems.append(f"{path} at position {damage.position}: {damage.text}")
        return problems
    if expected != end:
        problems.append(f"{path}: it ends with offset {expected - 1}, {end - 1} is expected")
    check.finish()
    return problems


class _IndexCheck:
    """Walks both indexes beside the batches. Every entry must be true; missing entries are no fault."""

    def __init__(self, segment: Segment, problems: list[str]) -> None:
        self._problems = problems
        self._segment = segment
        self._closed = segment.indexer is None
        self._offsets, self._times = self._indexes()
        self._entry = self._time_entry = 0
        self._max_timestamp = -1

    def _indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        segment = self._segment
        if segment.indexer is not None:
            return segment.indexer.offsets, segment.indexer.times
        offsets, times = OffsetIndex(), TimeIndex()
        for suffix in (INDEX, TIME_INDEX):
            path = segment.path(suffix)
            try:
                data = segment.disk.read_derived(path)
                if suffix == INDEX:
                    offsets = OffsetIndex.unpack(data, segment.size)
                else:
                    times = TimeIndex.unpack(data)
            except FileNotFoundError:
                self._problems.append(f"{path}: it is missing, or can't be read")
            except BadIndex as error:
                self._problems.append(f"{path}: {error}")
        return offsets, times

    def see(self, position: int, header: BatchHeader) -> None:
        last = header.last_offset - self._segment.base_offset
        offsets, times = self._offsets, self._times
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        while self._entry < len(offsets) and offsets.positions[self._entry] <= position:
            if (offsets.positions[self._entry], offsets.offsets[self._entry]) != (position, last):
                self._wrong(INDEX, self._entry)
            self._entry += 1
        while self._time_entry < len(times) and times.offsets[self._time_entry] <= last:
            found = (times.offsets[self._time_entry], times.timestamps[self._time_entry])
            if found != (last, self._max_timestamp) or header.max_timestamp != self._max_timestamp:
                self._wrong(TIME_INDEX, self._time_entry)
            self._time_entry += 1

    def finish(self) -> None:
        if self._entry < len(self._offsets):
            self._wrong(INDEX, self._entry)
        times = self._times
        if self._time_entry < len(times):
            self._wrong(TIME_INDEX, self._time_entry)
        elif self._closed and self._max_timestamp >= 0 and (not times or times.timestamps[-1] != self._max_timestamp):
            self._problems.append(f"{self._segment.path(TIME_INDEX)}: the largest timestamp is not its last entry")

    def _wrong(self, suffix: str, entry: int) -> None:
        self._problems.append(f"{self._segment.path(suffix)}: entry {entry} names no batch of the log")
