"""The two sparse indexes of a segment, in memory as columns, on disk as Kafka's `.index` and `.timeindex`.

Both are derived from the log: a missing or wrong index is rebuilt, never repaired. An entry is compared with the log
before it is used, so a wrong one costs only time. An offset entry says "the batch that ends with this offset starts
here"; a time entry says "up to this offset no event is later than this". Lookups may run while the one appender adds
entries: the column that is searched grows last.
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
    """An index that is wrong. Does not leave the store: the index is rebuilt."""


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
        """The index of the last entry whose batch ends at or before the relative `offset`; -1 when there is none."""
        return bisect_right(self.offsets, offset) - 1

    def last_start(self, position: int) -> int:
        """The start of the last indexed batch that starts at or before `position`; 0 when there is none."""
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
        """Reads an index file of a segment of `size` bytes. Raises BadIndex for bytes that plainly are no such index.

        Only some entries are checked: a reader compares the entry that it uses with the log.
        """
        if len(data) % INDEX_ENTRY.size:
            raise BadIndex(f"{len(data)} bytes are not a whole number of entries")
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
        """Adds an entry, if its timestamp is higher than the last one's."""
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.offsets.append(offset)
            self.timestamps.append(timestamp)

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry before `timestamp`: (its timestamp, the relative offset up to which no event is later); else
        None."""
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
            raise BadIndex(f"{len(data)} bytes are not a whole number of entries")
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
    """Builds both indexes of a segment. It is given each batch in order: by appends, recovery and rebuilds."""

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
        """Adds the largest timestamp as the last entry of the time index, as Kafka does when a segment closes."""
        self.times.append(self.max_timestamp, self.max_timestamp_offset)


def _look_at(column: array[int]) -> None:
    """Raises BadIndex when samples of the column do not ascend, as with zeros or garbage."""
    last = len(column) - 1
    some = [column[last * part // _LOOKS] for part in range(_LOOKS + 1)] if last > _LOOKS else column.tolist()
    if any(a >= b for a, b in pairwise(some)):
        raise BadIndex("its entries are out of order")
