"""The two sparse indexes of a segment, in memory as columns, on disk as Kafka's `.index` and `.timeindex`.

Both are derived from the log: one that is missing or wrong is rebuilt, never repaired. An entry is compared with the
log before it is believed, so a wrong one costs time, not truth. An offset entry says "the
batch that ends with this offset starts here"; a time entry says "up to this offset no event is later than this".
Readers may look things up while the one appender adds entries: the column that is searched grows last.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise

from krappy.store.format import INDEX_ENTRY, TIME_ENTRY

_SWAP = sys.byteorder == "little"
_HIGH = 1 if _SWAP else 0  # which half of an i64 in memory is the high one


_LOOKS = 64


class BadIndex(Exception):
    """An index file that can't be one. Does not leave the store: the index is rebuilt."""


class OffsetIndex:
    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("I")  # relative to the base offset; of the last event of a batch
        self.positions = array("I")  # where that batch starts

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, last_offset: int, position: int) -> None:
        """`last_offset` relative to the segment's base."""
        self.positions.append(position)
        self.offsets.append(last_offset)

    def lookup(self, offset: int) -> int:
        """The number of the last entry whose batch ends at or before the relative `offset`; -1 when there is none."""
        return bisect_right(self.offsets, offset) - 1

    def last_start(self, position: int) -> int:
        """Where the last batch of an entry starts that starts at or before `position`; 0 when there is none."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def pack(self, start: int = 0) -> bytes:
        """The file's bytes from entry `start` on."""
        stop = len(self.offsets)
        both = array("I", bytes(8 * (stop - start)))
        both[::2], both[1::2] = self.offsets[start:stop], self.positions[start:stop]
        if _SWAP:
            both.byteswap()
        return both.tobytes()

    @classmethod
    def unpack(cls, data: bytes, size: int) -> OffsetIndex:
        """From a file's bytes, of a segment of `size` bytes. Raises BadIndex for what plainly is no index of it.

        Some entries are looked at, not all: who uses one compares it with the log.
        """
        if len(data) % INDEX_ENTRY.size:
            raise BadIndex(f"{len(data)} bytes are no whole number of entries")
        both = array("I", data)
        if _SWAP:
            both.byteswap()
        index = cls()
        index.offsets, index.positions = both[::2], both[1::2]
        if index.positions and index.positions[-1] >= size:
            raise BadIndex(f"its last entry points behind the segment's {size} bytes")
        _look_at(index.offsets)
        _look_at(index.positions)
        return index


class TimeIndex:
    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")  # ms, ascending
        self.offsets = array("I")  # relative to the base offset

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Adds an entry, if it is later than the last one."""
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.offsets.append(offset)
            self.timestamps.append(timestamp)

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry that is earlier than `timestamp`: (its timestamp, the relative offset up to which all is)."""
        number = bisect_left(self.timestamps, timestamp) - 1
        return (self.timestamps[number], self.offsets[number]) if number >= 0 else None

    def pack(self, start: int = 0) -> bytes:
        """The file's bytes from entry `start` on."""
        stop = len(self.timestamps)
        halves = array("I", self.timestamps[start:stop].tobytes())
        words = array("I", bytes(12 * (stop - start)))
        words[::3], words[1::3], words[2::3] = halves[_HIGH::2], halves[1 - _HIGH :: 2], self.offsets[start:stop]
        if _SWAP:
            words.byteswap()
        return words.tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> TimeIndex:
        """As `OffsetIndex.unpack`."""
        if len(data) % TIME_ENTRY.size:
            raise BadIndex(f"{len(data)} bytes are no whole number of entries")
        words = array("I", data)
        if _SWAP:
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[_HIGH::2], halves[1 - _HIGH :: 2] = words[::3], words[1::3]
        index = cls()
        index.timestamps, index.offsets = array("q", halves.tobytes()), words[2::3]
        _look_at(index.timestamps)
        _look_at(index.offsets)
        return index


class Indexer:
    """Both indexes of a segment that grows, fed with each batch in order: live, in recovery and by a rebuild alike."""

    __slots__ = ("interval", "max_timestamp", "max_timestamp_offset", "offsets", "since", "times")

    def __init__(self, interval: int) -> None:
        self.interval = interval  # bytes of log between two entries
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.since = 0  # bytes since the last entry
        self.max_timestamp = -1  # ms
        self.max_timestamp_offset = 0  # relative; of the last event of the batch that has it

    def note(self, last_offset: int, position: int, size: int, max_timestamp: int) -> None:
        """One batch of `size` bytes at `position` that ends with the relative `last_offset`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp_offset = last_offset
            self.max_timestamp = max_timestamp
        if self.since > self.interval:
            self.offsets.append(last_offset, position)
            self.times.append(self.max_timestamp, self.max_timestamp_offset)
            self.since = 0
        self.since += size

    def seal(self) -> None:
        """The last entry of a closed segment's time index is its largest timestamp, as in Kafka."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)


def _look_at(column: array[int]) -> None:
    """Raises BadIndex when it is seen not to ascend: zeros and rubbish are, whatever their length."""
    last = len(column) - 1
    some = [column[last * part // _LOOKS] for part in range(_LOOKS + 1)] if last > _LOOKS else column.tolist()
    if any(a >= b for a, b in pairwise(some)):
        raise BadIndex("its entries are out of order")
