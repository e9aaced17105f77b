"""Reads a table with strays (strays.py) partition by partition. A row is left out if another partition has a newer one
of its key, so that each key has one row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING

from krappy.broker.partition.doubles import Doubles, doubles
from krappy.broker.partition.newest import is_newer
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed
from krappy.entries.entry import entry_timestamp, floor
from krappy.partitioner import home_for
from krappy.store.view_snapshot import Rows, ViewSnapshot

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.store.views import Views

LOOKUPS = 4_000  # lookups in one turn: some milliseconds
BYTES = 1 << 20  # bytes of rows that are looked at in one turn: so many bytes of keys may have to be hashed
LEAST, ROOM = 8, 256 << 10  # keys looked up together: at least LEAST, and so many that entries take about ROOM bytes


class NewestRows:
    """The newest rows of one snapshot."""

    def __init__(self, snapshot: ViewSnapshot, strays: Strays[Viewed]) -> None:
        """`snapshot`: taken in this same turn."""
        snapshot.keep_all()
        self._strays = strays
        self._applied = {each.index: each.applied for each in strays.partitions.values()}
        self._doubles: frozenset[bytes] | None = None  # all keys that stand in several partitions; None: not known
        self._snapshot = snapshot
        self._count = strays.count
        self._places = [(each.index, each.number, floor(each.expired_below)) for each in strays.partitions.values()]

    @property
    def at_once(self) -> int:
        """How many rows may be given to `of` in one turn."""
        return max(1, LOOKUPS // len(self._places))

    async def find_doubles(self, views: Views) -> None:
        """Makes `of` quicker for a caller that reads all rows. Raises StorageError."""
        strays = self._strays
        async with strays.finding:
            if strays.doubles is None or not strays.doubles.cover(self._applied):
                applied = {each.index: each.applied for each in strays.partitions.values()}
                numbers = [each.number for each in strays.partitions.values()]
                strays.doubles = Doubles(applied, await doubles(views, numbers))
            self._doubles = strays.doubles.keys

    @property
    def single(self) -> bool:
        """Whether `find_doubles` has found that each key stands in one partition only."""
        return self._doubles is not None and not self._doubles

    def _shared(self, number: int, keys: Sequence[bytes]) -> list[bytes]:
        """Those of `keys` that may have an entry in this view. `keys`: some keys of a partition, in order."""
        if self._doubles is None:
            return self._snapshot.shared(number, keys)
        gone = self._snapshot.gone(number)
        return sorted((self._doubles | gone).intersection(keys) if gone else self._doubles.intersection(keys))

    def of(self, rows: Rows, index: int) -> Rows:
        """The rows of a partition that are the newest of their keys. `index`: the partition's. Raises StorageError."""
        if not rows.keys:
            return rows
        older: set[bytes] = set()
        mine: dict[bytes, bytes] = {}
        for other, number, lowest in self._places:
            if other == index or not (shared := self._shared(number, rows.keys)):
                continue
            mine = mine or dict(zip(rows.keys, rows.entries, strict=True))
            start, step = 0, LEAST
            while start < len(shared):
                some, size = shared[start : start + step], 0
                for key, entry in zip(some, self._snapshot.get_many(number, some), strict=True):
                    if entry is not None and entry >= lowest:
                        size += len(entry)
                        # The key's own partition matters only among entries of the same time, and takes long to work
                        # out.
                        is_tie = entry_timestamp(entry) == entry_timestamp(mine[key])
                        home = home_for(key, self._count) if is_tie else index
                        if is_newer(entry, other, mine[key], index, home):
                            older.add(key)
                start += len(some)
                step = max(LEAST, min(2 * step, ROOM * len(some) // (size + 1)))
        if not older:
            return rows
        keep = [key not in older for key in rows.keys]
        return Rows(list(compress(rows.keys, keep)), list(compress(rows.entries, keep)), rows.following)


def newest_rows(snapshot: ViewSnapshot, partition: Partition | None) -> NewestRows | None:
    """The NewestRows of a snapshot that was taken in this turn, for the whole topic of `partition`. None if the topic
    has no strays, so that each key has one row anyway."""
    return NewestRows(snapshot, partition.strays) if partition is not None and partition.strays else None
