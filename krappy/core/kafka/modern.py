"""One KIP-848 group: the state machine behind ConsumerGroupHeartbeat. The broker assigns partitions; members follow.

- The *group epoch* grows with every change of members, of their subscriptions, or of the topics that they match. The
  *target* (who is to have which partition) is assigned for an epoch. A member's epoch tells which target it has
  reached.
- A member gets to the target in steps (`modern_member.reconcile`): first it gives up partitions; once it has said so,
  it gets the others, except those that another member still holds. So only members that lose partitions are
  interrupted.
- No partition is ever with two members: a member holds it from the answer that assigns it until a heartbeat that no
  longer owns it, or until the member is fenced.
- A static member (KIP-345) that leaves for a while (epoch -2) keeps its partitions until its session ends; a new
  process with its instance id takes its place.
- While a group moves between the protocols, a member may speak the classic protocol instead (`mixed.py`).
- The state is stored, member by member, so that after a restart of the broker members go on with their next heartbeat.
  The target is not stored. If every member had reached it, it is what they have, for the topics of that time; else it
  is assigned again in a new epoch, and comes out the same, because assignors keep what members have.

`dirty` collects the ids of members whose stored state has changed (`dump_member` gives None for one that is gone).
`saved` turns False when the state that `dump` gives has changed. `wake` is when `tick` must be called at the latest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from krappy.core.kafka.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Partition, Wants
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import (
    AWAY,
    JOINING,
    LEAVING,
    NOTHING,
    Beat,
    Beaten,
    MemberStep,
    ModernMember,
    Sees,
    reconcile,
)
from krappy.core.kafka.name_regex import TopicRegex, topic_regex


class KnownTopic(NamedTuple):
    """`shared`: whether share groups can read it."""

    id: bytes
    partitions: int
    shared: bool = True


Topics = Mapping[str, KnownTopic]  # all topics, by name


class ModernRules(NamedTuple):
    session_ms: int = 45_000
    max_members: int = 1000


class ModernGroup:
    kind = "consumer"

    def __init__(self, rules: ModernRules) -> None:
        self.rules = rules
        self.epoch = 0
        self.target_epoch = 0
        self.target: dict[str, frozenset[Partition]] = {}
        self.members: dict[str, ModernMember] = {}
        self.dirty: set[str] = set()
        self.saved = True
        self.wake: int | None = None
        self.assignor = DEFAULT_ASSIGNOR
        self._static: dict[str, str] = {}
        self._holders: dict[Partition, str] = {}
        self._subscribed: dict[str, KnownTopic] = {}  # the topics that the target was assigned for
        self._seen: Topics | None = None  # the topics seen last
        self._resumed = False  # after a restart: the target is what the members have, if topics are unchanged

    # --- heartbeats

    def beat(self, now: int, beat: Beat, topics: Topics) -> Beaten:
        """One heartbeat. `topics` must be a new object whenever topics have changed. The patterns of members should
        have been matched with them before: see `behind`. Raises Refused."""
        check_beat(beat)
        if beat.epoch in (LEAVING, AWAY):
            return self._leave(now, beat)
        if beat.regex:
            topic_regex(beat.regex)  # an invalid one changes nothing
        member = self._joining(beat) if beat.epoch == JOINING else self._known(beat)
        if member.classic is not None:
            member.classic, member.revoke_by = None, None
            self.dirty.add(member.id)
        owned = NOTHING if beat.epoch == JOINING and beat.owned is None else beat.owned
        return self.go_on(now, member, beat, owned, topics, self.rules.session_ms)

    def go_on(
        self, now: int, member: ModernMember, beat: Beat, owned: frozenset[Partition] | None, topics: Topics, ms: int
    ) -> Beaten:
        """Takes over what a member's heartbeat says, and does its next step. `owned`: the partitions that it says it
        has; None: unchanged. `ms`: until its session ends."""
        joins = beat.epoch == JOINING
        member.expires = self.wake_at(now + ms)
        changed = self._adopt(member, beat)
        if changed or self._topics_changed(topics):
            self._bump()
        if self.target_epoch != self.epoch:
            self._assign(topics)
        before = (member.assigned, member.epoch, member.step, member.revoking)
        self._reconcile(now, member, owned)
        if before != (member.assigned, member.epoch, member.step, member.revoking):
            self.dirty.add(member.id)
        tell = joins or beat.full or member.assigned != before[0]
        return Beaten(member.id, member.epoch, member.assigned if tell else None)

    def _joining(self, beat: Beat) -> ModernMember:
        """The member of a first heartbeat: a new one, one that joins again, or a static one that is back. Raises
        Refused."""
        if beat.instance_id is not None:
            there = self.static(beat.instance_id)
            if there is not None and there.id != beat.member_id:
                if there.epoch != AWAY and there.classic is None:
                    raise Refused(
                        Fault.UNRELEASED_INSTANCE_ID,
                        f"the instance '{beat.instance_id:.100}' is with member {there.id:.100}",
                    )
                return self.replace(there, beat.member_id)
            if there is not None and there.epoch == AWAY:
                there.epoch = there.previous_epoch
        member = self.members.get(beat.member_id)
        if member is None:
            member = self.add(beat.member_id, beat.instance_id)
        elif member.instance_id != beat.instance_id:
            raise Refused(Fault.INVALID_REQUEST, "a member id can't move to another instance id")
        return member

    def add(self, member_id: str, instance_id: str | None) -> ModernMember:
        """Adds a member, which subscribes to nothing yet. Raises Refused: GROUP_MAX_SIZE_REACHED."""
        if len(self.members) >= self.rules.max_members:
            raise Refused(Fault.GROUP_MAX_SIZE_REACHED)
        member = self.members[member_id] = ModernMember(member_id, instance_id)
        self.dirty.add(member_id)
        if instance_id is not None:
            self._static[instance_id] = member_id
        self._bump()
        return member

    def take_over(self, member: ModernMember) -> None:
        """Adds a member from a stored or a classic group, with the partitions that it has."""
        self.members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id
        for partition in member.assigned | member.revoking:
            self._holders[partition] = member.id
        self.dirty.add(member.id)

    def settle(self, topics: Topics) -> None:
        """After `take_over`: makes what the members have the target. If that is not all that they subscribe to, the
        next look at the topics begins a new epoch."""
        self.target = {member.id: member.assigned for member in self.members.values()}
        wanted = self._wanted(topics)
        there = {(topic.id, index) for topic in wanted.values() for index in range(topic.partitions)}
        if there == {at for assigned in self.target.values() for at in assigned}:
            self._seen, self._subscribed = topics, wanted

    def replace(self, old: ModernMember, member_id: str) -> ModernMember:
        """Gives a static member's new process the place of the old one. Raises Refused: INVALID_REQUEST."""
        if member_id in self.members:
            raise Refused(Fault.INVALID_REQUEST, "this member id is in use")
        member = ModernMember.load(old.dump())
        member.id = member_id
        if member.epoch == AWAY:
            member.epoch = old.previous_epoch
        del self.members[old.id]
        self.members[member_id] = member
        assert member.instance_id is not None
        self._static[member.instance_id] = member_id
        for partition in member.assigned | member.revoking:
            self._holders[partition] = member_id
        if old.id in self.target:
            self.target[member_id] = self.target.pop(old.id)
        self.dirty |= {old.id, member_id}
        return member

    def static(self, instance_id: str) -> ModernMember | None:
        """The member with this instance id; None without one."""
        return self.members.get(self._static.get(instance_id, ""))

    def member(self, member_id: str, instance_id: str | None) -> ModernMember:
        """The member. Raises Refused: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another member has its instance id
        now."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is None:
                raise Refused(Fault.UNKNOWN_MEMBER_ID, f"no member has the instance id '{instance_id:.100}'")
            if holder != member_id:
                raise Refused(Fault.FENCED_INSTANCE_ID, f"the instance '{instance_id:.100}' is with another member now")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Fault.UNKNOWN_MEMBER_ID, f"there is no member {member_id:.100}")
        return member

    def _known(self, beat: Beat) -> ModernMember:
        member = self.member(beat.member_id, beat.instance_id)
        late = (
            beat.epoch == member.previous_epoch
            and beat.owned is not None
            and beat.owned <= member.assigned
            and member.epoch > 0
        )
        if beat.epoch != member.epoch and not late:  # late: the answer with its new epoch was lost
            raise Refused(
                Fault.FENCED_MEMBER_EPOCH, f"member {member.id:.100} is in epoch {member.epoch}, and says {beat.epoch}"
            )
        return member

    def _adopt(self, member: ModernMember, beat: Beat) -> bool:
        """Takes over what the heartbeat says. Returns whether the group needs a new assignment."""
        before, rack = (member.topics, member.regex, member.sees, member.assignor), member.rack
        joins = beat.epoch == JOINING
        if beat.topics is not None:
            member.topics = tuple(sorted(set(beat.topics)))
        elif joins:
            member.topics = ()
        if beat.regex is not None or joins:
            member.regex = topic_regex(beat.regex) if beat.regex else None
        member.sees = beat.sees if member.regex else None
        if beat.assignor is not None or joins:
            member.assignor = beat.assignor
        if beat.rack is not None or joins:
            member.rack = beat.rack
        if beat.rebalance_ms != -1:
            member.rebalance_ms = beat.rebalance_ms
        seen = (rack, member.client_id, member.client_host)
        member.client_id, member.client_host = beat.client_id, beat.client_host
        changed = before != (member.topics, member.regex, member.sees, member.assignor)
        if changed or seen != (member.rack, member.client_id, member.client_host):
            self.dirty.add(member.id)
        return changed

    # --- assigning

    def _bump(self) -> None:
        if self.epoch == self.target_epoch:
            self.epoch += 1
            self.saved = False

    def look(self, topics: Topics) -> None:
        """Begins a new epoch if subscribed topics came, went or grew."""
        if self._topics_changed(topics):
            self._bump()

    def is_free(self, partition: Partition, member_id: str) -> bool:
        """Whether no other member holds the partition."""
        return self._holders.get(partition, member_id) == member_id

    def _topics_changed(self, topics: Topics) -> bool:
        if topics is self._seen:
            return False
        if self._resumed:
            self._resumed = False
            self.settle(topics)
        self._seen = topics
        return self._subscribed != self._wanted(topics)

    def behind(self, topics: Topics) -> list[TopicRegex]:
        """The patterns that have to be matched with these topics before the group looks at them. That may take long, so
        the caller does it step by step."""
        if topics is self._seen:
            return []
        there = {member.regex for member in self.members.values() if member.regex is not None}
        return [regex for regex in there if regex.is_behind(topics)]

    def _wanted(self, topics: Topics) -> dict[str, KnownTopic]:
        """The existing topics that members subscribe to."""
        names = {name for member in self.members.values() for name in member.topics}
        found = {name: topics[name] for name in names if name in topics}
        for regex, sees in {(member.regex, member.sees) for member in self.members.values()}:
            if regex is not None:
                matching = {name: topic for name, topic in topics.items() if regex.matches(name)}
                found.update({name: each for name, each in matching.items() if sees is None or sees(name)})
        return found

    def _names(self, member: ModernMember) -> set[str]:
        names = {name for name in member.topics if name in self._subscribed}
        if member.regex:
            matches, sees = member.regex.matches, member.sees
            names |= {name for name in self._subscribed if matches(name) and (sees is None or sees(name))}
        return names

    def _assign(self, topics: Topics) -> None:
        self._subscribed, self._resumed = self._wanted(topics), False
        self.assignor = self._elect()
        ids: dict[tuple[tuple[str, ...], TopicRegex | None, Sees | None], frozenset[bytes]] = {}
        wants: dict[str, Wants] = {}
        for member in self.members.values():
            alike = (member.topics, member.regex, member.sees)
            if alike not in ids:
                ids[alike] = frozenset(self._subscribed[name].id for name in self._names(member))
            holds = self.target.get(member.id, member.assigned)
            wants[member.id] = Wants(ids[alike], holds, member.instance_id or member.id)
        sizes = {topic.id: topic.partitions for topic in self._subscribed.values()}
        self.target = ASSIGNORS[self.assignor](wants, sizes)
        self.target_epoch = self.epoch

    def _elect(self) -> str:
        """The assignor that most members ask for; among equals, the first by name."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(sorted(votes), key=votes.__getitem__) if votes else DEFAULT_ASSIGNOR

    def _reconcile(self, now: int, member: ModernMember, owned: frozenset[Partition] | None) -> None:
        before = member.assigned | member.revoking
        was, step = member.epoch, member.step
        target = self.target.get(member.id, NOTHING)
        reconcile(member, target, self.target_epoch, owned, lambda at: not self.is_free(at, member.id))
        after = member.assigned | member.revoking
        for partition in before - after:
            if self._holders.get(partition) == member.id:
                del self._holders[partition]
        for partition in after - before:
            self._holders[partition] = member.id
        if member.step is not MemberStep.UNREVOKED:
            member.revoke_by = None
        elif step is not MemberStep.UNREVOKED or was != member.epoch:
            member.revoke_by = self.wake_at(now + member.rebalance_ms)

    # --- leaving

    def _leave(self, now: int, beat: Beat) -> Beaten:
        """A member leaves, for good or for a while (epoch AWAY). Raises Refused."""
        member = self.member(beat.member_id, beat.instance_id)
        if beat.epoch == AWAY:
            if member.epoch != AWAY:
                member.previous_epoch, member.epoch = member.epoch, AWAY
                member.revoke_by = None
                for partition in member.revoking:  # its process is gone, so it holds them no more
                    self._holders.pop(partition, None)
                member.revoking = NOTHING
                if member.step is MemberStep.UNREVOKED:
                    member.step = MemberStep.UNRELEASED
                self.dirty.add(member.id)
        else:
            self._forget(member)
        return Beaten(beat.member_id, beat.epoch)

    def remove(self, member_id: str, instance_id: str | None) -> Fault:
        """Removes a member for an administrator: by its id, or a static one by its instance id."""
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        member = self.members.get(member_id)
        if member is None:
            return Fault.UNKNOWN_MEMBER_ID
        if instance_id is not None and member.instance_id != instance_id:
            return Fault.FENCED_INSTANCE_ID
        self._forget(member)
        return Fault.NONE

    def _forget(self, member: ModernMember) -> None:
        del self.members[member.id]
        self.target.pop(member.id, None)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        for partition in member.assigned | member.revoking:
            if self._holders.get(partition) == member.id:
                del self._holders[partition]
        self.dirty.add(member.id)
        self._bump()

    # --- time

    def wake_at(self, due: int) -> int:
        if self.wake is None or due < self.wake:
            self.wake = due
        return due

    def tick(self, now: int) -> None:
        """Removes members whose session is over, and members that do not give up partitions within their rebalance
        timeout."""
        for member in [*self.members.values()]:
            dues = [due for due in (member.expires, member.revoke_by) if due is not None]
            if any(due <= now for due in dues):
                self._forget(member)
        dues = [due for each in self.members.values() for due in (each.expires, each.revoke_by) if due is not None]
        self.wake = min(dues, default=None)

    # --- what others ask

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.target_epoch != self.epoch:
            return "Assigning"
        return "Stable" if self._calm else "Reconciling"

    @property
    def _calm(self) -> bool:
        """Whether every member has reached the group's epoch, and has all its partitions of the target."""
        return all(each.epoch == self.epoch and each.step is MemberStep.STABLE for each in self.members.values())

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def turns(self) -> int:
        """The group epoch, as a count of changes."""
        return self.epoch

    @property
    def idle(self) -> bool:
        return not self.members

    def check_commit(self, member_id: str, epoch: int, instance_id: str | None = None) -> None:
        """Checks that this member may commit (or fetch) offsets in this epoch. Raises Refused."""
        if epoch < 0 and not self.members:
            return
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Fault.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise Refused(Fault.STALE_MEMBER_EPOCH if member.classic is None else Fault.ILLEGAL_GENERATION)

    def topics(self) -> set[str] | None:
        """The topics that members subscribe to."""
        found = {name for member in self.members.values() for name in member.topics}
        for member in self.members.values():
            if member.regex:
                found |= self._names(member)
        return found

    # --- kept

    def dump(self) -> list[Any]:
        return [self.epoch]

    def dump_member(self, member_id: str) -> list[Any] | None:
        member = self.members.get(member_id)
        return None if member is None else member.dump()

    @classmethod
    def load(cls, state: Sequence[Any], members: Sequence[Sequence[Any]], rules: ModernRules, now: int) -> Self:
        """The group that `dump` and `dump_member` have stored; sessions begin anew. If not all members had reached the
        target, a new epoch begins. A member whose regular expression is refused by now is left out. Raises ValueError
        or TypeError for anything else."""
        group = cls(rules)
        (group.epoch,) = state
        left_out = set()
        for each in members:
            try:
                member = ModernMember.load(each)
            except Refused:  # it joins again with its next heartbeat, and is told why it can't
                left_out.add(each[0])
                continue
            member.expires = group.wake_at(now + (member.classic.session_ms if member.classic else rules.session_ms))
            if member.step is MemberStep.UNREVOKED:
                member.revoke_by = group.wake_at(now + member.rebalance_ms)
            group.take_over(member)
        group.dirty = left_out
        group.epoch = max([group.epoch, *(each.epoch for each in group.members.values())])
        group.target_epoch = group.epoch
        group.assignor = group._elect()
        group._resumed = group._calm and not left_out
        if group._resumed:
            group.target = {member.id: member.assigned for member in group.members.values()}
        else:
            group._bump()
        return group


