"""One share group (KIP-932): the state machine behind ShareGroupHeartbeat. It is that of a KIP-848 group, without its
steps: several members may read from one partition, so a member has its target at once, and gives up nothing first.

The group does not know which records a member has acquired: the partition's leader does (krappy/core/leases.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from krappy.core.kafka.assignors import Partition, Wants
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern import KnownTopic, ModernGroup, Topics
from krappy.core.kafka.modern_member import JOINING, LEAVING, NOTHING, Beat, Beaten, MemberStep, ModernMember
from krappy.core.kafka.simple_assignor import simple

ASSIGNOR = "simple"


class ShareGroup(ModernGroup):
    kind = "share"

    def beat(self, now: int, beat: Beat, topics: Topics) -> Beaten:
        check_share_beat(beat)
        if beat.epoch == LEAVING:
            return self._leave(now, beat)
        member = self._joining(beat) if beat.epoch == JOINING else self._known(beat)
        return self.go_on(now, member, beat, NOTHING, topics, self.rules.session_ms)

    def begin(self) -> None:
        """Begins the first epoch without a member: a group that was made to be moved is kept."""
        self._bump()

    def _known(self, beat: Beat) -> ModernMember:
        member = self.member(beat.member_id, None)
        if beat.epoch not in (member.epoch, member.previous_epoch):  # the answer with its new epoch may have been lost
            text = f"member {member.id:.100} is in epoch {member.epoch}, and says {beat.epoch}"
            raise Refused(Fault.FENCED_MEMBER_EPOCH, text)
        return member

    def _wanted(self, topics: Topics) -> dict[str, KnownTopic]:
        return {name: topic for name, topic in super()._wanted(topics).items() if topic.shared}

    def _assign(self, topics: Topics) -> None:
        self._subscribed, self._resumed = self._wanted(topics), False
        ids: dict[tuple[str, ...], frozenset[bytes]] = {}
        wants: dict[str, Wants] = {}
        for member in self.members.values():
            if member.topics not in ids:
                ids[member.topics] = frozenset(self._subscribed[name].id for name in self._names(member))
            holds = self.target.get(member.id, member.assigned)
            wants[member.id] = Wants(ids[member.topics], holds, member.id)
        self.target = simple(wants, {topic.id: topic.partitions for topic in self._subscribed.values()})
        self.target_epoch = self.epoch

    def _elect(self) -> str:
        return ASSIGNOR

    def _reconcile(self, now: int, member: ModernMember, owned: frozenset[Partition] | None) -> None:
        member.assigned, member.step = self.target.get(member.id, NOTHING), MemberStep.STABLE
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"


def share_beat(
    member_id: str,
    epoch: int,
    rack: str | None,
    topics: tuple[str, ...] | None,
    client_id: str,
    client_host: str,
) -> Beat:
    """A ShareGroupHeartbeat. With `topics` it counts as a full one, so the answer has the assignment, too."""
    whole = topics is not None
    return Beat(
        *(member_id, epoch, None, rack),
        rebalance_ms=0 if whole else -1,
        topics=topics,
        owned=NOTHING if whole else None,
        client_id=client_id,
        client_host=client_host,
    )


def check_share_beat(beat: Beat) -> None:
    """Checks a heartbeat's fields, whatever the group. Raises Refused."""
    problem = None
    if not beat.member_id:
        problem = "MemberId can't be empty"
    elif beat.rack == "":
        problem = "RackId is null or not empty"
    elif beat.epoch < LEAVING:
        problem = f"MemberEpoch is {beat.epoch}; the least is -1"
    elif beat.epoch == JOINING and not beat.topics:
        problem = "SubscribedTopicNames must be given with the first heartbeat"
    if problem is not None:
        raise Refused(Fault.INVALID_REQUEST, problem)


class ShareRules(NamedTuple):
    """How a share group reads partitions. `start`: where it begins in one: "earliest", "latest", or the ms before the
    present. `committed`: only events of committed transactions. `renews`: whether a lease may be renewed."""

    lock_ms: int = 30_000
    max_deliveries: int = 5
    max_locks: int = 2_000
    start: str | int = "latest"
    committed: bool = False
    renews: bool = True


class AckType(IntEnum):
    """Kafka's AcknowledgeType. GAP: there is no such record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Ack(NamedTuple):
    """An acknowledgement of the records `first` to `last`, both included."""

    first: int
    last: int
    kind: AckType


def read_acks(batches: Iterable[tuple[int, int, Sequence[int]]]) -> list[Ack]:
    """The acknowledgements of a partition: (first offset, last offset, one type for all, or one for each), ascending.
    Raises Refused, INVALID_REQUEST."""
    acks: list[Ack] = []
    end = -1
    for first, last, kinds in batches:
        if not 0 <= first <= last or first <= end:
            raise Refused(Fault.INVALID_REQUEST, "acknowledgement batches must ascend, and not overlap")
        if len(kinds) not in (1, last - first + 1):
            raise Refused(Fault.INVALID_REQUEST, "a batch needs one acknowledge type, or one for each offset")
        end = last
        if len(kinds) == 1:
            acks.append(Ack(first, last, _kind(kinds[0])))
            continue
        at = first
        for kind, same in groupby(kinds):
            count = sum(1 for _ in same)
            acks.append(Ack(at, at + count - 1, _kind(kind)))
            at += count
    return acks


def _kind(number: int) -> AckType:
    try:
        return AckType(number)
    except ValueError:
        raise Refused(Fault.INVALID_REQUEST, f"there is no acknowledge type {number}") from None
