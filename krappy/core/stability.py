"""Which events of a partition are decided: its open transactions, and which of its transactions were aborted (KIP-98).

Rules of this file. Everything is told by the batches themselves, in the order in which they stand in the log: a
producer's first transactional batch opens its transaction, its control batch (a marker) ends it. So appending and
recovery come to the same state. The last stable offset is the first offset of the oldest open transaction: what is
before it will never change its meaning. Aborted transactions are kept in the order of their markers, as in Kafka's
transaction index, 32 bytes each.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.records import batch as batches
from krappy.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, Buffer

ABORT, COMMIT = 0, 1  # `ControlRecordType.java`
_VERSION = b"\0\0"


class Aborted(NamedTuple):
    """An aborted transaction: its events stand from `first` to before its marker, which stands at `last`."""

    producer_id: int
    first: int
    last: int
    stable: int  # the last stable offset once it had ended: every later entry begins here or behind


def marker(producer_id: int, epoch: int, commit: bool, timestamp: int, coordinator_epoch: int = 0) -> bytes:
    """The control batch that ends a transaction, as Kafka writes it (`EndTransactionMarker.java`)."""
    kind = COMMIT if commit else ABORT
    return batches.encode(
        [_VERSION + kind.to_bytes(2, "big")],
        [_VERSION + coordinator_epoch.to_bytes(4, "big")],
        timestamps=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


def commits(data: Buffer) -> bool | None:
    """What a control batch says: True commit, False abort, None neither."""
    try:
        key = batches.decode(data).keys[0]
    except (CorruptBatch, UnsupportedCompression, IndexError):
        return None
    if key is None or len(key) < 4:
        return None
    return {ABORT: False, COMMIT: True}.get(int.from_bytes(key[2:4], "big"))


class Stability:
    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # producer id -> the first offset of its transaction; oldest first
        self._columns = self._ids, self._firsts, self._lasts, self._stables = [array("q") for _ in range(4)]
        self.drops = 0  # how often some were dropped: what was read of the log before may still have events of theirs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stability) and self.open == other.open and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Aborted]:
        """The aborted transactions, by their markers."""
        return map(Aborted, self._ids, self._firsts, self._lasts, self._stables)

    def __len__(self) -> int:
        return len(self._ids)

    def apply(self, header: BatchHeader, offset: int, data: Buffer | None) -> None:
        """A batch that stands at `offset`. Only a control batch's `data` is looked at."""
        if not header.attributes & TRANSACTIONAL:
            return
        if not header.attributes & CONTROL:
            self.open.setdefault(header.producer_id, offset)
        elif header.count and data is not None:
            committed = commits(data)
            if committed is not None:
                self._end(header.producer_id, offset, committed)

    def _end(self, producer_id: int, offset: int, committed: bool) -> None:
        first = self.open.pop(producer_id, None)
        if first is None or committed or (self._lasts and offset <= self._lasts[-1]):
            return
        self._ids.append(producer_id)
        self._firsts.append(first)
        self._lasts.append(offset)
        self._stables.append(self.first_open(offset + 1))

    def first_open(self, otherwise: int) -> int:
        """Where the oldest open transaction begins."""
        return next(iter(self.open.values()), otherwise)

    def between(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that have anything from `start` to before `end`."""
        found: list[Aborted] = []
        for at in range(bisect_left(self._lasts, start), len(self._lasts)):
            if self._firsts[at] < end:
                found.append(Aborted(self._ids[at], self._firsts[at], self._lasts[at], self._stables[at]))
            if self._stables[at] >= end:
                break
        return found

    def forget(self, start: int) -> None:
        """The log begins at `start` now."""
        gone = bisect_left(self._lasts, start)
        if gone:
            for column in self._columns:
                del column[:gone]

    def drop(self, markers: Iterable[int]) -> None:
        """Nothing is left of these aborted transactions, nor the markers at these offsets."""
        for last in markers:
            at = bisect_left(self._lasts, last)
            if at < len(self._lasts) and self._lasts[at] == last:
                self.drops += 1
                for column in self._columns:
                    del column[at]

    def copy(self) -> Stability:
        copied = Stability()
        copied.open = self.open.copy()
        for mine, its in zip(self._columns, copied._columns, strict=True):
            its.extend(mine)
        return copied

    def cut(self, end: int, opened: dict[int, int]) -> Stability:
        """Once the log ends at `end`. `opened`: the transactions that are open there, by the batches that the log still
        has; what is known of those that were open later, or aborted later, counts more."""
        left = self.copy()
        kept = bisect_left(left._lasts, end)
        known = [*zip(self._ids[kept:], self._firsts[kept:], strict=True), *self.open.items()]
        opened = opened | {producer_id: first for producer_id, first in known if first < end}
        left.open = dict(sorted(opened.items(), key=lambda each: each[1]))
        for column in left._columns:
            del column[kept:]
        return left

    def pack(self) -> list[object]:
        """Plain values, for the checkpoint: the open ones, then the columns of the aborted, little-endian."""
        return [list(map(list, self.open.items())), *(_swapped(column).tobytes() for column in self._columns)]

    @classmethod
    def unpack(cls, packed: object) -> Stability:
        """Raises ValueError or TypeError when it is none."""
        if not isinstance(packed, list) or len(packed) != 5:
            raise ValueError("no transactions")
        found = cls()
        for producer_id, first in packed[0]:
            found.open[int(producer_id)] = int(first)
        for column, data in zip(found._columns, packed[1:], strict=True):
            column.frombytes(data)
            column[:] = _swapped(column)
        if len({len(column) for column in found._columns}) > 1:
            raise ValueError("transactions cut short")
        return found


def _swapped(column: array[int]) -> array[int]:
    """Between this machine's byte order and little-endian."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


class Hidden:
    """Which batches belong to some aborted transactions."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._of: dict[int, tuple[list[int], list[int]]] = {}  # producer id -> markers, first offsets; both ascend
        for each in aborted:
            lasts, firsts = self._of.setdefault(each.producer_id, ([], []))
            lasts.append(each.last)
            firsts.append(each.first)

    def holds(self, header: BatchHeader) -> bool:
        """Whether this batch, with its offsets in the log, is one of an aborted transaction."""
        if not header.attributes & TRANSACTIONAL or header.producer_id not in self._of:
            return False
        lasts, firsts = self._of[header.producer_id]
        at = bisect_right(lasts, header.base_offset)  # a marker stands behind its transaction
        return at < len(lasts) and firsts[at] <= header.base_offset


def without(data: memoryview, aborted: list[Aborted]) -> bytes | memoryview:
    """Whole batches, of which those of aborted transactions come as a header alone: the same offsets, no records."""
    hidden = Hidden(aborted)
    parts: list[bytes | memoryview] = []
    position = 0
    changed = False
    while position < len(data):
        header = batches.read_header(data, position)
        view = data[position : position + header.size]
        if header.count and hidden.holds(header):
            changed = True
            parts.append(batches.emptied(header))
        else:
            parts.append(view)
        position += header.size
    return b"".join(parts) if changed else data
