"""A set of offsets: which events of a log are the latest of their keys.

Kept in compressed bitmaps (Roaring: Lemire and others, https://arxiv.org/abs/1709.07821): each block of 65,536 offsets
is a list of 2 bytes an offset, or a bitmap where it has more than 4,096 of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

from krappy.entries.entry import NIL

if TYPE_CHECKING:
    from pyroaring import BitMap64

BLOCK = 1 << 16  # offsets; sets begin and end where blocks do
_BLOCK_COST = 120  # bytes of a block beside its offsets; of 1,500 blocks and more, 86 to 113 bytes each were measured
_OFFSET_AND_KIND = Struct(">2xQ9xB").unpack_from  # of a packed entry: see krappy/entries/entry.py


class LiveOffsets:
    """The latest events with offsets from `low` to before `high`, as of offset `moment` or later; tombstones
    separately.

    `high` is `moment`, or lower if the set would take more than `room` bytes: the rest is left to another set.
    """

    def __init__(self, low: int, moment: int, room: int) -> None:
        from pyroaring import BitMap64  # not before there is a TOPIC@latest

        self.low = low
        self.high = self.moment = moment
        self._room = room
        self._values, self._deletions = BitMap64(), BitMap64()
        self._most = 0  # bytes that they may take, counted quickly

    @property
    def count(self) -> int:
        """How many latest events there are, without tombstones."""
        return len(self._values)

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return _size(self._values) + _size(self._deletions)

    def add(self, entries: Sequence[bytes]) -> None:
        """Adds the offsets of some of the view's packed entries; those outside the range are skipped."""
        low, high = self.low, self.high
        values, deletions = array("Q"), array("Q")
        for offset, kind in map(_OFFSET_AND_KIND, entries):
            if low <= offset < high:
                (values if kind != NIL else deletions).append(offset)
        self._values.update(values)
        self._deletions.update(deletions)
        self._most += (2 + _BLOCK_COST) * len(entries)
        if self._most > self._room:
            self._cut()

    def _cut(self) -> None:
        """If the set is too large, drops its highest offsets, until an eighth of the room is free; it keeps at least
        one block."""
        self._most = self.size
        if self._most <= self._room:
            return
        while self._most > self._room * 7 // 8:
            both = [offsets for offsets in (self._values, self._deletions) if offsets]
            larger = max(both, key=_size)
            first = min(offsets.min() for offsets in both)
            high = max(larger[len(larger) * 7 // 8], first + BLOCK) & -BLOCK
            if high >= self.high:
                break
            for offsets in both:
                if (last := offsets.max()) >= high:
                    offsets.remove_range(high, last + 1)
            self.high = high
            self._most = self.size

    def next(self, offset: int, blank: int) -> int | None:
        """The first offset of the set at or after this one; None when there is none. Tombstones before `blank` are left
        out."""
        value = _next(self._values, offset)
        deletion = _next(self._deletions, max(offset, blank))
        return value if deletion is None or (value is not None and value < deletion) else deletion

    def between(self, first: int, end: int, blank: int) -> tuple[bytes, bool]:
        """(a byte for each offset from `first` to before `end`: 1 if it is in the set; whether tombstones were left
        out, as they are before `blank`)."""
        values = self._values.range_cardinality(first, end)
        deletions = self._deletions.range_cardinality(first, end)
        if not deletions and values in (0, end - first):
            return (b"\1" if values else b"\0") * (end - first), False
        flags = bytearray(end - first)
        for offset in islice(self._values.iter_equal_or_larger(first), values):
            flags[offset - first] = 1
        left_out = False
        for offset in islice(self._deletions.iter_equal_or_larger(first), deletions):
            if offset >= blank:
                flags[offset - first] = 1
            else:
                left_out = True
        return bytes(flags), left_out


def _next(offsets: BitMap64, offset: int) -> int | None:
    try:
        return offsets.next_set_bit(offset)
    except ValueError:  # there is none
        return None


def _size(offsets: BitMap64) -> int:
    """Bytes of memory, about."""
    found = offsets.get_statistics()
    lists = found["n_bytes_array_containers"] * 3 // 2  # they have room for more, as Python's have
    bitmaps = found["n_bytes_bitset_containers"] + found["n_bytes_run_containers"]
    return lists + bitmaps + _BLOCK_COST * found["n_containers"]
