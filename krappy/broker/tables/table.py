"""The table face of a topic: snapshots paged as scans, watches, and the history of a key.

Single lookups need none of this; they are `Partition.look_up`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import trio

from krappy.broker.partition import large
from krappy.broker.partition.newest import Pause
from krappy.broker.partition.partition import Partition
from krappy.broker.partition.viewed import Viewed
from krappy.broker.tables.changes import Change, judged
from krappy.broker.tables.newest_rows import BYTES, newest_rows
from krappy.entries.entry import entry_offset, pack_entry, packed_rows
from krappy.errors import InvalidRequest, KrappyError, RequestTimeout, ShuttingDown, UnknownHandle
from krappy.ports import Emit, RegistrationFacts, ScanPage
from krappy.records import batch as batches
from krappy.records.batch import Columns
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.store.view_snapshot import Rows, ViewSnapshot

READ = 256 << 10  # bytes of one answer of a watch, and of one read of the log
PART = 2 << 20  # the most bytes of changes that are emitted at once: READ bytes may unpack to many times that
HISTORY_READ = 4 << 20  # bytes of the log that are read for one page of a history
PROGRESS = 1.0  # seconds after which a watch emits its progress, even if nothing matched
STRETCH = 10_000  # entries that are read in one turn: a few milliseconds
SCAN_IDLE_MS = 120_000  # a scan whose next page is not asked for so long is closed: it pins old data
W = TypeVar("W", bound=Callable[..., Awaitable[None]])
Least = Mapping[int, int] | None
VIEW_PATIENCE = 10.0  # seconds that a lookup waits for the view before RequestTimeout; clients then ask again


class Chosen(NamedTuple):
    """Which keys are read: a prefix, or from `start` (inclusive) to `end` (exclusive). All None: every key."""

    prefix: bytes | None = None
    start: bytes | None = None
    end: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(bound or b"") for bound in self)

    def check(self) -> None:
        if self.prefix is not None and (self.start is not None or self.end is not None):
            raise InvalidRequest("either a prefix or a range from start to end, not both")

    def holds(self, key: bytes) -> bool:
        if self.prefix is not None:
            return key.startswith(self.prefix)
        return (self.start is None or key >= self.start) and (self.end is None or key < self.end)


class Folded:
    """Waits until each view includes an offset. With `min_offsets` (by partition; a missing one is not waited for) any
    replica may answer. Without, it is the last one decided when this was made: only a sure leader knows it.

    After `wait` the views include it until another task has its turn: then a view may be dropped or begun anew, and
    lookups in it find nothing. So a task that pauses between two lookups must wait again (`after`).
    """

    def __init__(self, partitions: Sequence[Partition], min_offsets: Least) -> None:
        self._partitions, self._min_offsets = partitions, min_offsets
        self._wanted = self._now()

    def _now(self) -> list[tuple[Partition, int]]:
        least = self._min_offsets
        if least is None:
            return [(each, each.last_stable_offset - 1) for each in self._partitions]
        return [(each, least.get(each.index, -1)) for each in self._partitions]

    async def wait(self) -> None:
        """Raises RequestTimeout, NotLeader, and why a view never will include it."""
        waited = True
        while waited:
            waited = False
            for partition, offset in self._wanted:
                if self._min_offsets is None and not partition.is_sure:
                    waited = True
                    await partition.until_sure()
                    self._wanted = self._now()
                    break
                if not partition.view_ready(offset):
                    waited = True
                    if not await partition.view_wait(offset, VIEW_PATIENCE):
                        raise _late(partition, offset)

    def after(self, pause: Pause) -> Pause:
        """A function that awaits `pause`, and then `wait`."""

        async def paused() -> None:
            await pause()
            await self.wait()

        return paused


def _late(partition: Partition, offset: int) -> RequestTimeout:
    end = partition.last_stable_offset
    if offset >= end:
        return RequestTimeout(
            f"{partition} has no event with offset {offset} yet: after {VIEW_PATIENCE:g} s of waiting the next one is "
            f"{end}"
        )
    return RequestTimeout(
        f"the view of {partition} is taking in what was published: after {VIEW_PATIENCE:g} s of waiting it is at "
        f"offset {partition.applied} of {partition.view_target(offset)}"
    )


async def wait_for_views(partitions: Sequence[Partition], min_offsets: Least = None) -> Folded:
    """Returns once each view includes its one of `min_offsets`, or all that was decided at the call. Raises as
    `Folded.wait`."""
    folded = Folded(partitions, min_offsets)
    await folded.wait()
    return folded


class TableScan:
    """A snapshot of some partitions, handed out a page at a time, partition by partition, in key order."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: list[Partition],
        chosen: Chosen,
        *,
        tombstones: bool,
        resumable: bool = True,
        whole: bool = False,
    ) -> None:
        """`whole`: read as parts of one table, in which each key has one row; if not, each partition is read by
        itself."""
        chosen.check()
        self._runtime = runtime
        self._partitions = partitions
        self._chosen = chosen
        self._tombstones = tombstones
        self._snapshot: ViewSnapshot | None = runtime.views.snapshot()
        self._newest = newest_rows(self._snapshot, partitions[0] if whole and partitions else None)
        self.scattered = self._newest is not None  # a row may stand in any partition
        self._index = 0
        self._following: bytes | None = None  # the key to go on from in this partition; None: its first
        # Appliers run on this same loop, so what they have applied is what the snapshot holds.
        self.offsets = [(partition.index, partition.applied) for partition in partitions]
        self._starts = [partition.expired_below for partition in partitions]
        self.used_ms = runtime.clock.steady_ms()
        self.ended: Callable[[], None] = lambda: None
        if resumable:
            runtime.scans.add(self)

    async def page(self, max_entries: int, max_bytes: int) -> ScanPage:
        """As `ScanPort.page`."""
        keys: list[bytes] = []
        entries: list[bytes] = []
        room, stretch, looked = max_bytes, max_entries, 0
        while self._index < len(self._partitions):
            partition = self._partitions[self._index]
            stretch = min(stretch, STRETCH if self._newest is None else self._newest.at_once)
            looked += stretch
            rows = self._rows(partition, stretch, room if self._newest is None else min(room, BYTES)).first(
                max_entries - len(keys)
            )
            if self._newest is not None:
                looked = STRETCH  # so many lookups are enough for this turn
                rows = self._newest.of(rows, partition.index)
            keys += rows.keys
            entries += rows.entries
            room -= sum(map(len, rows.keys)) + sum(map(len, rows.entries))
            self._following = rows.following
            if rows.following is None:
                self._index += 1
            if keys and (rows.following is None or len(keys) == max_entries or room <= 0 or looked >= STRETCH):
                break
            stretch = max_entries - len(keys) if rows.keys else 2 * stretch
            if not keys:  # nothing of this round is in the page
                await trio.lowlevel.checkpoint()
                looked = 0
        else:
            self.close()
            return ScanPage(self._partitions[-1].index if self._partitions else 0, [], True)
        last = self._index == len(self._partitions)
        if last:
            self.close()
        return ScanPage(partition.index, packed_rows(keys, entries), last)

    def _rows(self, partition: Partition, count: int, room: int) -> Rows:
        if self._snapshot is None:
            raise UnknownHandle("this scan is closed: it ended, or nobody asked for its next page in time")
        if partition.gone is not None or self._snapshot.has_dropped(partition.number):
            raise partition.gone or partition.no_view()
        self.used_ms = self._runtime.clock.steady_ms()
        return self._snapshot.rows(
            partition.number,
            start=self._chosen.start if self._following is None else self._following,
            end=self._chosen.end,
            prefix=self._chosen.prefix,
            max_entries=count,
            max_bytes=room,
            tombstones=self._tombstones,
            log_start=self._starts[self._index],
        )

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
            self._runtime.scans.discard(self)
            self.ended()

    def describe(self) -> RegistrationFacts:
        return {"kind": "scan", "topics": sorted({partition.topic for partition in self._partitions})}


