"""KIP-848's server-side assignors: which member gets which partition.

`uniform`: counts as equal as possible; within that, members keep the partitions that they have. `range`: a run of
neighbouring partitions of each topic, so that equal partitions of topics go to the same member.

Both depend only on what the members subscribe to and hold now; the same input gives the same answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[bytes, int]  # topic id, index


class Wants(NamedTuple):
    """What one member subscribes to (topic ids) and holds now. `order`: members are sorted by it."""

    topics: frozenset[bytes]
    holds: frozenset[Partition]
    order: str


Sizes = Mapping[bytes, int]  # topic id -> its number of partitions
Assignment = dict[str, frozenset[Partition]]


def uniform(members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    """If all members subscribe to the same topics, their counts differ by at most one. Else no member has two or more
    partitions more than another that could take one of them."""
    names = sorted(members, key=lambda name: members[name].order)
    there = frozenset(sizes)
    wanted = {members[name].topics & there for name in names}
    if len(wanted) == 1:
        return _alike(names, members, {topic: sizes[topic] for topic in sorted(wanted.pop())})
    takers = _takers(names, members, sizes)
    held: dict[str, set[Partition]] = {name: set() for name in names}
    owner: dict[Partition, str] = {}
    for name in names:
        for partition in sorted(members[name].holds):
            topic, index = partition
            if topic in members[name].topics and index < sizes.get(topic, 0) and partition not in owner:
                owner[partition] = name
                held[name].add(partition)
    free = [(topic, at) for topic in takers if takers[topic] for at in range(sizes[topic]) if (topic, at) not in owner]
    free.sort(key=lambda partition: len(takers[partition[0]]))  # topics with few subscribers first
    _hand_out(free, takers, held, owner)
    _level(names, takers, held, owner)
    return {name: frozenset(held[name]) for name in names}


def _takers(names: Sequence[str], members: Mapping[str, Wants], sizes: Sizes) -> dict[bytes, tuple[str, ...]]:
    """Who subscribes to each topic. Topics with the same subscribers share one tuple."""
    alike: dict[tuple[str, ...], tuple[str, ...]] = {}
    found: dict[bytes, list[str]] = {topic: [] for topic in sorted(sizes)}
    for name in names:
        for topic in members[name].topics & sizes.keys():
            found[topic].append(name)
    tuples = {topic: tuple(takers) for topic, takers in found.items()}
    return {topic: alike.setdefault(takers, takers) for topic, takers in tuples.items()}


def _alike(names: Sequence[str], members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    """`uniform` if all subscribe to the same topics: each member keeps up to its share, the rest goes to the others.

    Nearly all groups are like this, and a heartbeat may concern 10,000 partitions: so it works on whole sets.
    """
    free = {(topic, index) for topic, size in sizes.items() for index in range(size)}
    share, more = divmod(len(free), len(names))
    held: dict[str, frozenset[Partition]] = {}
    for name in names:
        held[name] = members[name].holds & free
        free -= held[name]
    rich = [name for name in names if len(held[name]) > share]
    poor = [name for name in names if len(held[name]) <= share]
    larger = {*[*reversed(rich), *poor][:more]}
    for name in rich:
        quota = share + (name in larger)
        if len(held[name]) > quota:
            kept = sorted(held[name])[:quota]
            free |= held[name].difference(kept)
            held[name] = frozenset(kept)
    if not free:
        return held
    hungry = [name for name in names if len(held[name]) < share + (name in larger)]
    least = min(len(held[name]) for name in hungry)
    takers: list[str] = []  # in turn, the member with the fewest first
    for count in range(least, share + 1):
        takers += [name for name in hungry if len(held[name]) <= count < share + (name in larger)]
    given: dict[str, list[Partition]] = {name: [] for name in hungry}
    for partition, name in zip(sorted(free), takers, strict=True):
        given[name].append(partition)
    return held | {name: held[name].union(some) for name, some in given.items()}


def _hand_out(
    free: Sequence[Partition],
    takers: Mapping[bytes, tuple[str, ...]],
    held: dict[str, set[Partition]],
    owner: dict[Partition, str],
) -> None:
    """Gives each free partition to the subscriber with the fewest."""
    heaps: dict[bytes, list[tuple[int, int, str]]] = {}
    for partition in free:
        topic = partition[0]
        heap = heaps.get(topic)
        if heap is None:
            heap = heaps[topic] = [(len(held[name]), rank, name) for rank, name in enumerate(takers[topic])]
            heapq.heapify(heap)
        while True:
            count, rank, name = heap[0]
            if count == len(held[name]):
                break
            heapq.heapreplace(heap, (len(held[name]), rank, name))  # it got partitions of another topic meanwhile
        held[name].add(partition)
        owner[partition] = name
        heapq.heapreplace(heap, (count + 1, rank, name))


def _level(
    names: Sequence[str],
    takers: Mapping[bytes, tuple[str, ...]],
    held: dict[str, set[Partition]],
    owner: dict[Partition, str],
) -> None:
    """Moves partitions from the member with the most to the one with the fewest, while that has at least two fewer and
    may take one.

    It moves one at a time, always from the member with the most of all: so nobody gives up partitions only to get
    others in return. Every move lowers the sum of squares, so it ends.
    """
    ranks = {name: rank for rank, name in enumerate(names)}
    # By member, then by the id of the tuple of subscribers (topics with the same ones share it): its partitions.
    stocks: dict[str, dict[int, list[Partition]]] = {}
    moved = True
    while moved:
        moved = False
        poorest: dict[int, list[tuple[int, int, str]]] = {}  # made anew each time: givers have fewer now
        richest = [(-len(held[name]), ranks[name], name) for name in names]
        heapq.heapify(richest)
        while richest:
            count, rank, rich = richest[0]
            if count != -len(held[rich]):
                heapq.heapreplace(richest, (-len(held[rich]), rank, rich))  # it got partitions meanwhile
                continue
            stock = stocks.get(rich)
            if stock is None:
                stock = stocks[rich] = {}
                for partition in sorted(held[rich]):
                    stock.setdefault(id(takers[partition[0]]), []).append(partition)
            least: tuple[int, int, str] | None = None
            for shared, mine in stock.items():
                if mine:
                    found = _least(poorest.setdefault(shared, []), takers[mine[0][0]], held, ranks)
                    if least is None or found < least:
                        least, chosen = found, shared
            if least is None or least[0] + 2 > len(held[rich]):
                heapq.heappop(richest)
                continue
            poor = least[2]
            partition = stock[chosen].pop()
            held[rich].discard(partition)
            held[poor].add(partition)
            owner[partition] = poor
            if poor in stocks:
                stocks[poor].setdefault(chosen, []).append(partition)
            moved = True


def _least(
    heap: list[tuple[int, int, str]],
    takers: tuple[str, ...],
    held: Mapping[str, set[Partition]],
    ranks: Mapping[str, int],
) -> tuple[int, int, str]:
    """The member with the fewest partitions of the takers, as (count, rank, name). One that gave partitions since the
    heap was made may be missed. `heap`: empty at first; pass the same one again.
    """
    if not heap:
        heap += [(len(held[name]), ranks[name], name) for name in takers]
        heapq.heapify(heap)
    while heap[0][0] != len(held[heap[0][2]]):
        _, rank, name = heap[0]
        heapq.heapreplace(heap, (len(held[name]), rank, name))
    return heap[0]


def by_range(members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    """For each topic, cuts its partitions in order into runs for its subscribers in order; the first ones get one
    more."""
    names = sorted(members, key=lambda name: members[name].order)
    held: dict[str, set[Partition]] = {name: set() for name in names}
    for topic, takers in _takers(names, members, sizes).items():
        if not takers:
            continue
        share, more = divmod(sizes[topic], len(takers))
        partitions = [(topic, index) for index in range(sizes[topic])]
        at = 0
        for rank, name in enumerate(takers[: sizes[topic]]):
            end = at + share + (rank < more)
            held[name].update(partitions[at:end])
            at = end
    return {name: frozenset(held[name]) for name in names}


ASSIGNORS: dict[str, Callable[[Mapping[str, Wants], Sizes], Assignment]] = {"uniform": uniform, "range": by_range}
DEFAULT_ASSIGNOR = "uniform"
