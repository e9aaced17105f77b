"""Which events of a watch change a table whose keys may stand in several partitions, which several brokers lead.

Each leader tells of its own partitions, and their events come in any order between each other. So before an event is
handed out, all partitions are asked for its key. If another partition has a newer event of the key, the table has that
one. If it is yet to come, nothing is handed out now. If it has come, it is handed out again, in the place of this
event: other events of the key may have come since, which this event has replaced, so that the table has the newer one
once more. So what a watch hands out last of a key is what the table has. (A broker that leads all partitions does so by
itself: broker/tables/changes.py.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from krappy.clients import lookups, tables
from krappy.partitioner import home_for

if TYPE_CHECKING:
    from krappy.clients.router import Router
    from krappy.types import Entry


async def judged(
    router: Router, topic: str, found: Sequence[Entry], passed: Mapping[int, int], some: Collection[int] | None = None
) -> dict[int, Entry | None]:
    """By offset, what is handed out for each event of `found`, the next ones of some partition: the event itself, the
    newer one that is handed out again, or nothing. `passed`: by partition, the offset before which all was handed out.
    `some`: the partitions that are watched; None: all, also those that are added. Raises as a lookup."""
    keys = list(dict.fromkeys(each.key for each in found))
    rows = dict(zip(keys, await tables.get_everywhere(router, topic, keys), strict=True))
    told: dict[int, Entry | None] = {}
    for entry in found:
        row = rows[entry.key]
        watched = [each for each in row if each is not None and (some is None or each.partition in some)]
        others = [each for each in watched if each.partition != entry.partition]
        newest = lookups.newest([entry, *others], home_for(entry.key, len(row)))
        assert newest is not None
        is_to_come = newest is not entry and newest.offset >= passed.get(newest.partition, 0)
        told[entry.offset] = None if is_to_come else newest
    return told
