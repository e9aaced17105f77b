"""The assignor of share groups (KIP-932, "simple"): which member reads from which partitions. Several members may read
from one partition, since they share it record by record.

Every partition has at least one member, and every member at least one partition. Among topics with the same
subscribers, the members per partition differ by at most one, and so do the partitions per member, as far as members can
keep the partitions that they have.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from krappy.core.kafka.assignors import Assignment, Partition, Sizes, Wants


def simple(members: Mapping[str, Wants], sizes: Sizes) -> Assignment:
    names = sorted(members, key=lambda name: members[name].order)
    pools: dict[tuple[str, ...], list[Partition]] = {}  # of partitions, by who subscribes to them
    for topic in sorted(sizes):
        subscribers = tuple(name for name in names if topic in members[name].topics)
        if subscribers:
            pools.setdefault(subscribers, []).extend((topic, index) for index in range(sizes[topic]))
    assigned: dict[str, set[Partition]] = {name: set() for name in names}
    for subscribers, partitions in pools.items():
        if partitions:
            for name, given in _share_out(subscribers, members, partitions).items():
                assigned[name] |= given
    return {name: frozenset(given) for name, given in assigned.items()}


def _share_out(
    names: Sequence[str], members: Mapping[str, Wants], partitions: Sequence[Partition]
) -> dict[str, set[Partition]]:
    sharing = -(-len(names) // len(partitions))  # members of each partition
    least, more = divmod(sharing * len(partitions), len(names))  # each has `least` partitions, `more` of them one more
    counts = dict.fromkeys(partitions, 0)
    given: dict[str, set[Partition]] = {name: set() for name in names}
    for name in names:
        for partition in sorted(members[name].holds):
            if counts.get(partition, sharing) >= sharing:
                continue
            if len(given[name]) == least:
                if not more:
                    break
                more -= 1
            elif len(given[name]) > least:
                break
            given[name].add(partition)
            counts[partition] += 1
    heap = [(len(given[name]), order, name) for order, name in enumerate(names)]
    heapq.heapify(heap)
    for partition in partitions:
        looked = []
        while counts[partition] < sharing and heap:
            count, order, name = heapq.heappop(heap)
            if partition not in given[name]:
                given[name].add(partition)
                counts[partition] += 1
                count += 1
            looked.append((count, order, name))
        for each in looked:
            heapq.heappush(heap, each)
    return given
