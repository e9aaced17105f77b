"""Snapshots of tables that the broker holds under an id. Any connection may read one, so that many readers share it.

They pin old data in RocksDB's files. So there are at most `MOST`, and each ends when neither a read nor a `keep` has
used it for its time to live. It does not end during a read. The bounds of their keys may take a share of the memory.
One user has at most as many as others leave, and of that share likewise: so nobody keeps others from taking one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.broker.runtime import SHARE
from krappy.broker.tables import splits
from krappy.broker.tables.newest_rows import BYTES, newest_rows
from krappy.broker.tables.table import Chosen
from krappy.core.owned_memory import OwnedMemory
from krappy.errors import InvalidRequest, Overloaded, ShuttingDown, SnapshotGone, UnknownPartition
from krappy.ports.audit import whose
from krappy.store.view_snapshot import Rows
from krappy.waiting import Signal, wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

MOST = 100  # snapshots that are held at a time
LONGEST_S = 86_400.0  # the longest time to live
MEASURED = 1 << 20  # bytes that `measure` reads in one go
PAGE = 2_000  # entries read in one go: about a millisecond


class LeasedSnapshot:
    """One snapshot. Its ranges are read in any order, by any number of readers at once."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: list[Partition],
        chosen: Chosen,
        ttl: float,
        *,
        tombstones: bool,
        whole: bool = False,
    ) -> None:
        """`whole`: as for TableScan."""
        self.id = secrets.token_hex(12)
        self.ttl = ttl
        self.tombstones = tombstones
        self.chosen = chosen
        self.partitions = {partition.index: partition for partition in partitions}
        self.topic = partitions[0].topic
        self.owner = ""  # the principal that had it taken
        self.taker = whose()  # whose part of the snapshots it takes
        self.readers = 0
        self.expires = trio.current_time() + ttl
        # Appliers run on this same loop, so what they have applied is what the snapshot holds.
        self.offsets = [(partition.index, partition.applied) for partition in partitions]
        self._starts = {partition.index: partition.expired_below for partition in partitions}
        self._views = runtime.views
        self._view = runtime.views.snapshot()
        self._newest = newest_rows(self._view, partitions[0] if whole else None)
        self.closed = False

    def rows(self, partition: int, start: bytes | None, end: bytes | None, max_bytes: int, *, tombstones: bool) -> Rows:
        """The next entries of a range, of the chosen keys only. Raises SnapshotGone, UnknownPartition."""
        found = self.partitions.get(partition)
        if found is None:
            raise UnknownPartition(f"the snapshot has partitions {sorted(self.partitions)}, not {partition}")
        if self.closed or found.gone is not None or self._view.has_dropped(found.number):
            raise SnapshotGone(f"snapshot {self.id} has ended" if self.closed else f"the table of {found} is gone")
        chosen = self.chosen
        if chosen.start is not None and (start is None or start < chosen.start):
            start = chosen.start
        if chosen.end is not None and (end is None or end > chosen.end):
            end = chosen.end
        newest = self._newest
        rows = self._view.rows(
            found.number,
            start=start,
            end=end,
            prefix=chosen.prefix,
            max_entries=PAGE if newest is None else min(PAGE, newest.at_once),
            max_bytes=max_bytes if newest is None else min(max_bytes, BYTES),
            tombstones=tombstones,
            log_start=self._starts[partition],
        )
        return rows if newest is None else newest.of(rows, partition)

    async def ranges(self, parts: int) -> list[splits.Range]:
        """Splits the whole snapshot into about `parts` ranges of about equal size."""
        return await splits.ranges(self._views, list(self.partitions.values()), self.chosen, parts)

    async def measure(self, enough: int) -> int:
        """How many bytes its keys and entries take: exact up to `enough`; if they take more, some number above it."""
        size = count = 0
        for partition in self.partitions.values():
            following: bytes | None = None
            while True:
                rows = self.rows(partition.index, following, None, MEASURED, tombstones=self.tombstones)
                size += sum(map(len, rows.keys)) + sum(map(len, rows.entries))
                count += len(rows.keys)
                if size > enough:
                    every = splits.reckoned(self._views, list(self.partitions.values()), self.chosen)
                    return max(size, int(every * size / count))
                following = rows.following
                await trio.lowlevel.checkpoint()
                if following is None:
                    break
        return size

    def touch(self) -> None:
        """Notes that it was used now."""
        self.expires = max(self.expires, trio.current_time() + self.ttl)

    def close(self) -> None:
        self.closed = True
        self._view.close()


