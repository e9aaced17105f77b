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
    """Where new partitions go. `factor`: how many replicas each gets; DEFAULT: 3, or as many as there are brokers that
    do not stop just now. Raises InvalidReplicationFactor."""
    racks = _racks(image)
    factor = min(MOST_BY_DEFAULT, max(1, len(racks))) if factor == DEFAULT else factor
    if not 1 <= factor <= len(racks):
        raise InvalidReplicationFactor(
            f"a replication factor of {factor}, where {len(racks)} brokers are registered that can take replicas"
        )
    held, led = _load(image)
    found: list[tuple[int, ...]] = []
    for _ in range(partitions):
        first = min(racks, key=lambda id: (led[id], held[id], id))
        chosen = _completed(racks, (first,), factor, held)
        held.update(chosen)
        led[first] += 1
        found.append(chosen)
    return found


def takes_replicas(image: Image) -> bool:
    """Whether there is a broker that can take replicas."""
    return bool(_racks(image))


def grown(image: Image, replicas: Sequence[tuple[int, ...]], factor: int) -> dict[int, tuple[int, ...]]:
    """By index, the partitions that have fewer than `factor` replicas and can have more, each with the replicas that it
    has and new ones behind them. Where a replica's broker is away nothing is added: it may come back."""
    racks, (held, _) = _racks(image), _load(image)
    found: dict[int, tuple[int, ...]] = {}
    for index, each in enumerate(replicas):
        if len(each) < min(factor, len(racks)) and all(id in racks for id in each):
            after = _completed(racks, each, min(factor, len(racks)), held)
            held.update(after[len(each) :])
            found[index] = after
    return found


def _racks(image: Image) -> dict[int, str | None]:
    """The brokers that can take replicas, and their racks."""
    return {id: each.rack for id, each in image.brokers.items() if not each.draining}


def _load(image: Image) -> tuple[Counter[int], Counter[int]]:
    """How many replicas each broker has, and how many partitions it is preferred to lead."""
    held, led = Counter[int](), Counter[int]()
    for topic in image.topics.values():
        for each in topic.partitions:
            held.update(each.replicas)
            led[each.replicas[0]] += 1
    return held, led


def _completed(
    racks: Mapping[int, str | None], replicas: tuple[int, ...], factor: int, held: Counter[int]
) -> tuple[int, ...]:
    """These replicas, and further ones."""
    chosen = list(replicas)
    while len(chosen) < factor:
        used = {racks[id] for id in chosen if racks[id] is not None}
        # The ids above the leader's come first. Else all partitions of a leader would have the same follower.
        chosen.append(
            min(
                (id for id in racks if id not in chosen),
                key=lambda id: (racks[id] in used, held[id], id <= chosen[0], id),
            )
        )
    return tuple(chosen)
