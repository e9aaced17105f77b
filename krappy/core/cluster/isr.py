"""Changes of the ISR by the leader, and by a broker that is about to stop: what they write."""

from __future__ import annotations

from krappy.core.cluster import places
from krappy.core.cluster.image import PartitionImage
from krappy.core.cluster.replica_set import Proposal
from krappy.core.cluster.state import normalise, without, write_state
from krappy.core.cluster.tree import Check, Operation, Put


def change_isr(topic: str, index: int, partition: PartitionImage, proposal: Proposal) -> list[Operation]:
    """What makes the proposal the ISR of this partition, whose state the leader has read last as `partition` has it.

    A broker is added only if it is still registered as it was when it fetched (KIP-903): a broker that was started
    again may have lost its disk.
    """
    before = partition.state
    after = normalise(without(before, proposal.gone)._replace(isr=proposal.isr), partition.replicas, before.min_isr)
    checks: list[Operation] = [Check(places.epoch(each), epoch) for each, epoch in proposal.added.items()]
    return [*checks, Put(places.state(topic, index), write_state(after), partition.version)]


def leave_isr(topic: str, index: int, partition: PartitionImage, broker: int) -> list[Operation]:
    """What takes a broker out of the ISR that is about to stop, so that nobody waits for it; nothing if it leads, or is
    the only one. If the others are too few to acknowledge events, it stays a candidate (in the ELR)."""
    before = partition.state
    if broker == before.leader or broker not in before.isr or len(before.isr) == 1:
        return []
    after = normalise(without(before, [broker]), partition.replicas, before.min_isr)
    return [Put(places.state(topic, index), write_state(after), partition.version)]
