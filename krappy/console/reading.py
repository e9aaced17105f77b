"""Reads events of a partition's log, forward and backward, and merges several partitions by time.

A read is bounded in bytes as well as in events. Offsets may have gaps (compaction, transactions' markers), so reading
backward looks at a window of offsets, which grows until it holds enough events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from krappy.console.elsewhere import EventSource
from krappy.console.slices import pause
from krappy.records import batch as batches
from krappy.records.batch import Columns
from krappy.types import Headers

READ = 256 << 10  # bytes of log read at a time
LOOKED = 8 << 20  # bytes of log read for one page of one partition, about
NO_HEADERS: Headers = ()


class Seen(NamedTuple):
    """One event as it stands in the log."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return 200 + len(self.key or b"") + len(self.value or b"") + sum(len(each[1] or b"") for each in self.headers)


def event_at(index: int, columns: Any, row: int) -> Seen:
    """The event in a row of a batch's columns. `index`: of its partition."""
    headers = columns.headers
    return Seen(
        index,
        columns.offsets[row],
        columns.timestamps[row],
        columns.keys[row],
        columns.values[row],
        headers[row] or NO_HEADERS if headers else NO_HEADERS,
    )


class Stretch(NamedTuple):
    """Events of one partition, in order: all that the log has from `start` to before `end`."""

    events: list[Seen]
    start: int
    end: int


async def forward(partition: EventSource, offset: int, limit: int, max_bytes: int) -> Stretch:
    """Up to `limit` events from `offset` on, before the last stable offset. More than `max_bytes` only if the first
    event alone has more."""
    offset = max(offset, partition.start_offset)
    start, stable = offset, partition.last_stable_offset
    found: list[Seen] = []
    size = looked = 0
    while offset < stable and len(found) < limit and size < max_bytes and looked < LOOKED:
        if looked:
            await pause()
        data = (await partition.read(offset, READ, limit=stable)).data
        if not data:
            return Stretch(found, start, max(stable, offset))
        looked += len(data)
        for header, view in batches.split(data):
            if not header.is_control and header.next_offset > offset:
                await pause()  # a few compressed bytes may become many
                room = limit - len(found), max_bytes - size
                first = partial(_first, partition.index, offset, *room, alone=not found)
                some, end = await partition.look_at(view, first)
                found += some
                size += sum(event.size for event in some)
                if end is not None:
                    return Stretch(found, start, end)
            offset = max(offset, header.next_offset)
    return Stretch(found, start, offset)


def _first(
    index: int, offset: int, limit: int, room: int, columns: Columns, *, alone: bool
) -> tuple[list[Seen], int | None]:
    """The events of a batch from `offset` on, up to `limit` events and `room` bytes; and the offset of the first event
    that was left out for that, or None. `alone`: the first event may be larger than `room`."""
    found: list[Seen] = []
    for row in range(bisect_left(columns.offsets, offset), len(columns.offsets)):
        if len(found) >= limit:
            return found, columns.offsets[row]
        event = event_at(index, columns, row)
        room -= event.size
        if room < 0 and (found or not alone):
            return found, event.offset
        found.append(event)
    return found, None


