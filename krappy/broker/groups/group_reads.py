"""Reads of the log for groups: which events there are, and which bytes a member gets.

Members often get a small part of a batch: small polls of large batches, redeliveries, keys that other members have.
Then a batch of just these events is made, so that a poll for ten events is not answered with ten thousand. The rest of
the read is kept for a while, since the next poll is likely to want it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from krappy.broker.partition import large
from krappy.core.admission import INLINE, columns_cost
from krappy.core.leases import Lease, LogSlice
from krappy.records import batch as batches
from krappy.records.batch import BatchHeader, Columns
from krappy.types import Span

if TYPE_CHECKING:
    from krappy.broker.groups.shared import SharedPartition

T = TypeVar("T")

KEPT = 4 << 20  # bytes of reads that are kept, over all groups
ROOM = 4 << 20  # about the bytes that the batches of one read may unpack to; a single batch may exceed it
TOKEN = 40  # bytes that a key's token takes
CUT_FROM = 8 << 10  # smaller batches are not cut


class LogPiece:
    """One batch that holds events. `spans` and `tokens` as in LogSlice."""

    __slots__ = ("_columns", "buffer", "cost", "data", "header", "position", "spans", "tokens")

    def __init__(self, header: BatchHeader, buffer: memoryview, position: int) -> None:
        self.header = header
        self.buffer = buffer  # what was read, in which it stands at `position`
        self.position = position
        self.data = buffer[position : position + header.size]
        self._columns: Columns | None = None
        self.cost = 0  # bytes of memory that it takes beside its data
        self.tokens: list[int | None] = []
        self.spans = [(header.base_offset, header.last_offset)]

    def look(self, columns: Columns, keys: bool) -> int:
        """Takes what leases need from its columns. Gives the bytes that the columns take."""
        if not self.header.dense:
            self.spans = []
            for offset in columns.offsets:
                _add(self.spans, offset, offset)
            self.cost += len(self.spans) * TOKEN
        if keys:
            self.tokens = [None if key is None else hash(key) for key in columns.keys]
            self.cost += len(self.tokens) * TOKEN
        return columns_cost(self.header, columns)

    def opened(self, room: int) -> Columns | None:
        """Its columns, which are kept. None if they take more than `room` bytes."""
        if self._columns is None:
            self._columns = large.small(self.data, min(room, INLINE))
            if self._columns is not None:
                self.cost += columns_cost(self.header, self._columns)
        return self._columns

    def cut(self, leases: Sequence[Lease], room: int) -> bytes | None:
        """A batch of just the events of these leases, which all touch this batch. None to send the whole batch: it is
        small, more than a quarter of it is wanted, or its columns take more than `room` bytes."""
        header = self.header
        base, last = header.base_offset, header.last_offset
        mine = [(max(lease.first, base), min(lease.last, last)) for lease in leases]
        wanted = sum(high - low + 1 for low, high in mine)
        if header.size < CUT_FROM or wanted * 4 > header.count:
            return None
        columns = self.opened(room)
        if columns is None:
            return None
        at = columns.offsets
        rows = [slice(bisect_left(at, low), bisect_right(at, high)) for low, high in mine]
        offsets = _rows(at, rows)
        return batches.encode(
            _rows(columns.keys, rows),
            _rows(columns.values, rows),
            timestamps=_rows(columns.timestamps, rows),
            headers=None if columns.headers is None else _rows(columns.headers, rows),
            base_offset=offsets[0],
            offsets=offsets,
            leader_epoch=header.leader_epoch,
            log_append_time=header.log_append_time,
        )


class Read:
    """One read of a log, from `start` to before `end`."""

    def __init__(self, offset: int, read: Span, *, keys: bool, log: object = None, inline: bool = True) -> None:
        """`keys`: whether leases are ordered by key. `log`: as `SharedPartition.log` was before the read. `inline`: on
        the event loop; raises BlockingIOError if that takes too long there. If the batches unpack to too many bytes, it
        has only the first of them. Raises CorruptBatch."""
        data = memoryview(read.data)
        self.pieces: list[LogPiece] = []
        self.end = max(offset, read.next_offset)
        self._epochs: list[tuple[int, int]] = []  # leader epochs, also those of markers
        position, room = 0, INLINE if inline else ROOM
        behind = offset  # the offset behind the last batch; compaction may have removed the first events of an epoch
        while position < len(data):
            header = batches.read_header(data, position)
            if not self._epochs or header.leader_epoch > self._epochs[-1][0]:
                self._epochs.append((header.leader_epoch, min(behind, header.base_offset)))
            behind = header.next_offset
            if header.count and not header.is_control:
                piece = LogPiece(header, data, position)
                self.pieces.append(piece)
                if keys or not header.dense:
                    room -= _look(piece, keys, room, inline)
                if room <= 0 and not inline:
                    self.end = max(offset, header.next_offset)
                    break
            position += header.size
        self._bases = [piece.header.base_offset for piece in self.pieces]
        self.start = min([offset, *self._bases[:1]])
        self._size = len(data)
        self.log = log
        self._keys = keys

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return self._size + sum(piece.cost for piece in self.pieces)

    def size_at(self, offset: int) -> int:
        """Bytes of the batch with `offset`, or of the next; 0: there is none."""
        first = self._index(offset)
        return self.pieces[first].header.size if first < len(self.pieces) else 0

    def _index(self, offset: int) -> int:
        """The index of the batch with `offset`, or of the next."""
        first = max(0, bisect_right(self._bases, offset) - 1)
        return first + 1 if self.pieces and self.pieces[first].header.last_offset < offset else first

    def part(self, offset: int, max_records: int, max_bytes: int) -> tuple[LogSlice, list[LogPiece]]:
        """The batches from the one with `offset` on, as far as the limits allow; at least one."""
        first = self._index(offset)
        spans: list[tuple[int, int]] = []
        tokens: list[int | None] = []
        stop, end = first, self.end
        for piece in self.pieces[first:]:
            if max_records <= 0 or (stop > first and piece.header.size > max_bytes):
                end = piece.header.base_offset
                break
            for span in piece.spans:
                _add(spans, *span)
            tokens += piece.tokens
            max_records -= piece.header.count
            max_bytes -= piece.header.size
            stop += 1
        pieces = self.pieces[first:stop]
        start = min(offset, pieces[0].header.base_offset) if pieces else offset
        return LogSlice(start, end, spans, tokens if self._keys else None, self._epochs), pieces


def _look(piece: LogPiece, keys: bool, room: int, inline: bool) -> int:
    """Decodes a batch and takes what leases need from it. Gives the bytes of its columns; a thread keeps no columns."""
    if not inline:
        return piece.look(batches.decode(piece.data), keys)
    columns = piece.opened(room)
    if columns is None:
        raise BlockingIOError
    return piece.look(columns, keys)


def _rows(column: Sequence[T], rows: Sequence[slice]) -> Sequence[T]:
    """These rows of a column. A column is often a range; then a single part of it is a range, too."""
    return column[rows[0]] if len(rows) == 1 else list(chain.from_iterable(column[some] for some in rows))


def _add(spans: list[tuple[int, int]], first: int, last: int) -> None:
    if spans and spans[-1][1] + 1 == first:
        spans[-1] = spans[-1][0], last
    else:
        spans.append((first, last))


class KeptReads:
    """Reads that were not used up: one for each partition of each group. The oldest is dropped first."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._held: OrderedDict[SharedPartition, tuple[Read, int]] = (
            OrderedDict()
        )  # (the read, its size when it was kept)
        self._size = 0

    def find(self, shared: SharedPartition, offset: int, log: object) -> Read | None:
        """The kept read, if it is of this log, and has `offset`."""
        held, _ = self._held.get(shared, (None, 0))
        if held is None or not held.start <= offset < held.end or held.log != log:
            return None
        return held

    def keep(self, shared: SharedPartition, read: Read) -> None:
        size = read.size  # it grows as batches of it are opened
        if self._held.get(shared) != (read, size):
            self.drop(shared)
            if size <= self._limit:
                self._held[shared] = read, size
                self._size += size
            while self._size > self._limit:
                self._size -= self._held.popitem(last=False)[1][1]

    def drop(self, shared: SharedPartition) -> None:
        held = self._held.pop(shared, None)
        if held is not None:
            self._size -= held[1]


