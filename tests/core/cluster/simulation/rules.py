"""Which rules a simulated cluster keeps, and the exception that tells that one was broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from krappy.core.cluster.healing import Step, lead_anew, next_step
from krappy.core.cluster.image import Image, PartitionImage, TopicImage
from krappy.core.cluster.isr import addable
from krappy.core.cluster.presence import Presence, ReadLease
from krappy.core.cluster.replica_set import ReplicaSet
from krappy.core.cluster.roles import Role, role
from krappy.core.cluster.state import PartitionState
from krappy.core.cluster.tree import Operation
from krappy.core.epochs import Epochs


class Violation(Exception):
    """Something happened that must not happen."""


@dataclass
class Rules:
    """The parts of the real code, and the rules that a simulated broker keeps beside them. A mutant replaces one of
    them."""

    replica_set: type[ReplicaSet] = ReplicaSet
    presence: type[Presence] = Presence
    lease: type[ReadLease] = ReadLease
    epochs: type[Epochs] = Epochs
    role: Callable[[PartitionState, int, int], Role] = role
    addable: Callable[[Image, PartitionImage], dict[int, int]] = addable
    next_step: Callable[..., Step | None] = next_step
    lead_anew: Callable[[TopicImage, int, int], list[Operation]] = lead_anew
    excludes: bool = True  # a broker whose disk lost events takes itself out of the candidates
    bumps_first: bool = True  # before that it raises its broker epoch
    asks_when_synced: bool = True  # a follower asks for more only when what it has is on its disk
    suspects: bool = True  # whatever has changed, as the broker was told, is not trusted until it is read again
    forgets_empty_epochs: bool = True  # a follower forgets epochs in which it led and wrote nothing
    waits_for_end: bool = True  # no strong read before the leader knows all that earlier leaders acknowledged
    keeps_until_certain: bool = True  # a broker deletes its log when it is no replica any more, and not when it is told
    copies_when_whole: bool = True  # a replica that is out of sync, and known not to be whole, asks for nothing
    empties_when_written: bool = True  # a replica is emptied once it is written that it is no candidate
    claims: bool = True  # a broker that finds older data in ZooKeeper takes all of its log for committed
    compares: bool = True  # a follower compares its last event with its leader's
    leads_anew: bool = True  # whoever opens its log anew leads in no epoch in which it has led
