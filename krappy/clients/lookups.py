"""Lookups in a topic whose partitions are led by several brokers: each leader is asked for its own keys, all leaders at
the same time.

While a topic has strays (keys in other partitions than those that murmur2 gives them), a broker that does not lead all
partitions says that it can't tell. Then every partition is asked, and the newest entry of a key counts, as on a broker
that leads them all: the one with the highest timestamp; of equal ones that in the key's own partition, else that in the
highest partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TypeVar

from krappy.clients.router import Router
from krappy.clients.scattering import counted, partitions
from krappy.partitioner import home_for
from krappy.types import Entry
from krappy.wire.messages import Answer, Request

A = TypeVar("A", bound=Answer)
T = TypeVar("T")


async def spread(
    router: Router,
    topic: str,
    keys: Sequence[bytes],
    request: Callable[[list[bytes]], Request],
    answer: type[A],
    deadline: float | None = None,
) -> list[tuple[list[int], A]]:
    """(numbers of keys, the answer about them) of each leader. Raises OthersNeeded while the topic has strays."""

    async def ask(count: int, _: int | None) -> list[tuple[list[int], A]]:
        rows = _by_partition(keys, count)
        found = await router.of_leaders(
            topic, rows, lambda some: request([keys[row] for row in rows_of(rows, some)]), answer, deadline=deadline
        )
        return [(rows_of(rows, some), got) for _, some, got in found]

    return await counted(router, topic, router.runtime.now() + router.timeout if deadline is None else deadline, ask)


async def everywhere(
    router: Router, topic: str, deadline: float, ask: Callable[[int, int | None], Awaitable[T]]
) -> list[T]:
    """What `ask(partition, among)` gives for each partition of the topic."""

    async def each(count: int, among: int | None) -> list[T]:
        return [await ask(index, among) for index in range(count)]

    return await counted(router, topic, deadline, each)


async def rows_by_partition(
    router: Router, topic: str, keys: Sequence[bytes], partition: int | None = None
) -> dict[int, list[int]]:
    """The numbers of the keys by the partition that they are looked up in: this one, or that which murmur2 gives."""
    if partition is not None:
        return {partition: list(range(len(keys)))}
    return _by_partition(keys, await partitions(router, topic))


def _by_partition(keys: Sequence[bytes], count: int) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, index in enumerate(map(home_for, keys, repeat(count))):
        rows.setdefault(index, []).append(row)
    return rows


def rows_of(rows: Mapping[int, list[int]], partitions: Iterable[int]) -> list[int]:
    """The numbers of the keys of some partitions."""
    return [row for index in partitions for row in rows[index]]


def newest_of(key: bytes, found: Sequence[Entry | None]) -> Entry | None:
    """The newest of a key's entries in all partitions."""
    return newest(found, home_for(key, len(found)))


def newest(found: Sequence[Entry | None], home: int) -> Entry | None:
    """The newest of a key's entries, of one partition each. `home`: the partition that murmur2 gives the key."""
    there = [each for each in found if each is not None]
    return max(there, key=lambda each: (each.timestamp, each.partition == home, each.partition), default=None)
