"""A table with strays (strays.py), read partition by partition: of each partition the rows that are the newest of their
keys in all partitions, so that each key has one row."""

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

LOOKUPS = 4_000  # between two turns of the event loop: some milliseconds
LEAST, ROOM = 8, 256 << 10  # keys looked up together, at least, and what is found may take, about


class NewestRows:
    """Of one snapshot."""

    def __init__(self, snapshot: ViewSnapshot, strays: Strays[Viewed]) -> None:
        """`snapshot`: of this moment."""
        snapshot.keep_all()
        self._snapshot = snapshot
        self._count = strays.count
        self._places = [(each.index, each.number, floor(each.expired_below)) for each in strays.partitions.values()]

    @property
    def at_once(self) -> int:
        """Rows that may be given to `of` between two turns of the event loop."""
        return max(1, LOOKUPS // len(self._places))

    def of(self, rows: Rows, index: int) -> Rows:
        """Those of a partition's rows that are the newest of their keys. Raises StorageError."""
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
    """For a snapshot of this moment of the whole topic of a partition; None where each key has one row anyway."""
    return NewestRows(snapshot, partition.strays) if partition is not None and partition.strays else None