class TableWatch:
    """A table as it is, then every change to it: no gap and no duplicate between the two.

    The snapshot comes with the offsets up to which it is exact; the changes are read from the log from there on.
    `grows_with`: the topic's partitions, a mapping that grows with it; added ones are watched from their beginning.
    """

    def __init__(
        self,
        runtime: Runtime,
        partitions: list[Partition],
        chosen: Chosen,
        *,
        tombstones: bool,
        grows_with: Mapping[int, Partition] = MappingProxyType({}),
        whole: bool = False,
    ) -> None:
        """`whole`: as for TableScan. Then an event that is not the newest of its key is not a change."""
        chosen.check()
        self._whole = whole
        self._grows_with = grows_with
        self._told: dict[int, tuple[int, float]] = {}  # by partition: the offset emitted last, and when
        self.epochs: dict[int, int] = {}
        self._highest: dict[int, float] = {}  # by partition: the highest timestamp of the events that were passed
        self._runtime = runtime
        self._partitions = {partition.index: partition for partition in partitions}
        self._chosen = chosen
        self._tombstones = tombstones
        self._closed = False
        self._over: KrappyError | None = None  # why it does not go on
        self._changed = Signal()
        self._rows_scattered = False  # whether a row of its snapshot may stand in any partition

    @property
    def stands(self) -> bool:
        if self._closed or self._over is not None:
            return False
        elsewhere = (each.elsewhere for each in self._partitions.values())
        self._over = self._stopping() or next((error for error in elsewhere if error is not None), None)
        return self._over is None

    def _stopping(self) -> ShuttingDown | None:
        if self._runtime.stopped:
            return ShuttingDown("the broker is shutting down; watch again from the last offsets")
        return None

    @property
    def scattered(self) -> bool:
        """Whether a key may stand in several partitions, or may have when its snapshot was taken."""
        return self._rows_scattered or any(each.strays.are_known for each in self._partitions.values())

    def close(self) -> None:
        self._closed = True
        self._changed.fire()

    def describe(self) -> RegistrationFacts:
        return {"kind": "watch", "topics": sorted({partition.topic for partition in self._partitions.values()})}

    async def run(self, offsets: dict[int, int] | None, emit: Emit, room: Callable[[], Awaitable[None]]) -> None:
        """Emits until closed. With `offsets` there is no snapshot, only the changes from there on.

        `room` is awaited before anything is prepared for emission, so that a client that reads slowly costs little.
        Raises OffsetOutOfRange when retention has deleted events that were not emitted yet, or the log ends before one
        of `offsets`, or has been cut before it, as after an unclean election; ShuttingDown.
        """
        emit, room = self._checked(emit), self._checked(room)
        for index, offset in (offsets or {}).items():
            if offset > self._partitions[index].readable_end:
                self._partitions[index].check_readable(offset)
            elif index in self.epochs:
                self._partitions[index].check_read(offset, self.epochs[index])
        at = await self._emit_snapshot(emit, room) if offsets is None else offsets
        now = trio.current_time()
        self._told = {index: (offset, now) for index, offset in at.items()}
        for index, offset in at.items():
            if offset > self._partitions[index].start_offset:
                self._highest[index] = math.inf  # what was emitted before is not known
        while not self._closed:
            self._find_new(at)
            for partition in self._partitions.values():
                if (elsewhere := partition.elsewhere) is not None:
                    raise elsewhere
                at[partition.index] = await self._emit_changes(partition, at, emit, room)
            await self._wait(at)
            if (stopping := self._stopping()) is not None:
                raise stopping
            await self._emit_progress(at, emit, room)

    def _checked(self, wait: W) -> W:
        """`wait`, but it raises why the watch does not stand any more, if that was seen during the wait: then something
        was not emitted, and nothing may follow it."""

        async def checked(*args: Any) -> None:
            await wait(*args)
            if self._over is not None:
                raise self._over

        return cast("W", checked)

    def _find_new(self, offsets: dict[int, int]) -> None:
        """Takes up partitions that were added since, or that a resuming client does not know yet."""
        for partition in self._grows_with.values():
            self._partitions.setdefault(partition.index, partition)
        for index, partition in self._partitions.items():
            if index not in offsets:
                offsets[index] = partition.start_offset
                self._told[index] = (-1, trio.current_time())

    async def _wait(self, offsets: dict[int, int]) -> None:
        """Waits until there is something to do, or progress to emit."""
        partitions = list(self._partitions.values())
        runtime = self._runtime
        signals = [*(each.moved for each in partitions), self._changed, runtime.stopping, runtime.topics.changed]

        def ready() -> bool:
            return (
                self._closed
                or runtime.stopped
                or len(self._grows_with) > len(partitions)
                or any(
                    each.elsewhere is not None or each.last_stable_offset > offsets[each.index] for each in partitions
                )
            )

        due = [told[1] + PROGRESS for index, told in self._told.items() if told[0] != offsets[index]]
        await wait_any(signals, ready, min(due, default=math.inf) - trio.current_time() if due else math.inf)

    async def _emit_progress(self, offsets: dict[int, int], emit: Emit, room: Callable[[], Awaitable[None]]) -> None:
        """Emits the offsets of partitions where nothing has matched for a while: so a client that resumes skips these
        events."""
        for index, (told, when) in list(self._told.items()):
            if told != offsets[index] and trio.current_time() >= when + PROGRESS and not self._closed:
                await room()
                await self._emit(emit, index, offsets[index], [])

    async def _emit(self, emit: Emit, index: int, offset: int, items: list[bytes]) -> None:
        self._told[index] = (offset, trio.current_time())
        await emit("changes", index, offset, items)

    async def _emit_snapshot(self, emit: Emit, room: Callable[[], Awaitable[None]]) -> dict[int, int]:
        partitions = list(self._partitions.values())
        await wait_for_views(partitions)
        scan = TableScan(
            self._runtime, partitions, self._chosen, tombstones=self._tombstones, resumable=False, whole=self._whole
        )
        exact, self._rows_scattered = dict(scan.offsets), scan.scattered
        known = {each.index: each.epochs.at(exact[each.index] - 1) for each in partitions}
        self.epochs = {index: epoch for index, epoch in known.items() if epoch >= 0}
        try:
            while not self._closed:
                await room()
                page = await scan.page(1000, READ)
                if page.items:
                    await emit("snapshot", page.partition, exact[page.partition], page.items)
                else:
                    await trio.lowlevel.checkpoint()
                if page.last:
                    await emit("end_of_snapshot", page.partition, exact[page.partition], [], list(exact.items()))
                    break
        finally:
            scan.close()
        return exact

    async def _emit_changes(
        self, partition: Partition, offsets: dict[int, int], emit: Emit, room: Callable[[], Awaitable[None]]
    ) -> int:
        offset = offsets[partition.index]
        while not self._closed and offset < partition.last_stable_offset:
            await room()
            data = (await partition.read(offset, READ)).data
            changes: list[Change] = []
            start = following = offset
            latest = -1
            highest = self._highest.get(partition.index, -1)
            size = 0
            for header, view in batches.split(data):
                if header.base_offset > following or header.count < header.next_offset - header.base_offset:
                    highest = math.inf  # compaction was here: nobody knows the timestamps of what it removed
                following, latest = header.next_offset, max(latest, header.max_timestamp)
                self.epochs[partition.index] = header.leader_epoch
                while not header.is_control and offset < following and not self._closed:
                    # A batch that unpacks to many bytes is emitted in parts. It is not kept unpacked while the client
                    # takes one.
                    some, grown, end = self._changes_in(await large.decode(view), offset, PART - size)
                    changes += some
                    size += grown
                    if size < PART:
                        break
                    highest = max(highest, latest)
                    offset = max(end, offset + 1)
                    await self._tell(partition, changes, offset, offsets, highest, emit, room)
                    changes, size = [], 0
                    await room()
            offset = max(following, start + 1)
            await self._tell(partition, changes, offset, offsets, highest, emit, room)
            self._highest[partition.index] = max(highest, latest)
        return offset

    def _changes_in(self, columns: Columns, offset: int, room: int) -> tuple[list[Change], int, int]:
        """The changes from `offset` on, until they take `room` bytes; with their bytes, and the offset after them."""
        found: list[Change] = []
        size = 0
        for index in range(bisect_left(columns.offsets, offset), len(columns)):
            at, key = columns.offsets[index], columns.keys[index]
            if key is not None and self._chosen.holds(key):
                headers = columns.headers[index] if columns.headers else None
                found.append((key, pack_entry(at, columns.timestamps[index], columns.values[index], headers)))
                size += len(key) + len(found[-1][1])
                if size >= room:
                    return found, size, at + 1
        return found, size, offset

    async def _tell(
        self,
        partition: Partition,
        changes: list[Change],
        offset: int,
        offsets: dict[int, int],
        highest: float,
        emit: Emit,
        room: Callable[[], Awaitable[None]],
    ) -> None:
        """Emits those of these changes that a watch must see. `offset`: the offset after them. `highest`: see
        `judged`."""
        again: list[tuple[int, bytes]] = []
        if self._whole and partition.strays:
            changes, again = await judged(partition, changes, offsets, highest)
        if changes or trio.current_time() >= self._told[partition.index][1] + PROGRESS:
            items = packed_rows([key for key, _ in changes], [entry for _, entry in changes])
            await self._emit(emit, partition.index, offset, items)
        for index, key in again:
            await self._emit_again(partition.strays.partitions[index], key, offsets, emit, room)

    async def _emit_again(
        self, other: Viewed, key: bytes, offsets: dict[int, int], emit: Emit, room: Callable[[], Awaitable[None]]
    ) -> None:
        """Emits a partition's entry of a key again, unless it has changed since and will be emitted anyway."""
        await room()
        entry, at = other.look_up(key), offsets[other.index]
        if entry is not None and entry_offset(entry) < at and not self._closed:
            await self._emit(emit, other.index, at, packed_rows([key], [entry]))


async def history(
    partition: Partition, key: bytes, offset: int, max_records: int, max_bytes: int
) -> tuple[list[bytes], int | None]:
    """The events of one key in the log from `offset` on, as packed entries, and the offset of the next page (None: the
    end).
    """
    offset = max(offset, partition.start_offset)
    end = partition.last_stable_offset
    found: list[bytes] = []
    size = looked = 0
    while offset < end and looked < HISTORY_READ:
        data = (await partition.read(offset, READ, limit=end)).data
        if not data:
            break
        looked += len(data)
        for header, view in batches.split(data):
            if not header.is_control and (header.compressed or key in bytes(view)):
                columns = await large.decode(view)
                for index, held in enumerate(columns.keys):
                    at = columns.offsets[index]
                    if held != key or at < offset:
                        continue
                    headers = columns.headers[index] if columns.headers else None
                    entry = pack_entry(at, columns.timestamps[index], columns.values[index], headers)
                    found.append(entry)
                    size += len(entry)
                    if len(found) >= max_records or size >= max_bytes:
                        return found, at + 1 if at + 1 < end else None
            offset = max(offset, header.next_offset)
        await trio.lowlevel.checkpoint()
    return found, offset if offset < end else None