class Snapshots:
    """All snapshots of a broker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._held: dict[str, LeasedSnapshot] = {}
        self._changed = Signal()
        self._watched = False
        self.opened = self.expired = 0  # how many, over the broker's life

    def __len__(self) -> int:
        return len(self._held)

    def open(
        self, partitions: list[Partition], chosen: Chosen, ttl_ms: int, *, tombstones: bool, whole: bool = False
    ) -> LeasedSnapshot:
        """Takes a snapshot of these partitions' views. The caller has waited for the views. Raises Overloaded."""
        chosen.check()
        if not partitions:
            raise InvalidRequest("a snapshot needs at least one partition", field="partitions")
        if self._runtime.stopped:
            raise ShuttingDown("the broker is shutting down")
        config = self._runtime.config
        number = OwnedMemory(MOST, fair=config.authorizes)
        bounds = OwnedMemory(config.memory_bytes // SHARE, fair=config.authorizes)
        for each in self._held.values():
            number.charge(each.taker, 1)
            bounds.charge(each.taker, each.chosen.size)
        if not number.has_room(whose(), 1):
            text = f"{len(self._held)} snapshots are held already; close some, or wait until their time is over"
            raise Overloaded(f"{text} (there may be {MOST}, and of one user as many as others leave)")
        if not bounds.has_room(whose(), chosen.size):
            text = f"the bounds of the snapshots that are held may take {bounds.most} bytes"
            raise Overloaded(f"{text}, those of one user as many as others leave: close some of these")
        found = LeasedSnapshot(self._runtime, partitions, chosen, _seconds(ttl_ms), tombstones=tombstones, whole=whole)
        self._held[found.id] = found
        self.opened += 1
        if not self._watched:
            self._watched = True
            self._runtime.spawn(self._watch)
        self._changed.fire()
        return found

    def keep(self, id: str, ttl_ms: int | None) -> None:
        """Starts its time to live anew. Raises SnapshotGone."""
        snapshot = self.find(id)
        if ttl_ms is not None:
            snapshot.ttl = _seconds(ttl_ms)
        snapshot.expires = trio.current_time() + snapshot.ttl
        self._changed.fire()

    @contextmanager
    def reading(self, id: str) -> Iterator[LeasedSnapshot]:
        """Gives the snapshot for the body, during which it does not expire. Raises SnapshotGone."""
        snapshot = self.find(id)
        snapshot.readers += 1
        try:
            yield snapshot
        finally:
            snapshot.readers -= 1
            snapshot.touch()
            self._changed.fire()

    def close(self, id: str) -> None:
        """Closes it. Does nothing when it has ended."""
        snapshot = self._held.pop(id, None)
        if snapshot is not None:
            snapshot.close()
            self._changed.fire()

    def close_all(self) -> None:
        for id in list(self._held):
            self.close(id)

    def get(self, id: str) -> LeasedSnapshot | None:
        return self._held.get(id)

    def find(self, id: str) -> LeasedSnapshot:
        """Raises SnapshotGone."""
        found = self._held.get(id)
        if found is None:
            raise self.gone(id)
        return found

    def gone(self, id: str) -> SnapshotGone:
        return SnapshotGone(
            f"there is no snapshot '{id:.40}': it was closed, not used within its time to live, or ended with the "
            "broker; take another, and keep it while it is not read (KeepSnapshot)"
        )

    async def _watch(self) -> None:
        """Closes snapshots that have expired, until there are none left."""
        try:
            while self._held:
                now, due = trio.current_time(), self._due()
                if due <= now:
                    for snapshot in [each for each in self._held.values() if not each.readers and each.expires <= now]:
                        self.close(snapshot.id)
                        self.expired += 1
                        self._runtime.report("snapshot_expired", id=snapshot.id)
                else:
                    await wait_any([self._changed], lambda due=due: self._due() != due, due - now)  # type: ignore[misc]
        finally:
            self._watched = False

    def _due(self) -> float:
        """When the next snapshot expires."""
        return min((each.expires for each in self._held.values() if not each.readers), default=math.inf)


def _seconds(ttl_ms: int) -> float:
    return min(ttl_ms / 1000, LONGEST_S)
