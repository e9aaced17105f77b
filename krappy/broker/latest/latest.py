"""`TOPIC@latest`: a partition's log without what has been overtaken, for Kafka's consumers (rules: core/latest.py).

How it is read: the view says which offsets hold the latest events of their keys (a set of 2 bytes an offset, made by
one pass over the view in a third of the time that reading it in full takes); the log is then read from the first of
them to the last, and each batch cut down to those. The other way, to make batches of what the view holds, would
need the whole table in memory to bring it into the order of offsets.

A set is shared by all who read the partition, whenever they began: it may be newer than a reader's boundary. So no
reader has one of its own, and all of them together stay within `room` bytes; one that was dropped is made again.

What is made for who begins at the start is kept in a file beside the set, and sent from there to the next who do: a
table that many programs begin with is made once (table_file.py). When it has changed, the next is made out of that
file and what the log has beyond it. Who comes back to a position is given deletions too, and its answers are made for
it.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.latest import table_file
from krappy.broker.latest.latest_sets import Before, Held, LatestServices, LatestSets
from krappy.broker.latest.table_file import Mark
from krappy.broker.partition import large
from krappy.core.admission import INLINE, INLINE_PARTS
from krappy.core.latest import Readings, TableReading
from krappy.core.live_offsets import Cursor
from krappy.errors import CorruptBatch, OffsetOutOfRange
from krappy.records.batch import HEADER_SIZE, measure, nothing
from krappy.records.survivors import cut, layout
from krappy.types import FilePart

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition

WINDOW, LEAST_WINDOW = 1 << 20, 32 << 10  # bytes of log read at once
READING = 300  # bytes of one reader's place, about
FEW = 8  # places that any connection may have


class Some(NamedTuple):
    """Part of a table: whole batches, and the offset to go on from."""

    records: bytes | FilePart
    following: int


class _Made(NamedTuple):
    """The same as it was made. `marks`: where it may be parted, the last one at its end."""

    data: bytes
    marks: list[Mark]

    @property
    def some(self) -> Some:
        return Some(self.data, self.marks[-1].end)


async def _cut(batch: memoryview, wanted: bytes, which: bytes | None) -> bytes:
    try:
        return cut(batch, wanted, which, limit=INLINE, parts=INLINE_PARTS)
    except CorruptBatch:
        return await large.opened(lambda: cut(batch, wanted, which))


class LatestTables:
    """Reads tables for all connections of a broker.

    `room`: bytes of memory that its sets may take, about; `disk_room`: bytes that its files may take, in `folder`.
    """

    def __init__(self, services: LatestServices, room: int, folder: Path, disk_room: int) -> None:
        self.sets = LatestSets(services, room, folder, disk_room)
        self._readers: weakref.WeakSet[Readings] = weakref.WeakSet()  # of the connections there are

    def readings(self) -> Readings:
        """Where a connection keeps its places; it is all that is kept for it."""
        made = Readings()
        self._readers.add(made)
        return made

    def reading(self, readings: Readings, partition: Partition, topic_id: bytes) -> TableReading:
        """A connection's place in a partition. All of them take about half of the room at the most."""
        most = max(FEW, self.sets.room // 2 // READING // max(1, len(self._readers)))
        return readings.find(topic_id, partition.index, most)

    def forget(self, number: int) -> None:
        """This partition is gone."""
        self.sets.forget(number)

    async def read(
        self, partition: Partition, reading: TableReading, offset: int, max_bytes: int, *, min_one: bool = True
    ) -> Some:
        """The table's events from `offset` up to the reading's boundary: about `max_bytes`, one batch at least.

        Without `min_one` nothing, where the first one is larger than that. For a fetch of which `reading.at` has said
        that it reads below the boundary; fixes that. Raises what `Partition.read` does, ViewDisabled, RequestTimeout
        when the view does not catch up.
        """
        held = await self.sets.serving(partition, reading, offset, self._from_file(reading, max_bytes))
        reading.fix(held.moment)
        assert reading.boundary is not None
        end = min(reading.boundary, held.high)
        file = held.file
        if not self._from_file(reading, max_bytes):
            return (await self._make(partition, held, reading, offset, end, max_bytes, min_one)).some
        if offset == file.end and end == held.high and not file.closed:
            async with file.growing:  # who comes to the same place meanwhile is given what is made here
                if offset == file.end and not file.closed:
                    made = await self._make(partition, held, reading, offset, end, max_bytes, min_one)
                    await self.sets.keep(held, made.data, made.marks, partition.disk_limiter)
                    return made.some
        found = file.find(offset, max_bytes, end, min_one)
        if found is None:
            return (await self._make(partition, held, reading, offset, end, max_bytes, min_one)).some
        await table_file.cached(found.part, partition.disk_limiter)
        self._check(partition, reading, offset)
        reading.given(found.last, found.end)
        return Some(found.part, found.end)

    def _check(self, partition: Partition, reading: TableReading, offset: int) -> None:
        if offset < partition.start_offset:
            reading.lost()
            raise OffsetOutOfRange(
                f"{partition}: offset {offset} is outside {partition.start_offset} to {partition.high_watermark}",
                start=partition.start_offset,
                end=partition.high_watermark,
            )

    def _from_file(self, reading: TableReading, max_bytes: int) -> bool:
        """Whether a file serves it: it is given no deletions, and takes parts as large as a file has."""
        blank, boundary = reading.blank, reading.boundary
        anew = blank is None if boundary is None else blank is not None and blank >= boundary
        return anew and max_bytes >= 2 * table_file.MARK

    async def _make(
        self,
        partition: Partition,
        held: Held,
        reading: TableReading,
        offset: int,
        end: int,
        max_bytes: int,
        min_one: bool,
    ) -> _Made:
        """Reads the log from `offset` up to `end`; instead of it the file of the set before, as far as that goes."""
        self._check(partition, reading, offset)
        live = held.live
        if live is None:
            held = await self.sets.serving(partition, reading, offset, False)
            live, end = held.live, min(end, held.high)
            assert live is not None
        assert reading.blank is not None
        cursor = Cursor(live, reading.blank)
        parts: list[bytes | memoryview] = []
        marks: list[Mark] = []
        marked = 0
        size, at, covered, last = 0, offset, offset, offset - 1
        looked = 0  # bytes of log
        while at < end and (size < max_bytes or (min_one and not parts)):
            found = cursor.next(at)
            if found is None or found >= end:
                at = end
                break
            room = max_bytes - size
            before = held.before if end == held.high and reading.blank >= end else None
            data = None if before is None else await self._from_before(held, before, found, room, partition)
            if data is None:
                before = None
                window = room * looked // size if size else room  # as much of it as may survive of so much log
                data = memoryview((await partition.read(found, min(max(window, LEAST_WINDOW), WINDOW), limit=end)).data)
                looked += len(data)
            if not len(data):
                at = end
                break
            position = 0
            while position < len(data):
                base, length, _, last_delta, count = layout(data, position)
                batch = data[position : position + length]
                position += length
                stop = min(base + last_delta + 1, end)
                if stop <= at or not count:
                    at = max(at, stop)
                    continue
                wanted, left_out = cursor.between(base, stop)
                if base < at:
                    wanted = bytes(at - base) + wanted[at - base :]
                highest = wanted.rfind(1)
                if highest < 0:
                    at = stop
                    continue
                which = None if before is None else before.which(base, wanted, count)
                if before is not None and which is None:
                    held.before = None  # the log has it all
                    break
                whole = wanted.count(1) == count and (not left_out or which) and stop == base + last_delta + 1
                part = batch if whole else await _cut(batch, wanted, which)
                if size + len(part) > max_bytes and (parts or not min_one):
                    end = at  # no more of them
                    break
                parts.append(part)
                size += len(part)
                at = covered = stop
                last = base + highest
                if size - marked >= table_file.MARK:
                    marks.append(Mark(size, last, at))
                    marked = size
            await trio.lowlevel.checkpoint()
        if marks and marked == size:
            marks.pop()  # what follows has no records, and must not stand alone
        if at > covered:
            at = min(at, covered + 2**31)
            parts.append(nothing(covered, at))
            size += HEADER_SIZE
        marks.append(Mark(size, last, at))
        reading.given(last, at)
        return _Made(b"".join(parts), marks)

    async def _from_before(
        self, held: Held, before: Before, offset: int, max_bytes: int, partition: Partition
    ) -> memoryview | None:
        """Batches from the one with `offset` on out of the file of the set before; None when it has none."""
        found = before.file.find(offset, min(max_bytes, WINDOW), before.high, True)
        if found is None:
            return None
        data = memoryview(await table_file.content(found.part, partition.disk_limiter))
        position = 0
        try:
            while position < len(data):
                position += measure(data, position)[0]
        except CorruptBatch:  # the disk has not kept it: the log has it all
            held.before = None
            return None
        return data
