"""`TOPIC@latest`, for Kafka's consumers: a partition's log without the events that have newer ones with the same key
(rules: core/latest.py).

One pass over the view gives a set of offsets: those of each key's latest event (live_offsets.py). It takes a third of
the time that reading the view in full takes. Then the log is read from the first of these offsets to the last, and each
batch is cut down to them. Batches made from the view itself would need the whole table in memory, to sort it by offset.

All readers of a partition share a set, which may be newer than a reader's boundary. All sets together stay within
`room` bytes; a set that was dropped is made again when it is needed.

What is made for a reader that begins at the start is kept in a file beside the set, and sent from there to later
readers: so a table that many programs read when they start is made once (table_file.py). When the table has changed,
the next file is made from this file and the newer part of the log. A reader that resumes at a position gets deletions
too, so its answers are made for it alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.latest import table_file
from krappy.broker.latest.latest_sets import Before, Held, LatestServices, LatestSets
from krappy.broker.latest.table_file import Mark
from krappy.broker.partition import large
from krappy.core.admission import INLINE, INLINE_PARTS
from krappy.core.latest import Readings, TableReading
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
    """As `Some`, newly made. `marks`: where `data` may be split; the last mark is its end."""

    data: bytes
    marks: list[Mark]

    @property
    def some(self) -> Some:
        return Some(self.data, self.marks[-1].end)


class _Making:
    """Events of a table that are being made, of about `max_bytes`, for the offsets from `at` on."""

    def __init__(self, offset: int, max_bytes: int, min_one: bool) -> None:
        self.at = offset  # everything before this offset is done
        self.size = 0
        self._max_bytes = max_bytes
        self._min_one = min_one
        self._last = offset - 1  # the last record
        self._covered = offset  # where the last part ends
        self._parts: list[bytes | memoryview] = []
        self._marks: list[Mark] = []
        self._marked = 0

    def fits(self, size: int) -> bool:
        """Whether a part of so many bytes may be added."""
        return self.size + size <= self._max_bytes or (self._min_one and not self._parts)

    def add(self, part: bytes | memoryview, last: int, stop: int) -> None:
        """Adds a batch whose last record is at `last`, and which covers the offsets from `at` to before `stop`."""
        self._parts.append(part)
        self.size += len(part)
        self.at = self._covered = stop
        self._last = last
        if self.size - self._marked >= table_file.MARK:
            self._marks.append(Mark(self.size, last, stop))
            self._marked = self.size

    def done(self) -> _Made:
        """What was made. A batch without records covers the offsets behind the last part."""
        if self._marks and self._marked == self.size:
            self._marks.pop()  # the rest has no records, and must not be an answer of its own
        if self.at > self._covered:
            self.at = min(self.at, self._covered + 2**31)
            self._parts.append(nothing(self._covered, self.at))
            self.size += HEADER_SIZE
        self._marks.append(Mark(self.size, self._last, self.at))
        return _Made(b"".join(self._parts), self._marks)


def _batches(data: memoryview) -> Iterator[tuple[memoryview, int, int, int]]:
    """(batch, its base offset, the offset behind it, its records), one after another."""
    position = 0
    while position < len(data):
        base, length, _, last_delta, count = layout(data, position)
        yield data[position : position + length], base, base + last_delta + 1, count
        position += length


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
        """Forgets a partition that is gone."""
        self.sets.forget(number)

    async def read(
        self, partition: Partition, reading: TableReading, offset: int, max_bytes: int, *, min_one: bool = True
    ) -> Some:
        """The table's events from `offset` up to the reading's boundary: about `max_bytes`, and at least one batch.
        Without `min_one`: nothing if the first batch is larger than `max_bytes`.

        Only for a fetch below the boundary, as `reading.at` says. It fixes the boundary. Raises what `Partition.read`
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
        """Whether a file can serve the reading: it gets no deletions, and may take parts as large as those of a
        file."""
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
        """Makes the events from `offset` up to `end`: from the file of the previous set as far as it reaches, then from
        the log."""
        self._check(partition, reading, offset)
        live = held.live
        if live is None:
            held = await self.sets.serving(partition, reading, offset, False)
            live, end = held.live, min(end, held.high)
            assert live is not None
        blank = reading.blank
        assert blank is not None
        making = _Making(offset, max_bytes, min_one)
        looked = 0  # bytes of log
        while making.at < end and making.fits(1):
            found = live.next(making.at, blank)
            if found is None or found >= end:
                making.at = end
                break
            room = max_bytes - making.size
            before = held.before if end == held.high and blank >= end else None
            data = None if before is None else await self._from_before(held, before, found, room, partition)
            if data is None:
                before = None
                # Reads as much of the log as fills the rest of the answer, if events of the table stay as frequent as
                # so far.
                window = room * looked // making.size if making.size else room
                data = memoryview((await partition.read(found, min(max(window, LEAST_WINDOW), WINDOW), limit=end)).data)
                looked += len(data)
            if not len(data):
                making.at = end
                break
            for batch, base, following, count in _batches(data):
                stop = min(following, end)
                if stop <= making.at or not count:
                    making.at = max(making.at, stop)
                    continue
                wanted, left_out = live.between(base, stop, blank)
                if base < making.at:
                    wanted = bytes(making.at - base) + wanted[making.at - base :]
                highest = wanted.rfind(1)
                if highest < 0:
                    making.at = stop
                    continue
                which = None if before is None else before.which(base, wanted, count)
                if before is not None and which is None:
                    held.before = None  # the log has it all
                    break
                whole = wanted.count(1) == count and (not left_out or which) and stop == following
                part = batch if whole else await _cut(batch, wanted, which)
                if not making.fits(len(part)):
                    end = making.at
                    break
                making.add(part, base + highest, stop)
            await trio.lowlevel.checkpoint()
        made = making.done()
        reading.given(made.marks[-1].last, made.marks[-1].end)
        return made

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
