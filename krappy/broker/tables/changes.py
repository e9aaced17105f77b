"""Which events of a partition change a table with strays (strays.py), where a key may stand in other partitions, too.

A watch tells an event when no other partition has a newer one of its key. A newer one that the watch has not come to is
told when it does. One that it has passed was told, and is told again when another may have taken its place since, which
is itself overtaken now by an older one that follows it in its partition: what a watch tells last of a key is what the
table has. (Of equal timestamps another may be the newest once partitions are added; there is no event to tell of that.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.newest import is_newer, newest
from krappy.entries.entry import VALUE_AT, entry_offset, entry_timestamp
from krappy.partitioner import partition_for

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition

SLICE = 64  # keys looked up together
HEAD = VALUE_AT + 1  # bytes of an entry that tell all but its value
Change = tuple[bytes, bytes]  # a key, and a packed entry


async def judged(
    partition: Partition, changes: Sequence[Change], passed: Mapping[int, int], highest: float
) -> tuple[list[Change], list[tuple[int, bytes]]]:
    """Those of a partition's events that change the table; and what is to be told again: partition and key.

    `passed`: by partition, the offset below which all was told; `highest`: no event before these in the partition has a
    higher timestamp. Raises why a view does not get so far.
    """
    others = partition.strays.others(partition)
    for other in others:
        other.view_ready(0)  # raises what has become of it
        await other.applier.caught_up(passed.get(other.index, 0))
    count = partition.strays.count
    keys = list(dict.fromkeys(key for key, _ in changes))
    best: dict[bytes, tuple[bytes, int]] = {}
    for start in range(0, len(keys), SLICE):
        some = keys[start : start + SLICE]
        where, entries = await newest(others, some, trio.lowlevel.checkpoint, count)
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
            if is_newer(other_entry, index, entry, partition.index, partition_for(key, count)):
                if entry_offset(other_entry) < passed.get(index, 0) and entry_timestamp(other_entry) <= highest:
                    again[key] = index
                continue
        highest = max(highest, entry_timestamp(entry))
        told.append((key, entry))
    return told, [(index, key) for key, index in again.items()]
