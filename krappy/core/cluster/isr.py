"""Changes of the ISR by the leader, and by a broker that is about to stop: what they write."""

from __future__ import annotations

from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.replica_set import Proposal
from krappy.core.cluster.state import normalise, without
from krappy.core.cluster.tree import Check, Operation


def change_isr(topic: TopicImage, index: int, proposal: Proposal) -> list[Operation]:
    """The operations that make the proposal the ISR of this partition. The leader's last read of the partition's state
    must be what the image has.

    A broker is added only if it is still registered as it was when it fetched (KIP-903): a broker that was started
    again may have lost its disk.
    """
    partition = topic.partitions[index]
    before = partition.state
    after = normalise(without(before, proposal.gone)._replace(isr=proposal.isr), partition.replicas, before.min_isr)
    checks: list[Operation] = [Check(paths.epoch(each), epoch) for each, epoch in proposal.added.items()]
    return [*checks, *topic.put_state(index, after)]


def addable(image: Image, partition: PartitionImage) -> dict[int, int]:
    """The broker epochs of those who may come into the ISR: replicas that are registered, and not about to stop. A
    broker that a reassignment took away is none of them: it may still fetch, but deletes its log."""
    there = {id: image.brokers[id] for id in partition.replicas if id in image.brokers}
    return {id: each.epoch for id, each in there.items() if not each.draining}


def leave_isr(topic: TopicImage, index: int, broker: int) -> list[Operation]:
    """The operations that take a broker that is about to stop out of the ISR, so that nobody waits for it; none if it
    leads, or is the only one. If the others are too few to acknowledge events, it stays a candidate (in the ELR)."""
    partition = topic.partitions[index]
    before = partition.state
    if broker == before.leader or broker not in before.isr or len(before.isr) == 1:
        return []
    after = normalise(without(before, [broker]), partition.replicas, before.min_isr)
    return topic.put_state(index, after)
