"""Members of a KIP-848 group that speak the classic protocol: JoinGroup, SyncGroup and Heartbeat, answered at once.

Such a member needs three requests for what a KIP-848 member does in one heartbeat (KIP-848, "Online Migration"):

- It *joins* with the partitions that it owns (KIP-429; an eager one owns none then), and makes one step towards its
  target. Its generation is its own epoch. No member leads: the broker assigns.
- It *syncs*, and gets the partitions that it may have now.
- Its *heartbeats* tell it to join again when there is another step to make: the group has a newer epoch; the member has
  to give up partitions; or all partitions that it waited for are free. They do so only then: no join is in vain.

A member that is told to join, or has joined, must make the next of these requests within its rebalance timeout.
"""

from __future__ import annotations

from krappy.core.kafka.assignors import Partition
from krappy.core.kafka.classic_member import Join, Joined, SyncAnswer
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern import ModernGroup, Topics
from krappy.core.kafka.modern_member import AWAY, JOINING, NOTHING, Beat, ClassicSide, MemberStep, ModernMember
from krappy.core.kafka.subscription import NamedPartition, Subscription, encode_assignment, subscription

CONSUMER = "consumer"  # the protocol type that can be translated


def join(group: ModernGroup, now: int, ask: Join, topics: Topics) -> Joined:
    """JoinGroup, answered at once. Raises Refused."""
    wants = check_join(group, ask)
    if ask.member_id:
        member = _known(group, ask)
    elif ask.instance_id is not None:
        member = _static(group, ask.instance_id, ask.fresh_id)
    elif ask.id_first:
        return Joined(Fault.MEMBER_ID_REQUIRED, ask.fresh_id)
    else:
        member = group.add(ask.fresh_id, None)
    classic = ClassicSide(ask.session_ms, ask.protocols)
    if member.classic != classic:
        member.classic = classic
        group.dirty.add(member.id)
    beat = Beat(
        *(member.id, JOINING, ask.instance_id, wants.rack, ask.rebalance_ms),
        topics=tuple(sorted(wants.topics)),
        client_id=ask.client_id,
        client_host=ask.client_host,
    )
    group.go_on(now, member, beat, _ids(wants.owned, topics), topics, ask.session_ms)
    member.revoke_by = group.wake_at(now + member.rebalance_ms)  # it must sync by then
    return Joined(Fault.NONE, member.id, member.epoch, CONSUMER, _protocol(member))


def check_join(group: ModernGroup, ask: Join) -> Subscription:
    """The joining member's subscription. Raises Refused: INCONSISTENT_GROUP_PROTOCOL if it does not fit in."""
    offered = {name for name, _ in ask.protocols}
    wants = subscription(ask.protocols[0][1]) if ask.protocols else None
    for member in group.members.values():
        if member.classic is not None and member.id != ask.member_id:
            offered &= {name for name, _ in member.classic.protocols}
    if ask.protocol_type != CONSUMER or not offered or wants is None:
        raise Refused(Fault.INCONSISTENT_GROUP_PROTOCOL, "the group's members are consumers of KIP-848's protocol")
    return wants


def _known(group: ModernGroup, ask: Join) -> ModernMember:
    if ask.instance_id is None and ask.member_id not in group.members:
        return group.add(ask.member_id, None)  # it was told this id, maybe before the group moved
    member = group.member(ask.member_id, ask.instance_id)
    if member.instance_id != ask.instance_id:
        raise Refused(Fault.UNKNOWN_MEMBER_ID)
    return member


def _static(group: ModernGroup, instance_id: str, fresh_id: str) -> ModernMember:
    """As in a classic group, a member with a known instance id replaces the old one at once. The old one is fenced."""
    there = group.static(instance_id)
    return group.add(fresh_id, instance_id) if there is None else group.replace(there, fresh_id)


def _protocol(member: ModernMember) -> str:
    assert member.classic is not None
    return member.classic.protocols[0][0]


def _ids(named: frozenset[NamedPartition], topics: Topics) -> frozenset[Partition]:
    return frozenset((topics[topic].id, index) for topic, index in named if topic in topics)


def _names(partitions: frozenset[Partition], topics: Topics) -> list[NamedPartition]:
    wanted = {topic for topic, _ in partitions}
    names = {topic.id: name for name, topic in topics.items() if topic.id in wanted}
    return [(names[topic], index) for topic, index in partitions if topic in names]


def assigned_to(member: ModernMember, topics: Topics) -> bytes:
    """The member's assignment in the classic consumers' format, in the version of the member's own subscription (at
    most 3)."""
    assert member.classic is not None
    version = int.from_bytes(member.classic.protocols[0][1][:2], "big")
    return encode_assignment(_names(member.assigned, topics), min(version, 3))


def speaks_classic(group: ModernGroup, member_id: str) -> bool:
    member = group.members.get(member_id)
    return member is not None and member.classic is not None


def _classic(group: ModernGroup, member_id: str, instance_id: str | None, generation: int) -> ModernMember:
    """Raises Refused."""
    member = group.member(member_id, instance_id)
    if member.classic is None or member.epoch == AWAY:
        raise Refused(Fault.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise Refused(Fault.ILLEGAL_GENERATION)
    return member


def sync(
    group: ModernGroup,
    now: int,
    who: tuple[str, str | None, int],
    protocol_type: str | None,
    protocol: str | None,
    topics: Topics,
) -> SyncAnswer:
    """SyncGroup, answered at once. `who`: member id, instance id, generation. Raises Refused."""
    member = _classic(group, *who)
    given = (protocol_type or CONSUMER, protocol or _protocol(member))
    if given != (CONSUMER, _protocol(member)):
        raise Refused(Fault.INCONSISTENT_GROUP_PROTOCOL)
    assert member.classic is not None
    member.expires = group.wake_at(now + member.classic.session_ms)
    if group.epoch > member.epoch and member.step is not MemberStep.UNREVOKED:
        member.revoke_by = group.wake_at(now + member.rebalance_ms)
        raise Refused(Fault.REBALANCE_IN_PROGRESS)
    member.revoke_by = None
    return SyncAnswer(Fault.NONE, CONSUMER, _protocol(member), assigned_to(member, topics))


def heartbeat(
    group: ModernGroup, now: int, member_id: str, instance_id: str | None, generation: int, topics: Topics
) -> Fault:
    """REBALANCE_IN_PROGRESS tells the member to join again. Raises Refused."""
    member = _classic(group, member_id, instance_id, generation)
    assert member.classic is not None
    member.expires = group.wake_at(now + member.classic.session_ms)
    group.look(topics)
    if not _has_to_join(group, member):
        return Fault.NONE
    if member.revoke_by is None:
        member.revoke_by = group.wake_at(now + member.rebalance_ms)
    return Fault.REBALANCE_IN_PROGRESS


def _has_to_join(group: ModernGroup, member: ModernMember) -> bool:
    if member.epoch < group.epoch or member.step is MemberStep.UNREVOKED:
        return True
    missing = group.target.get(member.id, NOTHING) - member.assigned
    return member.step is MemberStep.UNRELEASED and all(group.is_free(partition, member.id) for partition in missing)
