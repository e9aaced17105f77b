"""A member of a KIP-848 group, its heartbeats, and the steps in which it reaches its target assignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from krappy.core.kafka.assignors import Partition
from krappy.core.kafka.classic_member import Protocols
from krappy.core.kafka.name_regex import TopicRegex, topic_regex

JOINING, LEAVING, AWAY = 0, -1, -2  # special epochs: joins; leaves; leaves for a while (static members)


Sees = Callable[[str], bool]  # whether a topic may be told to a member; the same object for the same principal


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat. None, or -1 for `rebalance_ms`: unchanged. `sees` None: the member sees all topics."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None
    client_id: str = ""
    client_host: str = ""
    sees: Sees | None = None

    @property
    def full(self) -> bool:
        """Whether it has all fields, as after a lost answer; then the answer has the assignment too."""
        return (
            self.rebalance_ms != -1 and (self.topics is not None or self.regex is not None) and (self.owned is not None)
        )


class Beaten(NamedTuple):
    """The answer to a heartbeat. `assignment` None: unchanged."""

    member_id: str
    epoch: int
    assignment: frozenset[Partition] | None = None


class MemberStep(StrEnum):
    """A member's progress to the target, by KIP-848's names."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # it must give up partitions first
    UNRELEASED = "unreleased"  # another member must give up partitions first


NOTHING: frozenset[Partition] = frozenset()


class ClassicSide(NamedTuple):
    """What is known only of a member that speaks the classic protocol: see `krappy.core.kafka.mixed`."""

    session_ms: int
    protocols: Protocols  # its favourite first

    @property
    def size(self) -> int:
        """Bytes of its protocols."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


@dataclass(slots=True, eq=False)
class ModernMember:
    id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = 0
    topics: tuple[str, ...] = ()
    regex: TopicRegex | None = None
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    step: MemberStep = MemberStep.STABLE
    assigned: frozenset[Partition] = NOTHING
    revoking: frozenset[Partition] = NOTHING  # to be given up, and not given up yet
    expires: int | None = field(default=None)  # when its session ends
    revoke_by: int | None = field(default=None)  # when it must have given up partitions, joined or synced
    classic: ClassicSide | None = field(default=None)  # None: it speaks KIP-848's protocol
    sees: Sees | None = field(default=None)  # the topics that its regex may match; each heartbeat tells, so not stored

    def dump(self) -> list[Any]:
        """Plain values that `load` takes."""
        who = [self.id, self.instance_id, self.rack, self.client_id, self.client_host, self.rebalance_ms]
        wants = [list(self.topics), self.pattern, self.assignor]
        has = [sorted(self.assigned), sorted(self.revoking)]
        state: list[Any] = [*who, *wants, self.epoch, self.previous_epoch, str(self.step), *has]
        if self.classic is not None:
            state += [self.classic.session_ms, [list(each) for each in self.classic.protocols]]
        return state

    @property
    def pattern(self) -> str | None:
        """Its regular expression as a string."""
        return None if self.regex is None else self.regex.pattern

    @classmethod
    def load(cls, state: Sequence[Any]) -> ModernMember:
        """Raises Refused for a regular expression that can't be used any more; ValueError, TypeError."""
        id, instance_id, rack, client_id, client_host, rebalance_ms, topics, regex, assignor = state[:9]
        epoch, previous, step, assigned, revoking = state[9:14]
        classic = None
        if len(state) > 14:
            session_ms, protocols = state[14:]
            classic = ClassicSide(session_ms, tuple((name, bytes(metadata)) for name, metadata in protocols))
        pattern = topic_regex(regex) if regex else None
        if pattern is not None and pattern.owner is None:
            pattern.owner = ""
        return cls(
            *(id, instance_id, rack, client_id, client_host, rebalance_ms),
            *(tuple(topics), pattern, assignor, epoch, previous, MemberStep(step)),
            assigned=frozenset((bytes(topic), index) for topic, index in assigned),
            revoking=frozenset((bytes(topic), index) for topic, index in revoking),
            classic=classic,
        )


def reconcile(
    member: ModernMember,
    target: frozenset[Partition],
    target_epoch: int,
    owned: frozenset[Partition] | None,
    taken: Callable[[Partition], bool],
) -> None:
    """One step of `member` towards `target` (KIP-848, "Rebalance process"): first it gives up partitions, then it gets
    the missing ones.

    `owned`: the partitions that the member says it still has; None: unchanged. `taken`: whether another member holds a
    partition.
    """

    def still_owns(partitions: frozenset[Partition]) -> bool:
        return bool(partitions) and (owned is None or not owned.isdisjoint(partitions))

    if member.step is MemberStep.STABLE and member.epoch == target_epoch:
        return
    if member.step is MemberStep.UNREVOKED and still_owns(member.revoking):
        return
    kept = member.assigned & target
    surplus = member.assigned - target
    missing = target - kept
    free = frozenset(partition for partition in missing if not taken(partition))
    if still_owns(surplus):
        member.step, member.assigned, member.revoking = MemberStep.UNREVOKED, kept, surplus
        return
    member.assigned, member.revoking = kept | free, NOTHING
    member.step = MemberStep.STABLE if free == missing else MemberStep.UNRELEASED
    if member.epoch != target_epoch:
        member.previous_epoch, member.epoch = member.epoch, target_epoch
