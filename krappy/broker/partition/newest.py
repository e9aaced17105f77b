"""The newest entry of a key that may stand in several partitions (strays.py), and the partitions that have an entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from krappy.broker.partition.viewed import ROOM, Viewed
from krappy.entries.entry import entry_timestamp
from krappy.partitioner import home_for

LOOKUPS = 640  # lookups of single keys in one turn
HASHED = 256  # bytes of a key that are hashed in the time of a lookup
Pause = Callable[[], Awaitable[None]]


def is_newer(entry: bytes, index: int, other: bytes, its: int, home: int) -> bool:
    """Whether `entry`, of partition `index`, is newer than `other`, of partition `its`: both of one key. `home`: the
    partition that murmur2 gives the key."""
    return (entry_timestamp(entry), index == home, index) > (entry_timestamp(other), its == home, its)


async def newest(
    partitions: Sequence[Viewed], keys: Sequence[bytes], pause: Pause, count: int, homes: dict[bytes, int] | None = None
) -> tuple[list[int], list[bytes | None]]:
    """The partition of each key's newest entry, and the entries. A key without an entry: the partition that murmur2
    gives it, and None. Stops after the first keys if their entries are large.

    `partitions`: those to look in, of the topic's `count`. The caller has waited for their views. `homes`: gets the
    partitions that murmur2 gives keys with an entry, so that nobody has to hash them again."""
    looked, room = 0, ROOM
    where: list[int] = []
    found: list[bytes | None] = []
    for key in keys:
        home = at = home_for(key, count)
        looked += len(key) // HASHED
        best: bytes | None = None
        for partition in partitions:
            entry, index = partition.look_up(key), partition.index
            if entry is not None and (best is None or is_newer(entry, index, best, at, home)):
                best, at = entry, index
            looked += 1
            if looked >= LOOKUPS:
                looked = 0
                await pause()
        if homes is not None and best is not None:
            homes[key] = home
        where.append(at)
        found.append(best)
        room -= len(best or b"")
        if room <= 0:
            break
    return where, found


async def holders(partitions: Sequence[Viewed], key: bytes, pause: Pause) -> list[int]:
    """The partitions that have an entry of the key; a tombstone counts."""
    found: list[int] = []
    for number, partition in enumerate(partitions, 1):
        if partition.look_up(key) is not None:
            found.append(partition.index)
        if number % LOOKUPS == 0:
            await pause()
    return found
