"""Sets of offsets: which events of a partition are the latest of their keys. A set is made from the view, and kept
while it is used.

Each set has a file of the events that were made with it (table_file.py). Once the file has all of them, it serves
readers without the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from krappy.broker.latest import table_file
from krappy.broker.latest.table_file import Mark, TableFile
from krappy.broker.tables.newest_rows import NewestRows
from krappy.core import latest, live_offsets
from krappy.core.latest import TableReading
from krappy.core.live_offsets import LiveOffsets
from krappy.errors import RequestTimeout, StorageError

if TYPE_CHECKING:
    from krappy.broker.partition.applier import Applier
    from krappy.broker.partition.partition import Partition
    from krappy.store.views import Views

SLICE = 2000  # entries of the view that are read in one turn
SLICE_BYTES = 1 << 20  # bytes of entries that are read in one turn
LEAST = 256 << 10  # bytes that a set may always take
PATIENCE_S = 20.0  # how long a reader waits for the view
SLACK = 2.0  # a set serves new readers for SLACK times as long as it took to make it, whatever is written meanwhile
UNUSED_S = 900.0  # seconds without a reader after which a set and its file are dropped


class LatestServices(Protocol):
    """What these sets need of the broker."""

    views: Views


class Before:
    """A set that was replaced by a newer one, and its file, which has all of its events. The newer set's file is made
    from this file."""

    def __init__(self, live: LiveOffsets, file: TableFile) -> None:
        self.live = live
        self.high = live.high
        self.file = file

    def which(self, base: int, wanted: bytes, count: int) -> bytes | None:
        """For a batch of the file with `count` records from offset `base` on: one byte for each record, picked from
        `wanted`, which has one byte for each offset. None if the batch does not match the set."""
        there, _ = self.live.between(base, base + len(wanted), self.high)  # a file has no deletions
        which = bytes(compress(wanted, there))
        return which if len(which) == count and which.count(1) == wanted.count(1) else None


class Held:
    """One set. `low` to `high`: the offsets that it serves. `moment`: the set has no event that was replaced before
    this offset. `others`: where the other partitions ended, if they were asked too. `applier`: that of the view from
    which the set was made."""

    __slots__ = (
        "applier",
        "before",
        "count",
        "file",
        "high",
        "live",
        "low",
        "made",
        "moment",
        "others",
        "seconds",
        "used",
    )

    def __init__(
        self,
        live: LiveOffsets,
        file: TableFile,
        applier: Applier,
        made: float,
        seconds: float,
        before: Before | None = None,
        others: list[int] | None = None,
    ) -> None:
        self.others = others or []
        self.applier = applier
        self.live: LiveOffsets | None = live  # None: dropped, as the file has all events
        self.low, self.high, self.moment = live.low, live.high, live.moment
        self.count = live.count
        self.file = file
        self.before = before  # the previous set; None once this set's file has all that it has
        self.made = made  # when its making began
        self.seconds = seconds  # how long it took to make
        self.used = made

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        size = 0 if self.live is None else self.live.size
        return size if self.before is None else size + self.before.live.size

    @property
    def disk_size(self) -> int:
        return self.file.size + (0 if self.before is None else self.before.file.size)

    @property
    def complete(self) -> bool:
        """Whether the file has all events of the set."""
        return self.file.size > 0 and self.file.end == self.high


class LatestSets:
    """The sets of all partitions. `room`: the memory that they may take, in bytes, about. `disk_room`: the bytes that
    their files may take."""

    def __init__(self, services: LatestServices, room: int, folder: Path, disk_room: int) -> None:
        self.room = room
        self.disk_room = disk_room
        self._services = services
        self._folder = folder
        self._held: dict[int, list[Held]] = {}  # by the partition's number
        self._making: dict[int, trio.Event] = {}

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return sum(held.size for _, held in self._everything())

    @property
    def disk_size(self) -> int:
        return sum(held.disk_size for _, held in self._everything())

    def _everything(self) -> list[tuple[int, Held]]:
        """All sets with their partitions' numbers, the least recently used first."""
        found = [(number, held) for number, several in self._held.items() for held in several]
        return sorted(found, key=lambda each: each[1].used)

    def _of(self, partition: Partition) -> list[Held]:
        """The sets of a partition. Drops sets of a view that was dropped: the log may have lost their events."""
        number = partition.number
        for held in [each for each in self._held.get(number, ()) if each.applier is not partition.applier]:
            self._drop(number, held)
        return self._held.get(number, [])

    async def serving(self, partition: Partition, reading: TableReading, offset: int, from_file: bool) -> Held:
        """A set that serves this offset and is no older than the reading's boundary.

        `from_file`: a set that has only its file may serve, too. Raises ViewDisabled, RequestTimeout when the view does
        not catch up.
        """
        number = partition.number
        while True:
            for held in self._of(partition):
                if self._serves(held, partition, reading, offset, from_file):
                    held.used = trio.current_time()
                    return held
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

    def _serves(self, held: Held, partition: Partition, reading: TableReading, offset: int, from_file: bool) -> bool:
        if not held.low <= offset < held.high:
            return False
        if held.live is None and not (
            from_file and held.file.begin <= offset and reading.boundary in (None, held.moment)
        ):
            return False
        if reading.boundary is not None:
            return held.moment >= reading.boundary
        # A new reader wants the present table. An older set serves while it is young, so that at most about half of the
        # time is spent on making sets.
        if trio.current_time() - held.made < SLACK * held.seconds:
            return True
        if held.others != _ends(partition):
            return False
        ahead = partition.config.latest_ahead and self._serves_ahead(held, partition, 2)
        return held.moment == partition.last_stable_offset or ahead

    def _serves_ahead(self, held: Held, partition: Partition, times: int) -> bool:
        """Whether a reader may be given this set, and then the log since: the log since must be short, and must have
        all deletions.

        `times`: the log since may have so many events per key of the set.
        """
        if partition.config.compact and held.moment < partition.log.segments[-1].base_offset:
            return False  # that part may be compacted, so that a deleted key's tombstone is gone
        return partition.last_stable_offset - held.moment <= times * max(held.count, latest.RAW_LAG)

    def is_due(self, partition: Partition, made: int) -> bool:
        """Whether its table must be made ahead of its readers. `made`: the offset as of which it was made last, or 0.

        A set that was dropped for lack of room is not made again before the log has grown.
        """
        grown = partition.last_stable_offset - max(made, partition.start_offset)
        if grown <= 0:
            return False
        for held in self._of(partition):
            if held.moment >= made > 0:
                held.used = trio.current_time()
                return not self._serves_ahead(held, partition, 1)
        return made == 0 or grown > latest.RAW_LAG

    async def _make(self, partition: Partition, offset: int) -> Held:
        began = trio.current_time()
        moment, ends = partition.last_stable_offset, _ends(partition)
        if not partition.view_ready(moment - 1) and not await partition.view_wait(moment - 1, PATIENCE_S):
            raise RequestTimeout(f"the view of {partition} did not reach offset {moment} in {PATIENCE_S:g} s")
        low = max(offset & -live_offsets.BLOCK, partition.start_offset)
        free = self.room - self._drop_to(self.room // 2)
        live = LiveOffsets(low, moment, max(LEAST, free // 2))
        applier = partition.applier
        if ends:
            await self._add_newest(partition, live)
        else:
            await self._add_all(partition, live)
        partition.view_ready(0)  # raises if the partition was closed, or its view turned off, meanwhile
        if partition.applier is not applier:
            raise StorageError(f"the view of {partition} was dropped while it was read")
        file = TableFile(self._folder, offset)
        file.closed = not self.disk_room
        of_it = self._of(partition)
        before = next((Before(old.live, old.file) for old in of_it if old.complete and old.live is not None), None)
        if before is not None and not before.file.begin <= offset < before.high:
            before = None
        held = Held(live, file, applier, began, trio.current_time() - began, before, ends)
        others = [each for each in of_it if not live.low <= each.low < live.high]
        self._held[partition.number] = [*others, held]
        self._drop_to(self.room, held)
        return held

    async def _add_all(self, partition: Partition, live: LiveOffsets) -> None:
        views, after = self._services.views, None
        while True:
            entries, after = views.entries(partition.number, after, SLICE, SLICE_BYTES)
            live.add(entries)
            if after is None:
                break
            await trio.lowlevel.checkpoint()

    async def _add_newest(self, partition: Partition, live: LiveOffsets) -> None:
        """Adds the offsets of entries that are the newest of their keys in all partitions (strays.py)."""
        for other in partition.strays.others(partition):
            if not other.view_ready(None) and not await other.view_wait(None, PATIENCE_S):
                raise RequestTimeout(f"the view of {other} did not catch up in {PATIENCE_S:g} s")
        with closing(self._services.views.snapshot()) as snapshot:
            newest, following = NewestRows(snapshot, partition.strays), None
            await newest.find_doubles(self._services.views)
            if newest.single:
                await self._add_all(partition, live)
                return
            while True:
                rows = snapshot.rows(partition.number, start=following, max_entries=newest.at_once, tombstones=True)
                live.add(newest.of(rows, partition.index).entries)
                following = rows.following
                if following is None:
                    break
                await trio.lowlevel.checkpoint()

    def _drop_to(self, room: int, keep: Held | None = None) -> int:
        """Drops the least recently used sets, until the others take at most `room` bytes. Gives the bytes that they
        take then."""
        everything = self._everything()
        total = sum(held.size for _, held in everything)
        for number, held in everything:
            if total <= room:
                break
            total -= held.size
            held.before = None
            if held is keep:
                total += held.size
            elif held.complete:
                held.live = None
            else:
                self._drop(number, held)
        return total

    def _drop(self, number: int, held: Held) -> None:
        self._held[number].remove(held)
        if not self._held[number]:
            del self._held[number]

    async def keep(self, held: Held, data: bytes, marks: Sequence[Mark], limiter: trio.CapacityLimiter) -> None:
        """Adds `data`, made from the file's end on, to the set's file, if that is worth it and there is room."""
        file = held.file
        if not file.size and len(data) < table_file.MARK and marks[-1].end == held.high:
            file.closed = True  # a small table is made as quickly as it is sent
            return
        total = self.disk_size + len(data)
        for number, other in self._everything():
            if total <= self.disk_room:
                break
            total -= other.disk_size
            other.before = None
            if other is held or not other.file.size:
                total += other.disk_size
            else:
                self._drop(number, other)
        if total > self.disk_room:
            file.closed = True
        elif data:
            await file.append(data, marks, limiter)
        if file.closed or (held.before is not None and file.end >= held.before.high):
            held.before = None

    def expire(self) -> None:
        """Drops sets that nobody has read for `UNUSED_S`."""
        for number, held in self._everything():
            if trio.current_time() - held.used > UNUSED_S:
                self._drop(number, held)

    def drop_all(self) -> None:
        """Drops all sets and files. Disk and memory are free once their readers are done."""
        for number, held in self._everything():
            self._drop(number, held)

    def forget(self, number: int) -> None:
        """Drops the sets of a partition that was deleted."""
        self._held.pop(number, None)


def _ends(partition: Partition) -> list[int]:
    """Where the other partitions end, if they may have newer entries of this one's keys; else an empty list."""
    strays = partition.strays
    return [other.last_stable_offset for other in strays.others(partition)] if strays else []
