"""A set of offsets, 2 bytes each: which events of a log are the latest of their keys.

Kept in blocks of 65,536 offsets, as the low 16 bits of each, unordered. So adding an offset is an append, while the
view is read in the order of its keys. A block becomes one byte per offset only while a reader passes it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct

from krappy.entries.entry import NIL

BITS = 16
BLOCK = 1 << BITS  # offsets
_BLOCK_COST = 200  # bytes of an empty block, about
_OFFSET_AND_KIND = Struct(">2xQ9xB").unpack_from  # of a packed entry: see krappy/entries/entry.py


class _Blocks(dict[int, "array[int]"]):
    def __missing__(self, number: int) -> array[int]:
        found = self[number] = array("H")
        return found


class LiveOffsets:
    """The latest events with offsets from `low` to before `high`, as of offset `moment` or later; tombstones
    separately.

    `high` is `moment`, or lower if the set would take more than `room` bytes: the rest is left to another set.
    """

    def __init__(self, low: int, moment: int, room: int) -> None:
        self.low = low
        self.high = self.moment = moment
        self._room = room
        self._values, self._deletions = _Blocks(), _Blocks()
        self._order: list[int] | None = None
        self._most = 0  # bytes that the offsets may take, counted quickly

    @property
    def count(self) -> int:
        """How many latest events there are, without tombstones."""
        return sum(map(len, self._values.values()))

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        count = self.count + sum(map(len, self._deletions.values()))
        return 2 * count + _BLOCK_COST * (len(self._values) + len(self._deletions))

    def add(self, entries: Sequence[bytes]) -> None:
        """Adds the offsets of some of the view's packed entries; those outside the range are skipped."""
        low, high, values, deletions = self.low, self.high, self._values, self._deletions
        bits, mask = BITS, BLOCK - 1
        for offset, kind in map(_OFFSET_AND_KIND, entries):
            if low <= offset < high:
                (values if kind != NIL else deletions)[offset >> bits].append(offset & mask)
        self._order = None
        self._most += 2 * len(entries)
        if self._most + _BLOCK_COST * (len(values) + len(deletions)) > self._room:
            self._cut()

    def _cut(self) -> None:
        """If the set is too large, drops its highest blocks, until an eighth of the room is free; it keeps at least
        one."""
        size = self.size
        if size > self._room:
            numbers = sorted(self._values.keys() | self._deletions.keys())
            while size > self._room * 7 // 8 and len(numbers) > 1:
                last = numbers.pop()
                for blocks in (self._values, self._deletions):
                    if last in blocks:
                        size -= 2 * len(blocks.pop(last)) + _BLOCK_COST
                self.high = last << BITS
        self._most = size - _BLOCK_COST * (len(self._values) + len(self._deletions))

    def next_block(self, number: int) -> int | None:
        """The number of the first block from `number` on that has any offset; None without one."""
        if self._order is None:
            self._order = sorted(self._values.keys() | self._deletions.keys())
        at = bisect_left(self._order, number)
        return self._order[at] if at < len(self._order) else None

    def flags(self, number: int, blank: int) -> tuple[bytearray, bool]:
        """(a byte for each offset of a block: 1 for a latest event; whether tombstones were left out).

        `blank`: tombstones with lower offsets are left out.
        """
        found = bytearray(BLOCK)
        for low in self._values.get(number, ()):
            found[low] = 1
        left_out = False
        least = blank - (number << BITS)
        for low in self._deletions.get(number, ()):
            if low >= least:
                found[low] = 1
            else:
                left_out = True
        return found, left_out


class Cursor:
    """Walks a set of offsets upwards, for one reader. `blank`: as for `LiveOffsets.flags`."""

    def __init__(self, live: LiveOffsets, blank: int) -> None:
        self._live = live
        self._blank = blank
        self._number = -1
        self._flags = bytearray()
        self._left_out = False

    def next(self, offset: int) -> int | None:
        """The first offset of the set at or after this one; None when there is none."""
        number: int | None = offset >> BITS
        while (number := self._live.next_block(number)) is not None:  # type: ignore[arg-type]
            self._turn(number)
            found = self._flags.find(1, offset - (number << BITS) if number == offset >> BITS else 0)
            if found >= 0:
                return (number << BITS) + found
            number += 1
        return None

    def between(self, first: int, end: int) -> tuple[bytes, bool]:
        """(a byte for each offset from `first` to before `end`: 1 if it is in the set; whether tombstones may be
        missing)."""
        number = first >> BITS
        if end <= (number + 1) << BITS:
            self._turn(number)
            at = first - (number << BITS)
            return bytes(self._flags[at : at + end - first]), self._left_out
        parts, left_out = [], False
        while first < end:
            until = min(end, ((first >> BITS) + 1) << BITS)
            part, some = self.between(first, until)
            parts.append(part)
            left_out = left_out or some
            first = until
        return b"".join(parts), left_out

    def _turn(self, number: int) -> None:
        if number != self._number:
            self._number = number
            self._flags, self._left_out = self._live.flags(number, self._blank)
