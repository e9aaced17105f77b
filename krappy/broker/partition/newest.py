"""The newest entry of a key that may stand in several partitions (strays.py), and the partitions that have one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from krappy.broker.partition.viewed import ROOM, Viewed
from krappy.entries.entry import entry_timestamp
from krappy.partitioner import partition_for

LOOKUPS = 640  # of single keys, between two turns of the event loop
Pause = Callable[[], Awaitable[None]]


def is_newer(entry: bytes, index: int, other: bytes, its: int, home: int) -> bool:
    """Whether an entry of partition `index` is newer than another, of partition `its`, of the same key; `home`: the
    key's own partition."""
    return (entry_timestamp(entry), index == home, index) > (entry_timestamp(other), its == home, its)


async def newest(
    partitions: Sequence[Viewed], keys: Sequence[bytes], pause: Pause, count: int
) -> tuple[list[int], list[bytes | None]]:
    """The newest entry of each key in these of `count` partitions, and which one it stands in; the key's own for a key
    that stands nowhere. Of the first of these keys: of all, unless their entries are large. The caller has waited for
    their views."""
    looked, room = 0, ROOM
    where: list[int] = []
    found: list[bytes | None] = []
    for key in keys:
        home = at = partition_for(key, count)
        best: bytes | None = None
        for partition in partitions:
            entry, index = partition.look_up(key), partition.index
            if entry is not None and (best is None or is_newer(entry, index, best, at, home)):
                best, at = entry, index
            looked += 1
            if looked >= LOOKUPS:
                looked = 0
                await pause()
        where.append(at)
        found.append(best)
        room -= len(best or b"")
        if room <= 0:
            break
    return where, found


async def holders(partitions: Sequence[Viewed], key: bytes, pause: Pause) -> list[int]:
    """The partitions that have an entry of a key, a tombstone too."""
    found: list[int] = []
    for number, partition in enumerate(partitions, 1):
        if partition.look_up(key) is not None:
            found.append(partition.index)
        if number % LOOKUPS == 0:
            await pause()
    return found
