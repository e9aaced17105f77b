"""Which events of a partition change a table with strays (strays.py), where a key may stand in several partitions.

A watch emits an event unless another partition has a newer event of its key. If the watch has not reached the newer
event yet, it emits that later. If it has passed the newer event, that was emitted, and may have to be emitted again:
another event of the key may have been emitted since, and an event with an older timestamp may now have replaced that
one in its own partition. So what a watch emits last of a key is what the table has. (When partitions are added, another
of several events with equal timestamps may become the newest. No event tells a watch of that.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.newest import is_newer, newest
from krappy.entries.entry import VALUE_AT, entry_offset, entry_timestamp

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition

SLICE = 64  # keys looked up together
HEAD = VALUE_AT + 1  # bytes of an entry before its value, and one byte more, which tells a tombstone
Change = tuple[bytes, bytes]  # a key, and a packed entry


async def judged(
    partition: Partition, changes: Sequence[Change], passed: Mapping[int, int], highest: float
) -> tuple[list[Change], list[tuple[int, bytes]]]:
    """Which of a partition's events change the table, and what must be emitted again: (partition, key).

    `passed`: by partition, the offset before which all was emitted. `highest`: no event before `changes` in the
    partition has a higher timestamp. Raises why a view does not catch up.
    """
    others = partition.strays.others(partition)
    for other in others:
        other.view_ready(0)  # raises if the partition is closed, or has no view
        await other.applier.caught_up(passed.get(other.index, 0))
    count = partition.strays.count
    keys = list(dict.fromkeys(key for key, _ in changes))
    best: dict[bytes, tuple[bytes, int]] = {}
    homes: dict[bytes, int] = {}
    for start in range(0, len(keys), SLICE):
        some = keys[start : start + SLICE]
        where, entries = await newest(others, some, trio.lowlevel.checkpoint, count, homes)
        for key, index, entry in zip(some, where, entries, strict=True):
            if entry is not None:
                best[key] = entry[:HEAD], index
        await trio.lowlevel.checkpoint()
    told: list[Change] = []
    again: dict[bytes, int] = {}
    for key, entry in changes:
        if key in best:
            other_entry, index = best[key]
            again.pop(key, None)
            if is_newer(other_entry, index, entry, partition.index, homes[key]):
                if entry_offset(other_entry) < passed.get(index, 0) and entry_timestamp(other_entry) <= highest:
                    again[key] = index
                continue
        highest = max(highest, entry_timestamp(entry))
        told.append((key, entry))
    return told, [(index, key) for key, index in again.items()]
