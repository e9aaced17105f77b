"""The leader's change of the ISR: what it writes."""

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
