"""From the record batches of a poll to events, as columns, cut to those that are for this reader. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from krappy.records import batch as record_batch
from krappy.records.batch import BatchHeader, Columns
from krappy.types import Event, Headers

_event: Any = partial(tuple.__new__, Event)  # faster: Event's own `__new__` checks the number of fields
_LAST = itemgetter(1)  # of a lease
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one partition as columns of equal length: the fast path, without an object for each event.

    Offsets ascend and may be a range. Timestamps are ms since the epoch. `headers` None: no event has any.
    `deliveries` counts from 1; only a group raises it. `append_time`: the broker set the timestamps
    (message.timestamp.type=LogAppendTime), not the producers. `leader_epoch`: as of an `Event`.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None
    deliveries: int = 1
    append_time: bool = False
    leader_epoch: int = -1

    def __len__(self) -> int:
        return len(self.values)

    def events(self) -> list[Event]:
        """The same events, one object each."""
        headers: Iterable[Headers] = repeat(()) if self.headers is None else self.headers
        rows = zip(
            repeat(self.topic),
            repeat(self.partition),
            self.offsets,
            self.timestamps,
            self.keys,
            self.values,
            headers,
            repeat(self.deliveries),
            repeat(self.leader_epoch),
            strict=False,
        )
        return list(map(_event, rows))

    def spans(self) -> list[Span]:
        """The offsets as runs without a gap: (first, last) each, both inclusive."""
        return spans(self.offsets)

    def cut(self, first: int, last: int) -> EventBatch:
        """The rows from `first` to before `last`."""
        if first == 0 and last == len(self.values):
            return self
        return EventBatch(
            self.topic,
            self.partition,
            self.offsets[first:last],
            self.timestamps[first:last],
            self.keys[first:last],
            self.values[first:last],
            None if self.headers is None else self.headers[first:last],
            self.deliveries,
            self.append_time,
            self.leader_epoch,
        )


def keyed(some: EventBatch | Event | Iterable[Event]) -> set[tuple[str, int, bytes]]:
    """The (topic, partition, key) of events that have a key."""
    if isinstance(some, EventBatch):
        return {(some.topic, some.partition, key) for key in some.keys if key is not None}
    each = [some] if isinstance(some, Event) else some
    return {(event.topic, event.partition, event.key) for event in each if event.key is not None}


def without(batch: EventBatch, keys: Set[tuple[str, int, bytes]]) -> Iterator[EventBatch]:
    """The rows whose (topic, partition, key) is not among these: a batch for each run of them."""
    first = 0
    for row, key in enumerate(batch.keys):
        if key is not None and (batch.topic, batch.partition, key) in keys:
            if first < row:
                yield batch.cut(first, row)
            first = row + 1
    if first < len(batch):
        yield batch.cut(first, len(batch))


def spans(offsets: Sequence[int]) -> list[Span]:
    """Ascending offsets as runs without a gap: (first, last) each, both inclusive."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        return [(offsets[0], offsets[-1])]
    found: list[Span] = []
    first = last = None
    for offset in offsets:
        if last is None or offset != last + 1:
            if first is not None and last is not None:
                found.append((first, last))
            first = offset
        last = offset
    if first is not None and last is not None:
        found.append((first, last))
    return found


def read(topic: str, partition: int, records: bytes, first: int, end: int | None) -> tuple[list[EventBatch], int, int]:
    """The events of `records` from offset `first` to before `end` (None: no end), the offset to go on from, and the
    leader epoch of the last batch before it; -1: it is not known.

    The first batch may begin below `first`, since polls bring whole batches. Raises CorruptBatch.
    """
    found: list[EventBatch] = []
    following, epoch = first, -1
    for header, view in record_batch.split(records):
        if end is not None and header.base_offset >= end:
            return found, end, epoch
        epoch = header.leader_epoch
        following = max(following, header.next_offset)
        if header.is_control or not header.count:
            continue
        batch = _of(topic, partition, record_batch.decode(view), header)
        if header.base_offset < first or (end is not None and header.next_offset > end):
            begin = bisect_left(batch.offsets, first)
            stop = len(batch) if end is None else bisect_left(batch.offsets, end)
            batch = batch.cut(begin, max(begin, stop))
        if len(batch):
            found.append(batch)
    return found, following if end is None else min(following, end), epoch


def leased(batch: EventBatch, leases: Sequence[tuple[int, int, int]]) -> Iterator[EventBatch]:
    """The leased events of a batch, a new batch for each run of equal `deliveries`.

    `leases`: ascending (first offset, last offset, deliveries), offsets inclusive. The events come in the order of
    their offsets, whatever their deliveries, because the group may have promised that order.
    """
    some: list[Span] = []
    count = 0
    for at in range(bisect_left(leases, batch.offsets[0], key=_LAST), len(leases)):
        first, last, deliveries = leases[at]
        if first > batch.offsets[-1]:
            break
        begin, end = bisect_left(batch.offsets, first), bisect_right(batch.offsets, last)
        if begin == end:
            continue
        if some and deliveries != count:
            yield _rows(batch, some, count)
            some = []
        count = deliveries
        if some and some[-1][1] == begin:
            some[-1] = (some[-1][0], end)
        else:
            some.append((begin, end))
    if some:
        yield _rows(batch, some, count)


def _rows(batch: EventBatch, some: list[Span], deliveries: int) -> EventBatch:
    rows = batch.cut(*some[0]) if len(some) == 1 else _join([batch.cut(*span) for span in some])
    return rows if deliveries == 1 else replace(rows, deliveries=deliveries)


def _join(batches: list[EventBatch]) -> EventBatch:
    return EventBatch(
        batches[0].topic,
        batches[0].partition,
        list(chain.from_iterable(batch.offsets for batch in batches)),
        list(chain.from_iterable(batch.timestamps for batch in batches)),
        list(chain.from_iterable(batch.keys for batch in batches)),
        list(chain.from_iterable(batch.values for batch in batches)),
        None if batches[0].headers is None else list(chain.from_iterable(batch.headers or () for batch in batches)),
        append_time=batches[0].append_time,
        leader_epoch=batches[0].leader_epoch,
    )


def _of(topic: str, partition: int, columns: Columns, header: BatchHeader) -> EventBatch:
    found = columns.offsets, columns.timestamps, columns.keys, columns.values, columns.headers
    epoch = header.leader_epoch
    return EventBatch(topic, partition, *found, append_time=header.log_append_time, leader_epoch=epoch)
