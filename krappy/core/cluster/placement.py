"""Which brokers get the replicas of new partitions, and who of them is to lead.

As in Kafka, replicas of a partition are spread over racks first, and leaders evenly over brokers. What brokers have
already counts: one with fewer partitions comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from krappy.core.cluster.image import Image
from krappy.errors import InvalidReplicationFactor

MOST_BY_DEFAULT = 3
DEFAULT = -1  # as a replication factor
Placement = Sequence[tuple[int, ...]]  # the brokers of each partition; the first is to lead it


def place(image: Image, partitions: int, factor: int) -> list[tuple[int, ...]]:
    """Where new partitions go. `factor`: how many replicas each gets; DEFAULT: 3, or as many as there are brokers.
    Raises InvalidReplicationFactor."""
    factor = min(MOST_BY_DEFAULT, max(1, len(image.brokers))) if factor == DEFAULT else factor
    racks = {id: each.rack for id, each in image.brokers.items() if not each.draining}
    if not 1 <= factor <= len(racks):
        raise InvalidReplicationFactor(
            f"a replication factor of {factor}, where {len(racks)} brokers are registered that can take replicas"
        )
    held, led = Counter[int](), Counter[int]()
    for topic in image.topics.values():
        for each in topic.partitions:
            held.update(each.replicas)
            led[each.replicas[0]] += 1
    return [_place_one(racks, factor, held, led) for _ in range(partitions)]


def _place_one(racks: Mapping[int, str | None], factor: int, held: Counter[int], led: Counter[int]) -> tuple[int, ...]:
    first = min(racks, key=lambda id: (led[id], held[id], id))
    chosen = [first]
    while len(chosen) < factor:
        used = {racks[id] for id in chosen if racks[id] is not None}
        # After the leader the next ids come first, so that its partitions' followers are not all one broker.
        chosen.append(
            min(
                (id for id in racks if id not in chosen),
                key=lambda id: (racks[id] in used, held[id], id <= first, id),
            )
        )
    held.update(chosen)
    led[first] += 1
    return tuple(chosen)