def check_beat(beat: Beat) -> None:
    """Checks a heartbeat's fields, whatever the group (KIP-848, "Request Validation"). Raises Refused."""
    problem = None
    if not beat.member_id:
        problem = "MemberId can't be empty"
    elif beat.instance_id == "" or beat.rack == "":
        problem = "InstanceId and RackId are null or not empty"
    elif beat.epoch < AWAY:
        problem = f"MemberEpoch is {beat.epoch}; the least is -2"
    elif beat.epoch == AWAY and beat.instance_id is None:
        problem = "only a static member, with an InstanceId, may leave with epoch -2"
    elif beat.epoch == JOINING and beat.rebalance_ms <= 0:
        problem = "RebalanceTimeoutMs must be given with the first heartbeat"
    elif beat.epoch == JOINING and beat.owned:
        problem = "TopicPartitions must be empty in the first heartbeat"
    elif beat.epoch == JOINING and beat.topics is None and not beat.regex:
        problem = "SubscribedTopicNames or SubscribedNameRegex must be given with the first heartbeat"
    if problem is not None:
        raise Refused(Fault.INVALID_REQUEST, problem)
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise Refused(
            Fault.UNSUPPORTED_ASSIGNOR, f"there is no assignor '{beat.assignor:.40}'; there are {', '.join(ASSIGNORS)}"
        )
