"""`TOPIC@latest`: a partition's log without events that newer ones of their keys have replaced, for Kafka's consumers
(rules: core/latest.py).

One pass over the view gives the set of the offsets of the keys' latest events (2 bytes per offset, in a third of the
time that reading the view in full takes). Then the log is read from the first of these offsets to the last, and each
batch is cut down to them. Batches made from the view itself would need the whole table in memory, to sort it by offset.

All readers of a partition share a set: it may be newer than a reader's boundary. All sets together stay within `room`
bytes; a set that was dropped is made again when it is needed.

What is made for a reader that begins at the start is kept in a file beside the set, and sent from there to later ones:
a table that many programs start with is made once (table_file.py). When the table has changed, the next file is made
from that one and the newer part of the log. A reader that resumes at a position gets deletions too, so its answers are
made for it alone.
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
READING = 300  # bytes of memory of one TableReading, about
FEW = 8  # partitions that any connection may read at a time


class Some(NamedTuple):
    """A part of a table: whole batches, and the offset to read next."""

    records: bytes | FilePart
    following: int


class _Made(NamedTuple):
    """As `Some`, newly made. `marks`: where it may be split; the last one is its end."""

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
        self._readers: weakref.WeakSet[Readings] = weakref.WeakSet()  # of all open connections

    def readings(self) -> Readings:
        """A new Readings: all that is kept for one connection."""
        made = Readings()
        self._readers.add(made)
        return made

    def reading(self, readings: Readings, partition: Partition, topic_id: bytes) -> TableReading:
        """A connection's reading of a partition. All readings together take at most about half of the room."""
        most = max(FEW, self.sets.room // 2 // READING // max(1, len(self._readers)))
        return readings.find(topic_id, partition.index, most)

    def forget(self, number: int) -> None:
        """This partition is gone."""
        self.sets.forget(number)

    async def read(
        self, partition: Partition, reading: TableReading, offset: int, max_bytes: int, *, min_one: bool = True
    ) -> Some:
        """The table's events from `offset` up to the reading's boundary: about `max_bytes`, and at least one batch.
        Without `min_one`: nothing if the first batch is larger than `max_bytes`.

        Only for a fetch below the boundary, as `reading.at` says; fixes the boundary. Raises what `Partition.read`
        does, ViewDisabled, and RequestTimeout when the view does not catch up.
        """
        held = await self.sets.serving(partition, reading, offset, self._from_file(reading, max_bytes))
        reading.fix(held.moment)
        assert reading.boundary is not None
        end = min(reading.boundary, held.high)
        file = held.file
        if not self._from_file(reading, max_bytes):
            return (await self._make(partition, held, reading, offset, end, max_bytes, min_one)).some
        if offset == file.end and end == held.high and not file.closed:
            async with file.growing:  # another reader at the same offset waits, and gets what is made here
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
        """Whether a file can serve the reading: it gets no deletions, and takes parts as large as a file has."""
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
        """Makes the events from `offset` up to `end`: from the file of the previous set as far as that goes, then from
        the log."""
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
                window = (
                    room * looked // size if size else room
                )  # the log that it takes to fill the rest, at the present rate
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
            marks.pop()  # the rest has no records, and must not be an answer of its own
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
        """Batches from the file of the previous set, from the one with `offset` on. None when it has none."""
        found = before.file.find(offset, min(max_bytes, WINDOW), before.high, True)
        if found is None:
            return None
        data = memoryview(await table_file.content(found.part, partition.disk_limiter))
        position = 0
        try:
            while position < len(data):
                position += measure(data, position)[0]
        except CorruptBatch:  # the file is damaged; the log has it all
            held.before = None
            return None
        return data
