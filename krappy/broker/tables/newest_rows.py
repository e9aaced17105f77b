"""Reads a table with strays (strays.py) partition by partition. A row is left out if another partition has a newer one
of its key, so that each key has one row."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from krappy.broker.partition.newest import is_newer
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed
from krappy.entries.entry import floor
from krappy.partitioner import partition_for
from krappy.store.view_snapshot import Rows, ViewSnapshot

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition

LOOKUPS = 4_000  # lookups in one turn: some milliseconds
LEAST, ROOM = 8, 256 << 10  # keys looked up together: at least LEAST, and so many that entries take about ROOM bytes


class NewestRows:
    """The newest rows of one snapshot."""

    def __init__(self, snapshot: ViewSnapshot, strays: Strays[Viewed]) -> None:
        """`snapshot`: taken in this same turn."""
        snapshot.keep_all()
        self._snapshot = snapshot
        self._count = strays.count
        self._places = [(each.index, each.number, floor(each.expired_below)) for each in strays.partitions.values()]

    @property
    def at_once(self) -> int:
        """How many rows may be given to `of` in one turn."""
        return max(1, LOOKUPS // len(self._places))

    def of(self, rows: Rows, index: int) -> Rows:
        """The rows of a partition that are the newest of their keys. `index`: the partition's. Raises StorageError."""
        keys, entries = rows.keys, rows.entries
        homes = [partition_for(key, self._count) for key in keys]
        keep = [True] * len(keys)
        start, step = 0, LEAST
        while start < len(keys):
            some, size = keys[start : start + step], 0
            for other, number, lowest in self._places:
                if other != index:
                    for row, entry in enumerate(self._snapshot.get_many(number, some), start):
                        if entry is not None and entry >= lowest:
                            size += len(entry)
                            keep[row] = keep[row] and not is_newer(entry, other, entries[row], index, homes[row])
            start += len(some)
            step = max(LEAST, min(2 * step, ROOM * len(some) // (size + 1)))
        if all(keep):
            return rows
        return Rows(list(compress(keys, keep)), list(compress(entries, keep)), rows.following)


def newest_rows(snapshot: ViewSnapshot, partition: Partition | None) -> NewestRows | None:
    """The NewestRows of a snapshot that was taken in this turn, for the whole topic of `partition`. None if the topic
    has no strays, so that each key has one row anyway."""
    return NewestRows(snapshot, partition.strays) if partition is not None and partition.strays else None
