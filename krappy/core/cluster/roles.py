"""The role of a broker for a partition."""

from __future__ import annotations

from enum import StrEnum

from krappy.core.cluster.state import PartitionState


class Role(StrEnum):
    OFFLINE = "offline"  # it serves neither reads nor writes
    FOLLOWER = "follower"
    LEADER = "leader"


def role(state: PartitionState, broker: int, broker_epoch: int) -> Role:
    """The broker's role. A broker that was elected in an earlier broker epoch is OFFLINE: after a restart it does not
    go on in its old epoch."""
    if state.leader != broker:
        return Role.FOLLOWER
    return Role.LEADER if state.leader_inc == broker_epoch else Role.OFFLINE
