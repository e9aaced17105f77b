"""One classic group: the state machine behind JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

    Empty ─ first join ─► PreparingRebalance ─ all joined, or late ─► CompletingRebalance ─ leader's sync ─► Stable
                              ▲                                             │                                  │
                              └────── a member comes, goes, or changes ─────┴──────────────────────────────────┘

Rules, kept here:

- A rebalance ends when every member has joined and no promised member id (KIP-394) is outstanding, or when the longest
  rebalance timeout is over. Then dynamic members that have not joined are removed, static ones stay (KIP-345).
- The first rebalance of an empty group waits for more members (KIP-134).
- A session does not end while the member's join or sync is parked: it can't send heartbeats then. Only a member that
  was never answered is removed after NEW_MEMBER_MS, for it may be gone (KIP-394's motivation).
- A member that joined and does not sync within the rebalance timeout is removed (KAFKA-9672).
- A static member that returns to a stable group with the same subscription keeps its assignment, without a rebalance.
- The generation only grows.

Every method that may answer parked requests leaves those answers in `out`; `saved` turns False when the state that
`dump` gives has changed; `wake` is when `tick` must be called at the latest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from krappy.core.kafka.classic_member import (
    ClassicMember,
    GroupState,
    Join,
    Joined,
    Reply,
    Rules,
    SyncAnswer,
    common,
    elect,
    same_subscription,
)
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.subscription import subscribed_topics

NEW_MEMBER_MS = 300_000


class ClassicGroup:
    kind = "classic"

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.out: list[Reply] = []
        self.saved = True
        self.wake: int | None = None
        self._static: dict[str, str] = {}  # instance id -> member id
        self.promised: dict[str, int] = {}  # member id given with MEMBER_ID_REQUIRED -> when it lapses
        self._unsynced: set[str] = set()
        self._rebalance_by: int | None = None
        self._sync_by: int | None = None
        self._first = False  # whether this is the first rebalance of an empty group
        self._first_left = 0  # ms by which the first rebalance may still be delayed
        self._newcomer = False  # whether a member came since the last delay
        self.epochs: dict[str, int] = {}  # until the next generation: epochs of members that came from a KIP-848 group

    # --- joining

    def join(self, now: int, token: Any, ask: Join) -> None:
        """JoinGroup. Answers `token` in `out`, now or when the rebalance is over."""
        try:
            self._check_protocols(ask)
            if ask.member_id:
                self._join_known(now, token, ask)
            elif ask.instance_id is not None and ask.instance_id in self._static:
                self._return_static(now, token, ask)
            else:
                self._join_new(now, token, ask)
        except Refused as refusal:
            self.out.append(Reply(token, Joined(refusal.fault, refusal.details.get("member_id", ask.member_id))))

    def _check_protocols(self, ask: Join) -> None:
        offered = {name for name, _ in ask.protocols}
        others = [member for member in self.members.values() if member.id != ask.member_id]
        fits = bool(ask.protocol_type and offered)
        if self.members:
            fits = ask.protocol_type == self.protocol_type and bool(offered & common(self.members.values()))
        if not fits:
            raise Refused(Fault.INCONSISTENT_GROUP_PROTOCOL)
        size = sum(len(name) + len(metadata) for name, metadata in ask.protocols)
        if size + sum(member.size for member in others) > self.rules.max_bytes:
            raise Refused(Fault.GROUP_MAX_SIZE_REACHED)

    def _join_new(self, now: int, token: Any, ask: Join) -> None:
        if len(self.members) + len(self.promised) >= self.rules.max_members:
            raise Refused(Fault.GROUP_MAX_SIZE_REACHED)
        if ask.id_first and ask.instance_id is None:
            self.promised[ask.fresh_id] = now + ask.session_ms
            self._wake_at(now + ask.session_ms)
            self.out.append(Reply(token, Joined(Fault.MEMBER_ID_REQUIRED, ask.fresh_id)))
            return
        self._add(now, token, ask, ask.fresh_id)

    def _join_known(self, now: int, token: Any, ask: Join) -> None:
        if ask.member_id in self.promised and ask.instance_id is None:
            del self.promised[ask.member_id]
            self._add(now, token, ask, ask.member_id)
            return
        member = self._member(ask.member_id, ask.instance_id)
        changed = member.protocols != ask.protocols
        if self.state is GroupState.PREPARING:
            self._update(now, token, member, ask)
            self._complete_if_all_joined(now)
        elif (self.state is GroupState.COMPLETING and not changed) or (
            self.state is GroupState.STABLE and not changed and member.id != self.leader
        ):
            member.expires = self._wake_at(now + member.session_ms)
            self.out.append(Reply(token, self._joined(member)))  # a retry: its answer was lost
        else:
            self._update(now, token, member, ask)
            self.rebalance(now)

    def _add(self, now: int, token: Any, ask: Join, member_id: str) -> None:
        member = ClassicMember(
            member_id, ask.instance_id, ask.client_id, ask.client_host, ask.session_ms, ask.rebalance_ms, ask.protocols
        )
        if not self.members:
            self.protocol_type = ask.protocol_type
            self.leader = None
        self.members[member_id] = member
        if ask.instance_id is not None:
            self._static[ask.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._newcomer = True
        self._park_join(now, token, member)
        self.rebalance(now)

    def _park_join(self, now: int, token: Any, member: ClassicMember) -> None:
        if member.join is not None:  # a retry: the first request is answered too, for answers go out in order
            self.out.append(Reply(member.join, Joined(Fault.REBALANCE_IN_PROGRESS, member.id)))
        member.join = token
        member.expires = self._wake_at(now + NEW_MEMBER_MS) if member.is_new else None

    def _update(self, now: int, token: Any, member: ClassicMember, ask: Join) -> None:
        member.protocols = ask.protocols
        member.session_ms, member.rebalance_ms = ask.session_ms, ask.rebalance_ms
        member.client_id, member.client_host = ask.client_id, ask.client_host
        self._park_join(now, token, member)

    def _return_static(self, now: int, token: Any, ask: Join) -> None:
        """A static member returns by its instance id, without its member id: it gets a new one, the old is fenced."""
        assert ask.instance_id is not None
        old = self.members.pop(self._static[ask.instance_id])
        self._answer_parked(old, Fault.FENCED_INSTANCE_ID)
        member = ClassicMember.load(old.dump())
        member.id = ask.fresh_id
        self.members[member.id] = member
        self._static[ask.instance_id] = member.id
        self._unsynced.discard(old.id)
        led = self.leader == old.id
        if led:
            self.leader = member.id
        self._update(now, token, member, ask)
        same = same_subscription(old.metadata(self.protocol), member.metadata(self.protocol))
        if self.state is GroupState.STABLE and elect([*self.members.values()]) == self.protocol and same:
            member.join, member.expires = None, self._wake_at(now + member.session_ms)
            answer = self._joined(member)
            if led and ask.may_skip:
                answer = answer._replace(skip_assignment=True)
            elif led:  # a stable group takes no assignment, so it is told that another leads
                answer = answer._replace(leader=old.id, members=())
            self.saved = False
            self.out.append(Reply(token, answer))
        elif self.state is GroupState.PREPARING:
            self._complete_if_all_joined(now)
        else:
            self.rebalance(now)

    # --- the rebalance

    def rebalance(self, now: int) -> None:
        """Begins a rebalance, or completes the current one if all have joined."""
        if self.state is GroupState.PREPARING:
            self._complete_if_all_joined(now)
            return
        was_empty = self.state is GroupState.EMPTY
        self._stop_syncing(now)
        self.state = GroupState.PREPARING
        longest = self._longest_rebalance()
        self._first = was_empty and self.rules.initial_delay_ms > 0
        if self._first:
            self._newcomer = False
            self._first_left = max(longest - self.rules.initial_delay_ms, 0)
            self._rebalance_by = self._wake_at(now + min(self.rules.initial_delay_ms, longest))
        else:
            self._rebalance_by = self._wake_at(now + longest)
            self._complete_if_all_joined(now)

    def _longest_rebalance(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _complete_if_all_joined(self, now: int) -> None:
        if self._first and self.members:
            return
        if not self.promised and all(member.join is not None for member in self.members.values()):
            self._complete(now)

    def _rebalance_timed_out(self, now: int) -> None:
        if self._first and self._newcomer and self._first_left:
            delay = min(self.rules.initial_delay_ms, self._first_left)
            self._newcomer = False
            self._first_left -= delay
            self._rebalance_by = self._wake_at(now + delay)
        else:
            self._complete(now)

    def _complete(self, now: int) -> None:
        """Begins the next generation, with the members that have joined and all static ones."""
        for member in [*self.members.values()]:
            if member.join is None and member.instance_id is None:
                self._forget(member)
        joined = [member for member in self.members.values() if member.join is not None]
        if self.members and not joined:  # only absent static members are left: wait on
            self._first = False
            self._rebalance_by = self._wake_at(now + max(1, self._longest_rebalance()))
            return
        self._first = False
        self._rebalance_by = None
        self.generation += 1
        self.epochs.clear()
        self.saved = False
        if not joined:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
            return
        self.state = GroupState.COMPLETING
        self.protocol = elect([*self.members.values()])
        if self.leader is None or self.leader not in self.members or self.members[self.leader].join is None:
            self.leader = joined[0].id
        self._unsynced = {*self.members}
        self._sync_by = self._wake_at(now + max(1, self._longest_rebalance()))
        for member in self.members.values():
            member.assignment = b""
        for member in joined:
            self.out.append(Reply(member.join, self._joined(member)))
            member.join, member.is_new = None, False
            member.expires = self._wake_at(now + member.session_ms)

    def _joined(self, member: ClassicMember) -> Joined:
        assert self.leader is not None
        # Only the leader gets the list: one for each member takes long in a group of a thousand.
        of_all = self.members.values() if member.id == self.leader else ()
        return Joined(
            Fault.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            [(each.id, each.instance_id, each.metadata(self.protocol)) for each in of_all],
        )

    # --- syncing

    def sync(
        self,
        now: int,
        token: Any,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        assignments: Mapping[str, bytes] | None = None,
    ) -> None:
        """SyncGroup. Answers `token` in `out`, now or when the leader has synced. `protocol_type` and `protocol` are
        checked if given (KIP-559)."""
        try:
            member = self._member(member_id, instance_id)
            self._check_generation(member, generation)
            given = (protocol_type or self.protocol_type, protocol or self.protocol)
            if self.state is not GroupState.PREPARING and given != (self.protocol_type, self.protocol):
                raise Refused(Fault.INCONSISTENT_GROUP_PROTOCOL)
            if self.state is GroupState.PREPARING:
                raise Refused(Fault.REBALANCE_IN_PROGRESS)
            assigned = assignments or {}
            held = sum(each.size for each in self.members.values())
            if held + sum(map(len, assigned.values())) > 2 * self.rules.max_bytes:
                raise Refused(Fault.INVALID_REQUEST)
        except Refused as refusal:
            self.out.append(Reply(token, SyncAnswer(refusal.fault)))
            return
        self._unsynced.discard(member.id)
        if self.state is GroupState.STABLE:
            member.expires = self._wake_at(now + member.session_ms)
            self.out.append(Reply(token, self._synced(member)))
            return
        if member.sync is not None:
            self.out.append(Reply(member.sync, SyncAnswer(Fault.REBALANCE_IN_PROGRESS)))
        member.sync, member.expires = token, None
        if member.id == self.leader:
            self._settle(now, assigned)

    def _settle(self, now: int, assignments: Mapping[str, bytes]) -> None:
        self.state = GroupState.STABLE
        self.saved = False
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.sync is not None:
                self.out.append(Reply(member.sync, self._synced(member)))
                member.sync, member.expires = None, self._wake_at(now + member.session_ms)

    def _synced(self, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(Fault.NONE, self.protocol_type, self.protocol, member.assignment)

    def _stop_syncing(self, now: int) -> None:
        self._sync_by = None
        self._unsynced.clear()
        for member in self.members.values():
            if member.sync is not None:
                self.out.append(Reply(member.sync, SyncAnswer(Fault.REBALANCE_IN_PROGRESS)))
                member.sync = None
                if member.join is None:
                    member.expires = self._wake_at(now + member.session_ms)

    # --- staying and leaving

    def heartbeat(self, now: int, member_id: str, generation: int, instance_id: str | None = None) -> Fault:
        """REBALANCE_IN_PROGRESS tells the member to join again."""
        try:
            member = self._member(member_id, instance_id)
            self._check_generation(member, generation)
        except Refused as refusal:
            return refusal.fault
        if member.join is None and member.sync is None:
            member.expires = self._wake_at(now + member.session_ms)
        return Fault.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else Fault.NONE

    def leave(self, now: int, leaving: Sequence[tuple[str, str | None]]) -> list[Fault]:
        """LeaveGroup. `leaving`: (member id, instance id) of each; a static member's instance id suffices (KIP-345)."""
        faults = []
        gone = False
        for member_id, instance_id in leaving:
            if member_id in self.promised and instance_id is None:
                del self.promised[member_id]
                gone = True
                faults.append(Fault.NONE)
                continue
            try:
                if instance_id is not None and not member_id:
                    member_id = self._static.get(instance_id, "")
                self._forget(self._member(member_id, instance_id))
            except Refused as refusal:
                faults.append(refusal.fault)
            else:
                gone = True
                faults.append(Fault.NONE)
        if gone:
            self._someone_left(now)
        return faults

    def _someone_left(self, now: int) -> None:
        if self.state is not GroupState.EMPTY:
            self.rebalance(now)

    def _forget(self, member: ClassicMember) -> None:
        self._answer_parked(member, Fault.UNKNOWN_MEMBER_ID)
        del self.members[member.id]
        self._unsynced.discard(member.id)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _answer_parked(self, member: ClassicMember, fault: Fault) -> None:
        if member.join is not None:
            self.out.append(Reply(member.join, Joined(fault, member.id)))
        if member.sync is not None:
            self.out.append(Reply(member.sync, SyncAnswer(fault)))
        member.join = member.sync = None

    def _member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member. Raises Refused: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if another has its instance id now."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is None:
                raise Refused(Fault.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                raise Refused(Fault.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Fault.UNKNOWN_MEMBER_ID)
        return member

    def _check_generation(self, member: ClassicMember, generation: int) -> None:
        """Raises Refused: ILLEGAL_GENERATION."""
        if generation != self.epochs.get(member.id, self.generation):
            raise Refused(Fault.ILLEGAL_GENERATION)

    # --- time

    def _wake_at(self, due: int) -> int:
        if self.wake is None or due < self.wake:
            self.wake = due
        return due

    def tick(self, now: int) -> None:
        """Does everything that is due at `now`."""
        lapsed = [member_id for member_id, due in self.promised.items() if due <= now]
        for member_id in lapsed:
            del self.promised[member_id]
        expired = [each for each in self.members.values() if each.expires is not None and each.expires <= now]
        if self._sync_by is not None and self._sync_by <= now:
            self._sync_by = None
            expired += [self.members[each] for each in sorted(self._unsynced) if self.members[each] not in expired]
            self._unsynced.clear()
        for member in expired:
            self._forget(member)
        if expired or (lapsed and self.state is GroupState.PREPARING):
            self._someone_left(now)
        if self._rebalance_by is not None and self._rebalance_by <= now:
            self._rebalance_timed_out(now)
        dues = [member.expires for member in self.members.values()]
        dues += [*self.promised.values(), self._rebalance_by, self._sync_by]
        self.wake = min((due for due in dues if due is not None), default=None)

    # --- to KIP-848's protocol and back (migration.py)

    def dissolve(self) -> None:
        """To be called when its members move to another group object: parked requests are told to join again."""
        for member in self.members.values():
            self._answer_parked(member, Fault.REBALANCE_IN_PROGRESS)

    def place(self, now: int, member: ClassicMember) -> None:
        """Adds a member from a stored or another group."""
        member.expires = self._wake_at(now + member.session_ms)
        self.members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    # --- what others ask

    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def turns(self) -> int:
        """The generation, as a count of rebalances."""
        return self.generation

    @property
    def idle(self) -> bool:
        """Whether nothing is lost when the group is forgotten."""
        return not self.members and not self.promised

    def check_commit(
        self, now: int, member_id: str, generation: int, instance_id: str | None, *, transactional: bool = False
    ) -> None:
        """Checks that this member may commit offsets; without one, the group must be empty. Raises Refused."""
        if generation < 0 and not self.members:
            return
        if generation < 0 and not member_id and instance_id is None:
            if not transactional:
                raise Refused(Fault.UNKNOWN_MEMBER_ID)
            return
        member = self._member(member_id, instance_id)
        self._check_generation(member, generation)
        if self.state is GroupState.COMPLETING and not transactional:
            raise Refused(Fault.REBALANCE_IN_PROGRESS)
        if member.join is None and member.sync is None:
            member.expires = self._wake_at(now + member.session_ms)

    def topics(self) -> set[str] | None:
        """The topics that members subscribe to; None if they are not consumers, but Kafka Connect's workers, say."""
        found: set[str] = set()
        if self.protocol_type != "consumer":
            return None if self.members else found
        for member in self.members.values():
            for _, metadata in member.protocols:
                found |= subscribed_topics(metadata) or set()
        return found

    def dump(self) -> list[Any]:
        """The state as plain values, to be stored; during a rebalance without members, which then must join again."""
        members = [member.dump() for member in self.members.values()] if self.state is GroupState.STABLE else []
        return [self.generation, self.protocol_type, self.protocol if members else None, self.leader, members]

    @classmethod
    def load(cls, state: Sequence[Any], rules: Rules, now: int) -> ClassicGroup:
        """The group that `dump` has stored; sessions begin anew. Raises ValueError or TypeError for anything else."""
        group = cls(rules)
        group.generation, group.protocol_type, group.protocol, leader, members = state
        for each in members:
            group.place(now, ClassicMember.load(each))
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        group.leader = leader if leader in group.members else next(iter(group.members), None)
        return group
