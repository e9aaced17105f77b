"""Moves a group between the classic protocol and KIP-848's while its members go on (KIP-848, "Online Migration").

*Up*, when the first KIP-848 member joins a classic group: every member keeps its partitions, and the generation becomes
its epoch; classic members go on as `mixed.py` says. *Down*, when the last KIP-848 member is gone: the classic members
join again, as after any member's leaving. A static member that is replaced by one of the other protocol causes no
rebalance. A policy can forbid either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import ClassicMember, GroupState, Join, Rules, elect
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.mixed import CONSUMER, assigned_to, check_join
from krappy.core.kafka.modern import ModernGroup, ModernRules, Topics
from krappy.core.kafka.modern_member import AWAY, ClassicSide, MemberStep, ModernMember
from krappy.core.kafka.subscription import Assignment, NamedPartition, Subscription, assignment, subscription


class Policy(StrEnum):
    """Kafka's `group.consumer.migration.policy`."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def up(self) -> bool:
        return self in (Policy.UPGRADE, Policy.BIDIRECTIONAL)

    @property
    def down(self) -> bool:
        return self in (Policy.DOWNGRADE, Policy.BIDIRECTIONAL)


def upgrade(classic: ClassicGroup, rules: ModernRules, now: int, topics: Topics) -> ModernGroup:
    """A KIP-848 group with the same members. Parked requests of the classic group are told to join again, in its `out`.
    Raises Refused: GROUP_ID_NOT_FOUND, as Kafka does, if the members can't be translated; GROUP_MAX_SIZE_REACHED."""
    if classic.protocol_type != CONSUMER:
        raise _impossible(f"its members are of the type '{classic.protocol_type:.40}'")
    known = [member for member in classic.members.values() if not member.is_new]  # the others join again
    read = [_read(classic, member) for member in known]
    if len(read) >= rules.max_members:
        raise Refused(Fault.GROUP_MAX_SIZE_REACHED)
    group = ModernGroup(rules)
    group.epoch = group.target_epoch = classic.generation
    group.saved = False
    held = _held(read, classic, topics)
    for member, wants, _ in read:
        group.take_over(
            ModernMember(
                *(member.id, member.instance_id, wants.rack, member.client_id, member.client_host),
                rebalance_ms=member.rebalance_ms,
                topics=tuple(sorted(wants.topics)),
                epoch=classic.generation,
                previous_epoch=classic.generation,
                assigned=frozenset((topics[topic].id, index) for topic, index in held[member.id]),
                expires=group.wake_at(now + member.session_ms),
                classic=ClassicSide(member.session_ms, member.protocols),
            )
        )
    if classic.state is GroupState.STABLE:
        group.settle(topics)
    classic.dissolve()
    return group


def _read(classic: ClassicGroup, member: ClassicMember) -> tuple[ClassicMember, Subscription, Assignment]:
    """(member, its subscription, its assignment). Raises Refused."""
    wants = subscription(member.metadata(classic.protocol) or member.protocols[0][1])
    given = assignment(member.assignment)
    if wants is None or given is None:
        raise _impossible("what its members send is not a consumer's embedded protocol")
    if given.custom:
        raise _impossible("it has an assignor of its own, whose user data would be lost; take one of Kafka's first")
    return member, wants, given


def _held(
    read: Sequence[tuple[ClassicMember, Subscription, Assignment]], classic: ClassicGroup, topics: Topics
) -> dict[str, set[NamedPartition]]:
    """The partitions of each member, by its id: its assignment; or, if it has joined the current rebalance, the
    partitions that it says it owns. Also the partitions that it owned when it joined and that nobody was assigned: a
    cooperative member may not have given them up yet."""
    claims: list[tuple[ClassicMember, Subscription, frozenset[NamedPartition]]] = []
    for member, wants, given in read:
        joined = classic.state is GroupState.PREPARING and member.join is not None
        claims.append((member, wants, wants.owned if joined else given.partitions))
    claims += [(member, wants, wants.owned) for member, wants, _ in read]
    held: dict[str, set[NamedPartition]] = {member.id: set() for member, _, _ in read}
    taken: set[NamedPartition] = set()
    for member, wants, claimed in claims:
        there = {at for at in claimed if at[0] in topics and at[0] in wants.topics and at[1] < topics[at[0]].partitions}
        held[member.id] |= there - taken
        taken |= there
    return held


def _impossible(why: str) -> Refused:
    return Refused(Fault.GROUP_ID_NOT_FOUND, f"the group is a classic one and can't become a consumer group: {why}")


def only_classic(group: ModernGroup) -> bool:
    """Whether there are members, and none speaks KIP-848's protocol."""
    return bool(group.members) and all(member.classic is not None for member in group.members.values())


def downgrade(group: ModernGroup, rules: Rules, now: int, topics: Topics) -> ClassicGroup:
    """A classic group with the members of a KIP-848 group, all of whom must be classic. It begins a rebalance."""
    classic = _settled(group, rules, now, topics)
    classic.rebalance(now)
    return classic


def replaces_last(group: ModernGroup, ask: Join) -> bool:
    """Whether a join replaces the only member that speaks KIP-848's protocol."""
    if ask.instance_id is None or ask.member_id:
        return False
    modern = [member for member in group.members.values() if member.classic is None]
    return len(modern) == 1 and modern[0].instance_id == ask.instance_id


def downgrade_for(group: ModernGroup, ask: Join, rules: Rules, now: int, topics: Topics) -> ClassicGroup:
    """As `downgrade`, for a static member that is about to replace the last KIP-848 member. There is no rebalance if
    only the protocol changes. Raises Refused if the member does not fit in."""
    wants = check_join(group, ask)
    last = group.static(ask.instance_id or "")
    assert last is not None
    calm = all(each.epoch in (group.epoch, AWAY) and each.step is MemberStep.STABLE for each in group.members.values())
    calm &= group.target_epoch == group.epoch and not last.regex and wants.topics == {*last.topics}
    last.classic = ClassicSide(ask.session_ms, ask.protocols)
    classic = _settled(group, rules, now, topics)
    if not calm:
        classic.rebalance(now)
    return classic


def _settled(group: ModernGroup, rules: Rules, now: int, topics: Topics) -> ClassicGroup:
    """A stable classic group; each member goes on with its epoch as its generation."""
    classic = ClassicGroup(rules)
    classic.generation, classic.protocol_type, classic.saved = group.epoch, CONSUMER, False
    for each in group.members.values():
        assert each.classic is not None
        member = ClassicMember(
            *(each.id, each.instance_id, each.client_id, each.client_host),
            *(each.classic.session_ms, each.rebalance_ms, each.classic.protocols, assigned_to(each, topics)),
            is_new=False,
        )
        classic.place(now, member)
        classic.epochs[member.id] = each.previous_epoch if each.epoch == AWAY else each.epoch
    classic.state, classic.leader = GroupState.STABLE, next(iter(classic.members))
    classic.protocol = elect([*classic.members.values()])
    return classic
