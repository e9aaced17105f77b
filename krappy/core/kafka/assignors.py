"""Who gets which partition, decided by the broker (KIP-848's server-side assignors).

`uniform`: as many for each as can be, and everybody keeps what it has as far as that allows.
`range`: for each topic a run of neighbouring partitions, so that topics which are partitioned alike go together.

Both are functions of what the members subscribe to and hold now; the same input gives the same answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[bytes, int]  # topic id, index


class Wants(NamedTuple):
    """What one member subscribes to (topic ids) and holds now. `order`: where it stands among its like."""

    topics: frozenset[bytes]
    holds: frozenset[Partition]
    order: str


Sizes = Mapping[bytes, int]  # topic id -> its number of partitions
Assignment = dict[str, frozenset[Partition]]


def uniform(members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    """Counts differ by one at most where all subscribe alike; else nobody has two more than another who could take
    one of them directly."""
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
    free.sort(key=lambda partition: len(takers[partition[0]]))  # what few can take goes first
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
    """`uniform` where all subscribe to the same: everybody keeps its share, and what is over fills up the others.

    Nearly all groups are like this, and there may be 10,000 partitions to a heartbeat: it works on whole sets.
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
    takers: list[str] = []  # in turn, the one with least first
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
    """Each to the one who has least among those who may have it."""
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
            heapq.heapreplace(heap, (len(held[name]), rank, name))  # it got some of another topic meanwhile
        held[name].add(partition)
        owner[partition] = name
        heapq.heapreplace(heap, (count + 1, rank, name))


def _level(
    names: Sequence[str],
    takers: Mapping[bytes, tuple[str, ...]],
    held: dict[str, set[Partition]],
    owner: dict[Partition, str],
) -> None:
    """Moves partitions from who has most to who has least, while that has at least two fewer and may take one.

    One at a time, and always from the one who has most of all: so nobody gives more than it must, and is given others'
    in return. Every move lowers the sum of squares, so it ends.
    """
    ranks = {name: rank for rank, name in enumerate(names)}
    # By the id of the tuple of those who may take it, which topics share: what each has, and who has how many.
    stocks: dict[str, dict[int, list[Partition]]] = {}
    moved = True
    while moved:
        moved = False
        poorest: dict[int, list[tuple[int, int, str]]] = {}  # anew each time: who gave is poorer now
        richest = [(-len(held[name]), ranks[name], name) for name in names]
        heapq.heapify(richest)
        while richest:
            count, rank, rich = richest[0]
            if count != -len(held[rich]):
                heapq.heapreplace(richest, (-len(held[rich]), rank, rich))  # it was given some meanwhile
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
    """Who has least of the takers, as (how many, rank, name); who gave lately may be overlooked.

    `heap`: empty at first, and kept for the next time.
    """
    if not heap:
        heap += [(len(held[name]), ranks[name], name) for name in takers]
        heapq.heapify(heap)
    while heap[0][0] != len(held[heap[0][2]]):
        _, rank, name = heap[0]
        heapq.heapreplace(heap, (len(held[name]), rank, name))
    return heap[0]


def by_range(members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    """For each topic its partitions in order, cut into runs for its subscribers in order; the first get one more."""
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
