"""Looks for keys of other partitions a step at a time, since to hash many bytes takes long.

In a round of the event loop, all partitions together take one step for batches that have a long key, and one step for
other batches. So batches of ordinary keys never wait behind long keys, and no round takes long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import trio

from krappy.partitioner import LONG, MOST_HASHED, SOME, any_elsewhere, murmur2_in_steps

LITTLE = 16 << 10  # bytes of keys that are looked at without waiting for a turn
AT_ONCE = 1000  # keys that are looked at in one step
STEP = 64 << 10  # bytes of keys that are looked at in one step
TOGETHER = 10  # many keys of one length are hashed so many times faster


class _Turns(NamedTuple):
    """Whoever holds one of them takes a step."""

    ordinary: trio.Lock
    long: trio.Lock  # of batches that have a key of `LONG` bytes


_turns: trio.lowlevel.RunVar[_Turns] = trio.lowlevel.RunVar("krappy-hashing")


async def look_for_strays(keys: Sequence[bytes | None], partitions: int, index: int) -> bool:
    """As `krappy.partitioner.any_elsewhere`, of keys that may be None."""
    if partitions == 1:
        return False
    try:
        held = cast("Sequence[bytes]", keys)
        total = sum(map(len, held))
    except TypeError:  # looking for None first would take longer
        held = [key for key in keys if key is not None]
        total = sum(map(len, held))
    if total <= LITTLE:
        return any_elsewhere(held, partitions, index)
    sizes = Counter(map(len, held))
    long = sum(size * count for size, count in sizes.items() if size >= LONG)
    if long > MOST_HASHED:
        return True
    if len(held) <= AT_ONCE and not long and sum(map(_work, sizes, sizes.values())) <= LITTLE:
        return any_elsewhere(held, partitions, index)
    turns = _shared().long if long else _shared().ordinary
    steps = _steps(held, partitions, index)
    found = None
    while found is None:
        async with turns:
            found = next(steps)
    return found


def _work(size: int, count: int) -> int:
    """What it takes to hash so many keys of this size, in bytes of keys that are hashed one by one."""
    return size * count if count <= SOME else size * count // TOGETHER


def _steps(keys: Sequence[bytes], partitions: int, index: int) -> Iterator[bool | None]:
    """Gives None after each step but the last, and then whether a key belongs to another partition."""
    start = 0
    while start < len(keys):
        if len(keys[start]) > STEP:
            hashed = yield from murmur2_in_steps(keys[start], STEP)
            found = hashed % partitions != index
            start += 1
        else:
            some = keys[start : start + AT_ONCE]
            sizes = list(map(len, some))
            if sum(sizes) > STEP:
                some = some[: next(row for row, size in enumerate(accumulate(sizes)) if size > STEP)]
            found = any_elsewhere(some, partitions, index)
            start += len(some)
        if found:
            break
        if start < len(keys):
            yield None
    yield found


def _shared() -> _Turns:
    """The turns that all brokers of this event loop share."""
    try:
        return _turns.get()
    except LookupError:
        made = _Turns(trio.Lock(), trio.Lock())
        _turns.set(made)
        return made
