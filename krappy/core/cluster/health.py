"""How whole the cluster's partitions are, by Kafka's definitions of its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from krappy.core.cluster.healing import LogTrouble
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.state import NOBODY


class PartitionHealth(NamedTuple):
    """`offline`: no broker that is there leads it. `under_replicated`: fewer replicas are in sync than there are.
    `under_min_isr`: fewer are in sync than min.insync.replicas, so acks=all is refused."""

    offline: bool
    under_replicated: bool
    under_min_isr: bool


def health(image: Image, partition: PartitionImage) -> PartitionHealth:
    state = partition.state
    in_sync = len(state.isr)
    return PartitionHealth(
        state.leader == NOBODY or state.leader not in image.brokers,
        in_sync < len(partition.replicas),
        in_sync < state.min_isr,
    )


def healing(image: Image, topic: str, index: int, partition: PartitionImage, broker: int) -> str | None:
    """What ails a replica, or how it is made whole, in the words of its broker's log; None: nothing that is known."""
    if broker in partition.state.emptied:
        return "begins anew"
    if trouble := image.trouble(broker, topic, index):
        return "ahead of its leader" if trouble == LogTrouble.AHEAD else f"spoiled ({trouble})"
    found = image.brokers.get(broker)
    return "old folder" if found is not None and found.old_folder and broker not in partition.state.isr else None


class HealthCounts(NamedTuple):
    """How many partitions there are, and how many of them are not whole."""

    partitions: int = 0
    offline: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0

    def plus(self, other: HealthCounts) -> HealthCounts:
        return HealthCounts(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


def count_health(image: Image, topic: TopicImage, *, led_by: int | None = None) -> HealthCounts:
    """The counts of a topic's partitions; with `led_by` only of those that this broker leads."""
    return _count(health(image, each) for each in topic.partitions if led_by in (None, each.state.leader))


def _count(found: Iterable[PartitionHealth]) -> HealthCounts:
    partitions = offline = under_replicated = under_min_isr = 0
    for each in found:
        partitions += 1
        offline += each.offline
        under_replicated += each.under_replicated
        under_min_isr += each.under_min_isr
    return HealthCounts(partitions, offline, under_replicated, under_min_isr)
