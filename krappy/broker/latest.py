"""`TOPIC@latest`: a partition's log without what has been overtaken, for Kafka's consumers (rules: core/latest.py).

How it is read: the view says which offsets hold the latest events of their keys (a set of 2 bytes an offset, made by
one pass over the view in a third of the time that reading it in full takes); the log is then read from the first of
them to the last, and each batch cut down to those. The other way, to make batches of what the view holds, would
need the whole table in memory to bring it into the order of offsets.

A set is shared by all who read the partition, whenever they began: it may be newer than a reader's boundary. So no
reader has one of its own, and all of them together stay within `room` bytes; one that was dropped is made again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from krappy.batch import HEADER_SIZE
from krappy.core import live_offsets
from krappy.core.latest import Reading, Readings
from krappy.core.live_offsets import Cursor, LiveOffsets
from krappy.errors import OffsetOutOfRange, RequestTimeout, StorageError
from krappy.survivors import cut, layout, nothing

if TYPE_CHECKING:
    from krappy.broker.partition import Partition
    from krappy.store.views import Views

SLICE = 2000  # entries of the view read between two turns of the event loop
LEAST = 256 << 10  # bytes that a set may always take
WINDOW, LEAST_WINDOW = 1 << 20, 32 << 10  # bytes of log read at once
PATIENCE_S = 20.0  # that a reader waits for the view
READING = 300  # bytes of one reader's place, about
FEW = 8  # places that any connection may have


class Services(Protocol):
    """What this needs of its broker."""

    views: Views


class Some(NamedTuple):
    """Part of a table: whole batches, their bytes together, the offset to go on from."""

    parts: list[bytes | memoryview]
    size: int
    following: int


class _Held:
    __slots__ = ("live", "made", "seconds", "used")

    def __init__(self, live: LiveOffsets, made: float, seconds: float) -> None:
        self.live = live
        self.made = made  # when it was begun
        self.seconds = seconds  # that it took
        self.used = made


class LatestTables:
    """Reads tables for all connections of a broker. `room`: bytes that its sets may take, about."""

    def __init__(self, services: Services, room: int) -> None:
        self._services = services
        self.room = room
        self._sets: dict[int, list[_Held]] = {}  # by the partition's number
        self._making: dict[int, trio.Event] = {}
        self._readers: weakref.WeakSet[Readings] = weakref.WeakSet()  # of the connections there are

    def readings(self) -> Readings:
        """Where a connection keeps its places; it is all that is kept for it."""
        made = Readings()
        self._readers.add(made)
        return made

    def reading(self, readings: Readings, partition: Partition, topic_id: bytes) -> Reading:
        """A connection's place in a partition. All of them take about half of `room` at the most."""
        most = max(FEW, self.room // 2 // READING // max(1, len(self._readers)))
        return readings.find(topic_id, partition.index, most)

    @property
    def size(self) -> int:
        """Bytes that all sets take, about."""
        return sum(held.live.size for several in self._sets.values() for held in several)

    async def read(
        self, partition: Partition, reading: Reading, offset: int, max_bytes: int, *, min_one: bool = True
    ) -> Some:
        """The table's events from `offset` up to the reading's boundary: about `max_bytes`, one batch at least.

        Without `min_one` nothing, where the first one is larger than that. For a fetch of which `reading.at` has said
        that it reads below the boundary; fixes that. Raises what `Partition.read` does, ViewDisabled, RequestTimeout
        when the view does not catch up.
        """
        live = await self._live(partition, reading, offset)
        if offset < partition.start_offset:
            reading.lost()
            raise OffsetOutOfRange(
                f"{partition}: offset {offset} is outside {partition.start_offset} to {partition.high_watermark}",
                start=partition.start_offset,
                end=partition.high_watermark,
            )
        reading.fix(live.moment)
        assert reading.boundary is not None
        assert reading.blank is not None
        end = min(reading.boundary, live.high)
        cursor = Cursor(live, reading.blank)
        parts: list[bytes | memoryview] = []
        size, at, covered, last = 0, offset, offset, offset - 1
        looked = 0  # bytes of log
        while at < end and (size < max_bytes or (min_one and not parts)):
            found = cursor.next(at)
            if found is None or found >= end:
                at = end
                break
            room = max_bytes - size
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
                whole = wanted.count(1) == count and not left_out and stop == base + last_delta + 1
                part = batch if whole else cut(batch, wanted)
                if size + len(part) > max_bytes and (parts or not min_one):
                    end = at  # no more of them
                    break
                parts.append(part)
                size += len(part)
                at = covered = stop
                last = base + highest
            await trio.lowlevel.checkpoint()
        if at > covered:
            at = min(at, covered + 2**31)
            parts.append(nothing(covered, at))
            size += HEADER_SIZE
        reading.given(last, at)
        return Some(parts, size, at)

    # --- the sets

    async def _live(self, partition: Partition, reading: Reading, offset: int) -> LiveOffsets:
        """A set with this offset in it that is no older than the reading's boundary."""
        number = partition.number
        while True:
            for held in self._sets.get(number, ()):
                if self._serves(held, partition, reading, offset):
                    held.used = trio.current_time()
                    return held.live
            making = self._making.get(number)
            if making is None:
                break
            await making.wait()
        done = self._making[number] = trio.Event()
        try:
            return await self._make(partition, offset)
        finally:
            del self._making[number]
            done.set()

    def _serves(self, held: _Held, partition: Partition, reading: Reading, offset: int) -> bool:
        live = held.live
        if not live.low <= offset < live.high:
            return False
        if reading.boundary is not None:
            return live.moment >= reading.boundary
        # A new reader: as of now, but for the time that it takes to look. So the sets take half of it at the most.
        return live.moment == partition.last_stable_offset or trio.current_time() - held.made <= 2 * held.seconds

    async def _make(self, partition: Partition, offset: int) -> LiveOffsets:
        began = trio.current_time()
        moment = partition.last_stable_offset
        if not partition.view_ready(moment - 1) and not await partition.view_wait(moment - 1, PATIENCE_S):
            raise RequestTimeout(f"the view of {partition} did not reach offset {moment} in {PATIENCE_S:g} s")
        low = max(offset & -live_offsets.BLOCK, partition.start_offset)
        free = self.room - self._drop_to(self.room // 2)
        live = LiveOffsets(low, moment, max(LEAST, free // 2))
        views, after, applier = self._services.views, None, partition.applier
        while True:
            entries, after = views.entries(partition.number, after, SLICE)
            live.add(entries)
            if after is None:
                break
            await trio.lowlevel.checkpoint()
        partition.view_ready(0)  # raises what has become of it meanwhile
        if partition.applier is not applier:
            raise StorageError(f"the view of {partition} was dropped while it was read")
        held = _Held(live, began, trio.current_time() - began)
        others = [each for each in self._sets.get(partition.number, ()) if not live.low <= each.live.low < live.high]
        self._sets[partition.number] = [*others, held]
        self._drop_to(self.room, held)
        return live

    def _drop_to(self, room: int, keep: _Held | None = None) -> int:
        """Drops the sets that were not used for the longest time, until the others take no more than `room` bytes.

        What they take then.
        """
        everything = sorted(
            ((held.used, number, held) for number, several in self._sets.items() for held in several),
            key=lambda each: each[0],
        )
        total = sum(held.live.size for _, _, held in everything)
        for _, number, held in everything:
            if total <= room:
                break
            if held is not keep:
                total -= held.live.size
                self._sets[number].remove(held)
                if not self._sets[number]:
                    del self._sets[number]
        return total

    def forget(self, number: int) -> None:
        """This partition is gone."""
        self._sets.pop(number, None)
