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
    takers: dict[bytes, list[str]] = {
        topic: [name for name in names if topic in members[name].topics] for topic in sorted(sizes)
    }
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


def _hand_out(
    free: Sequence[Partition],
    takers: Mapping[bytes, Sequence[str]],
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
    takers: Mapping[bytes, Sequence[str]],
    held: dict[str, set[Partition]],
    owner: dict[Partition, str],
) -> None:
    """Moves partitions from who has most to who has least, while that has at least two fewer and may take one.

    Every move lowers the sum of squares, so it ends.
    """
    ranks = {name: rank for rank, name in enumerate(names)}
    moved = True
    while moved:
        moved = False
        heaps: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}  # anew each time: who gave is poorer now
        for name in sorted(names, key=lambda each: (-len(held[each]), ranks[each])):
            topics = sorted({topic for topic, _ in held[name]})
            stock = {topic: sorted(at for at in held[name] if at[0] == topic) for topic in topics}
            for topic in topics:
                group = tuple(takers[topic])
                heap = heaps.get(group)
                if heap is None:
                    heap = heaps[group] = [(len(held[each]), ranks[each], each) for each in group]
                    heapq.heapify(heap)
                while stock[topic]:
                    count, rank, poorest = heap[0]
                    if count != len(held[poorest]):
                        heapq.heapreplace(heap, (len(held[poorest]), rank, poorest))
                        continue
                    if count + 2 > len(held[name]):
                        break
                    partition = stock[topic].pop()
                    held[name].discard(partition)
                    held[poorest].add(partition)
                    owner[partition] = poorest
                    heapq.heapreplace(heap, (count + 1, rank, poorest))
                    moved = True


def by_range(members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    """For each topic its partitions in order, cut into runs for its subscribers in order; the first get one more."""
    names = sorted(members, key=lambda name: members[name].order)
    held: dict[str, set[Partition]] = {name: set() for name in names}
    for topic in sorted(sizes):
        takers = [name for name in names if topic in members[name].topics]
        if not takers:
            continue
        share, more = divmod(sizes[topic], len(takers))
        at = 0
        for rank, name in enumerate(takers):
            end = at + share + (rank < more)
            held[name].update((topic, index) for index in range(at, end))
            at = end
    return {name: frozenset(held[name]) for name in names}


ASSIGNORS: dict[str, Callable[[Mapping[str, Wants], Sizes], Assignment]] = {"uniform": uniform, "range": by_range}
DEFAULT_ASSIGNOR = "uniform"
