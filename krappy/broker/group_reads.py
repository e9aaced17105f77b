"""What a read of the log is to a group: which events there are, and the bytes that a member is to get of them.

Members often get a small part of a batch: small polls of large batches, redeliveries, keys that went to others. Then
a batch of just these events is made for them, so that a poll for ten events is not answered with ten
thousand. Decoded batches are kept for a while, since the next poll is likely to want the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from krappy import batch as batches
from krappy.batch import BatchHeader, Columns
from krappy.core.leases import Lease, LogSlice
from krappy.types import Span

CACHED = 4 << 20  # bytes of batches kept decoded
CUT_FROM = 8 << 10  # bytes of a batch from which on it is worth cutting


class Found(NamedTuple):
    """One batch of a read."""

    header: BatchHeader
    data: memoryview


class Decoded:
    """The batches decoded last. They are told apart by partition, offset and checksum: cleaning changes the latter."""

    def __init__(self, limit: int = CACHED) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[int, int, int], tuple[Columns, int]] = OrderedDict()
        self._size = 0

    def columns(self, number: int, found: Found) -> Columns:
        """The records of a batch of the partition with this (dense) number."""
        header = found.header
        key = (number, header.base_offset, header.crc)
        held = self._held.get(key)
        if held is not None:
            self._held.move_to_end(key)
            return held[0]
        columns = batches.decode(found.data)
        self._held[key] = columns, header.size
        self._size += header.size
        while self._size > self._limit:
            self._size -= self._held.popitem(last=False)[1][1]
        return columns


def survey(number: int, offset: int, read: Span, decoded: Decoded, *, keys: bool) -> tuple[LogSlice, list[Found]]:
    """What the log holds where it was read from `offset` on, with a token for each event's key if `keys`."""
    data = memoryview(read.data)
    found: list[Found] = []
    spans: list[tuple[int, int]] = []
    tokens: list[int | None] = []
    position = 0
    while position < len(data):
        header = batches.read_header(data, position)
        one = Found(header, data[position : position + header.size])
        position += header.size
        if header.is_control or not header.count:
            continue
        found.append(one)
        if header.dense and not keys:
            _add(spans, header.base_offset, header.last_offset)
            continue
        columns = decoded.columns(number, one)
        if header.dense:
            _add(spans, header.base_offset, header.last_offset)
        else:
            for at in columns.offsets:
                _add(spans, at, at)
        if keys:
            tokens += [None if key is None else hash(key) for key in columns.keys]
    start = min(offset, spans[0][0]) if spans else offset
    return LogSlice(start, max(read.next_offset, offset), spans, tokens if keys else None), found


def _add(spans: list[tuple[int, int]], first: int, last: int) -> None:
    if spans and spans[-1][1] + 1 == first:
        spans[-1] = spans[-1][0], last
    else:
        spans.append((first, last))


def deliver(number: int, found: Sequence[Found], leases: Sequence[Lease], decoded: Decoded) -> bytes:
    """Batches with the leased events, and maybe others around them. `found` and `leases` ascend."""
    parts: list[bytes | memoryview] = []
    at = 0
    for one in found:
        base, last = one.header.base_offset, one.header.last_offset
        while at < len(leases) and leases[at].last < base:
            at += 1
        mine = []
        after = at
        while after < len(leases) and leases[after].first <= last:
            mine.append((max(leases[after].first, base), min(leases[after].last, last)))
            after += 1
        wanted = sum(high - low + 1 for low, high in mine)
        if wanted * 4 <= one.header.count and one.header.size >= CUT_FROM:
            if wanted:
                parts.append(_cut(one.header, decoded.columns(number, one), mine))
        elif wanted:
            parts.append(one.data)
    return b"".join(parts)


def _cut(header: BatchHeader, columns: Columns, mine: list[tuple[int, int]]) -> bytes:
    """A batch of some of the records of another, at their own offsets, not compressed."""
    if header.dense:
        rows = [row for low, high in mine for row in range(low - header.base_offset, high + 1 - header.base_offset)]
    else:
        rows = [row for row, at in enumerate(columns.offsets) if any(low <= at <= high for low, high in mine)]
    offsets = [columns.offsets[row] for row in rows]
    return batches.encode(
        [columns.keys[row] for row in rows],
        [columns.values[row] for row in rows],
        timestamps=[columns.timestamps[row] for row in rows],
        headers=None if columns.headers is None else [columns.headers[row] for row in rows],
        base_offset=offsets[0],
        offsets=offsets,
        leader_epoch=header.leader_epoch,
        log_append_time=header.log_append_time,
    )
