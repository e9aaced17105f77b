"""What a broker is for a partition."""

from __future__ import annotations

from enum import StrEnum

from krappy.core.cluster.state import PartitionState


class Role(StrEnum):
    OFFLINE = "offline"  # it gives and takes nothing
    FOLLOWER = "follower"
    LEADER = "leader"


def role(state: PartitionState, broker: int, broker_epoch: int) -> Role:
    """A broker that was started again is not who was elected before: it does not go on in its old epoch."""
    if state.leader != broker:
        return Role.FOLLOWER
    return Role.LEADER if state.leader_inc == broker_epoch else Role.OFFLINE
