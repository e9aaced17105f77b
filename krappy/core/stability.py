"""Which events of a partition are decided: its open and its aborted transactions (KIP-98).

Rules of this file. All is derived from the batches, in the order of the log: a producer's first transactional batch
opens its transaction, its control batch (a marker) ends it. So appending and recovery come to the same state. The last
stable offset is the first offset of the oldest open transaction: all transactions before it are decided. Aborted
transactions are kept in the order of their markers, as in Kafka's transaction index, 32 bytes each.
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


NEVER = 2**63 - 1  # an offset after all others


class Aborted(NamedTuple):
    """An aborted transaction: its events have offsets from `first` on, its marker has the offset `last`."""

    producer_id: int
    first: int
    last: int
    stable: int  # the last stable offset after its end: every later entry begins here or behind


def marker(producer_id: int, epoch: int, commit: bool, timestamp: int, coordinator_epoch: int = 0) -> bytes:
    """The control batch that ends a transaction, as Kafka writes it (`EndTransactionMarker.java`)."""
    kind = COMMIT if commit else ABORT
    return batches.encode(
        [_VERSION + kind.to_bytes(2, "big")],
        [_VERSION + coordinator_epoch.to_bytes(4, "big", signed=True)],
        timestamps=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


class Marker(NamedTuple):
    commit: bool
    coordinator_epoch: int


def read_marker(data: Buffer) -> Marker | None:
    """What a control batch says; None: it ends no transaction."""
    try:
        columns = batches.decode(data)
        key, value = columns.keys[0], columns.values[0] or b""
    except (CorruptBatch, UnsupportedCompression, IndexError):
        return None
    kind = None if key is None or len(key) < 4 else int.from_bytes(key[2:4], "big")
    if kind not in (ABORT, COMMIT):
        return None
    return Marker(kind == COMMIT, int.from_bytes(value[2:6], "big", signed=True))


def commits(data: Buffer) -> bool | None:
    """The kind of a control batch: True: commit, False: abort, None: neither."""
    found = read_marker(data)
    return None if found is None else found.commit


class Stability:
    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # producer id -> the first offset of its transaction; oldest first
        self._columns = self._ids, self._firsts, self._lasts, self._stables = [array("q") for _ in range(4)]
        self.drops = 0  # how many `drop` has forgotten: bytes read from the log before may still have their events

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stability) and self.open == other.open and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Aborted]:
        """The aborted transactions, by their markers."""
        return map(Aborted, self._ids, self._firsts, self._lasts, self._stables)

    def __len__(self) -> int:
        return len(self._ids)

    def apply(self, header: BatchHeader, offset: int, data: Buffer | None) -> None:
        """Notes a batch at `offset`. `data`: its bytes, needed only for a control batch."""
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
        """The first offset of the oldest open transaction; `otherwise` without one."""
        return next(iter(self.open.values()), otherwise)

    def between(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that have events or their marker in offsets from `start` to before `end`."""
        found: list[Aborted] = []
        for at in range(bisect_left(self._lasts, start), len(self._lasts)):
            if self._firsts[at] < end:
                found.append(Aborted(self._ids[at], self._firsts[at], self._lasts[at], self._stables[at]))
            if self._stables[at] >= end:
                break
        return found

    def forget(self, start: int) -> None:
        """Forgets the aborted transactions whose markers are below `start`, the new start of the log."""
        gone = bisect_left(self._lasts, start)
        if gone:
            for column in self._columns:
                del column[:gone]

    def drop(self, markers: Iterable[int]) -> None:
        """Forgets the aborted transactions with markers at these offsets: the log has neither their events nor the
        markers."""
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
        """The state once the log ends at `end`. `opened`: producer id -> first offset of the transactions open there,
        by the batches still in the log. The first offsets known here count more."""
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
        """The state that `pack` has packed. Raises ValueError or TypeError for anything else."""
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
        at = bisect_right(lasts, header.base_offset)  # a marker comes after its transaction's events
        return at < len(lasts) and firsts[at] <= header.base_offset


def aborted_in(data: memoryview, firsts: Iterable[tuple[int, int]]) -> list[Aborted]:
    """The aborted transactions of which these batches may have events, as Kafka's Fetch tells them: (producer id, first
    offset). Their markers are in the batches, or come after them."""
    open: dict[int, list[int]] = {}  # producer id -> first offsets, the earliest first
    for producer_id, first in sorted(firsts, key=lambda each: each[1]):
        open.setdefault(producer_id, []).append(first)
    found: list[Aborted] = []
    for header, _ in batches.split(data):
        begun = open.get(header.producer_id) if header.is_control else None
        if begun and begun[0] <= header.base_offset:
            found.append(Aborted(header.producer_id, begun.pop(0), header.base_offset, header.base_offset))
    found += [Aborted(id, first, NEVER, NEVER) for id, begun in open.items() for first in begun]
    return sorted(found, key=lambda each: each.last)


def without(data: memoryview, aborted: list[Aborted]) -> bytes | memoryview:
    """`data` (whole batches), with each batch of an aborted transaction cut down to its header: no records, the same
    offsets."""
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