async def backward(partition: EventSource, before: int, limit: int, max_bytes: int) -> Stretch:
    """The last events before the offset `before`, up to `limit` events and `max_bytes`, or a single larger one."""
    first = partition.start_offset
    before = min(before, partition.last_stable_offset)
    if before <= first:
        return Stretch([], before, before)
    span = max(1, partition.last_stable_offset - first)
    dense = max(1, int(LOOKED / 2 / max(1.0, partition.size / span)))  # the largest window, in offsets
    window = min(limit, dense)
    best = Stretch([], before, before)
    while True:
        low = max(first, before - window)
        stretch = await _between(partition, low, before, limit, max_bytes)
        if stretch is None:  # too many bytes: take the last window's events, if it had any
            if best.events or window == 1:
                return best
            window = max(1, window // 8)
            continue
        best = stretch
        if len(stretch.events) >= limit or stretch.start > low or low == first:
            return best
        if window >= dense:
            return best
        window = min(window * 4, dense)


async def _between(partition: EventSource, low: int, before: int, limit: int, max_bytes: int) -> Stretch | None:
    """The last events from `low` to before `before`, within the bounds; None if there are too many bytes to read."""
    kept: list[Seen] = []
    size, looked, offset, start = 0, 0, low, low
    while offset < before:
        if looked >= 2 * LOOKED:
            return None
        if looked:
            await pause()
        data = (await partition.read(offset, READ, limit=before)).data
        if not data:
            break
        looked += len(data)
        for header, view in batches.split(data):
            if not header.is_control and header.next_offset > offset:
                await pause()
                last = partial(_last, partition.index, offset, before, limit, max_bytes)
                some, cut = await partition.look_at(view, last)
                if cut is not None:  # events before `cut` are too many, and so are those of earlier batches
                    start = cut
                    kept.clear()
                    size = 0
                kept += some
                size += sum(event.size for event in some)
            while len(kept) > 1 and (len(kept) > limit or size > max_bytes):
                size -= kept[0].size
                start = kept[0].offset + 1
                del kept[0]
            offset = max(offset, header.next_offset)
    return Stretch(kept, start, before)


def _last(
    index: int, offset: int, before: int, limit: int, room: int, columns: Columns
) -> tuple[list[Seen], int | None]:
    """The last events of a batch from `offset` to before `before`: up to `limit` events and `room` bytes, or a single
    larger one; and the offset after the events that were left out for that, or None."""
    first, end = bisect_left(columns.offsets, offset), bisect_left(columns.offsets, before)
    found: list[Seen] = []
    for row in range(end - 1, first - 1, -1):
        event = event_at(index, columns, row)
        room -= event.size
        if len(found) >= limit or (found and room < 0):
            return found[::-1], event.offset + 1
        found.append(event)
    return found[::-1], None


def merge(
    stretches: Sequence[Stretch], ends: Mapping[int, int], indexes: Sequence[int], limit: int, max_bytes: int
) -> list[Seen]:
    """The oldest events of several stretches by time, those of each partition in their order.

    At most `limit` events, and more than `max_bytes` only if the first alone has more.

    `ends`: the last stable offset of each partition. If a stretch ends earlier, the events after it are unknown, so
    merging stops there.
    """
    heads = [0] * len(stretches)
    merged: list[Seen] = []
    size = 0
    while len(merged) < limit:
        best = -1
        for number, stretch in enumerate(stretches):
            if heads[number] < len(stretch.events):
                if best < 0 or stretch.events[heads[number]].timestamp < stretches[best].events[heads[best]].timestamp:
                    best = number
            elif stretch.end < ends[indexes[number]]:
                return merged
        if best < 0:
            return merged
        event = stretches[best].events[heads[best]]
        size += event.size
        if merged and size > max_bytes:
            return merged
        merged.append(event)
        heads[best] += 1
    return merged


def merge_back(
    stretches: Sequence[Stretch], starts: Mapping[int, int], indexes: Sequence[int], limit: int, max_bytes: int
) -> list[Seen]:
    """As `merge`, but the newest events; they are in the order of time, too. `starts`: where each partition's log
    starts."""
    tails = [len(stretch.events) - 1 for stretch in stretches]
    merged: list[Seen] = []
    size = 0
    while len(merged) < limit:
        best = -1
        for number, stretch in enumerate(stretches):
            if tails[number] >= 0:
                if best < 0 or stretch.events[tails[number]].timestamp >= stretches[best].events[tails[best]].timestamp:
                    best = number
            elif stretch.start > starts[indexes[number]]:
                return merged[::-1]
        if best < 0:
            break
        event = stretches[best].events[tails[best]]
        size += event.size
        if merged and size > max_bytes:
            break
        merged.append(event)
        tails[best] -= 1
    return merged[::-1]