def touching(pieces: Sequence[LogPiece], leases: Sequence[Lease]) -> Iterator[tuple[LogPiece, Sequence[Lease]]]:
    """Each batch that leases touch, with these leases. Both arguments ascend by offset."""
    at = 0
    for piece in pieces:
        while at < len(leases) and leases[at].last < piece.header.base_offset:
            at += 1
        after = at
        while after < len(leases) and leases[after].first <= piece.header.last_offset:
            after += 1
        if after > at:
            yield piece, leases[at:after]


def join(pieces: Sequence[LogPiece], leases: Sequence[Lease]) -> bytes | memoryview:
    """The bytes that a member gets of one partition. Both arguments ascend by offset. Batches that were read together
    are not copied."""
    parts: list[bytes | memoryview] = []
    end: tuple[memoryview, int] | None = None  # (the buffer of the last part, where the part ends in it)
    start, room = 0, INLINE
    for piece, some in touching(pieces, leases):
        before = piece.cost
        cut = piece.cut(some, room)
        room -= piece.cost - before
        if cut is not None:
            parts.append(cut)
            end = None
        elif end is not None and end[0] is piece.buffer and end[1] == piece.position:
            end = piece.buffer, piece.position + piece.header.size
            parts[-1] = piece.buffer[start : end[1]]
        else:
            start = piece.position
            end = piece.buffer, start + piece.header.size
            parts.append(piece.data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
