"""All Kafka groups of the broker: their names, the requests of their members, and what is stored of them.

A broker that is alone coordinates all groups. A broker of a cluster coordinates the groups whose partition of
`__consumer_offsets` it leads (replicated.py).

Everything happens on the event loop, one request at a time. A JoinGroup or SyncGroup that waits for other members is a
`Later`: a small object, no task. One heap of alarms has the timers of all groups. What an answer promises is on disk
before it is sent: a group's generation or epoch, and the members' epochs of a KIP-848 group.

Members survive a restart of the broker, so that it causes no rebalance: those of a classic group as of its last stable
generation (in a rebalance they are about to join anyway, and get UNKNOWN_MEMBER_ID), those of a KIP-848 group always.
Their sessions begin anew then.

A name belongs to a Kafka group or to a native one (`krappy.broker.groups`), from the first member or offset on until
the group is deleted or forgotten.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from krappy.broker.alarms import Alarms
from krappy.broker.kafka_groups.admin import Admin
from krappy.broker.kafka_groups.group import EACH_MEMBER, KafkaGroup, load
from krappy.broker.kafka_groups.keeper import Keeper, LocalKeeper
from krappy.broker.kafka_groups.native import NativeView
from krappy.broker.kafka_groups.offsets import KafkaOffsets
from krappy.broker.kafka_groups.registry import GroupRegistry, Natives, check_name
from krappy.broker.kafka_groups.replicated import ReplicatedKeeper
from krappy.broker.kafka_groups.share import ShareGroups
from krappy.core.kafka import mixed, name_regex
from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import LONGEST_NAME, Join, Joined, Reply, SyncAnswer, brought, taken
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.migration import Policy, downgrade, downgrade_for, only_classic, replaces_last, upgrade
from krappy.core.kafka.modern import ModernGroup, check_beat
from krappy.core.kafka.modern_member import JOINING, Beat, Beaten
from krappy.core.kafka.name_regex import TopicRegex
from krappy.core.kafka.subscription import subscribed_topics
from krappy.errors import KrappyError
from krappy.store.group_offsets import GroupChange, KeptGroup
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.latest.latest import LatestTables
    from krappy.broker.overrides import OverrideStore
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.internal_topics import InternalTopics
    from krappy.core.kafka.offset import At, Offset


class KafkaGroups(GroupRegistry):
    def __init__(
        self,
        runtime: Runtime,
        settings: OverrideStore,
        natives: Natives,
        internal: InternalTopics,
        latest: LatestTables,
        *,
        replicated: bool,
    ) -> None:
        """`replicated`: in a cluster."""
        self.replicated = replicated
        store: Keeper = LocalKeeper(runtime, self.take)
        self._replicated = None
        if replicated:
            store = self._replicated = ReplicatedKeeper(runtime, self.take, self.give_up)
        super().__init__(runtime, store, settings, natives, internal, latest)
        config = runtime.config
        self.policy = Policy(config.group_consumer_migration_policy)
        self.sessions = (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms)
        self.offsets = KafkaOffsets(self)
        self.share = ShareGroups(self, natives, self.beat_in, self.after)
        self.admin = Admin(self, self.share)
        self.native = NativeView(self, self.offsets, self.admin, self.share)
        self._alarms = Alarms(self.now)
        self._opened = False

    # --- life

    async def open(self) -> None:
        """Loads all groups; in a cluster each group when it begins to coordinate it. Raises StorageError for a state
        that can't be read."""
        self.store.begin()
        for signal in (self.runtime.topics.changed, *self.runtime.authorizer.signals):  # ACLs limit what patterns match
            signal.subscribe(self.forget_topics)
        self.runtime.stopping.subscribe(self._answer_all)
        self.runtime.spawn(self._alarms.run)
        self.runtime.spawn(self.offsets.run)
        self._opened = True

    def take(self, kept: Mapping[str, KeptGroup]) -> None:
        """Goes on with these groups. Raises StorageError for a state that can't be read."""
        now, wall = self.now(), self.runtime.clock.steady_ms()
        groups = [
            load(self.rang, name, each, self.rules, self.settings.rules, now, wall) for name, each in kept.items()
        ]
        for group in groups:
            self.add(group)
            self.offsets.count(group)
            self._attend(group)

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        """Forgets the groups with these names, which another broker coordinates now."""
        for group in [each for each in (*self.groups.values(), *self.shares.values()) if is_in(each.name)]:
            _answer(group, Fault.NOT_COORDINATOR)
            self.drop(group)

    async def close(self) -> None:
        """Stops: nothing is written any more."""
        self.closed = True
        if self._opened:
            self._answer_all()

    def _answer_all(self) -> None:
        """Answers all waiting members when the broker stops. They look for the group's coordinator again."""
        for group in self.groups.values():
            _answer(group, Fault.COORDINATOR_NOT_AVAILABLE)

    # --- the classic protocol

    def join(self, name: str, ask: Join) -> Later[Joined]:
        """JoinGroup: answered when the rebalance is over. `ask.fresh_id` is set here."""
        later: Later[Joined] = Later()
        fresh = ask._replace(fresh_id=f"{ask.instance_id or ask.client_id or 'member'}-{uuid.uuid4()}"[-255:])
        try:
            if name not in self.groups:
                check_name(name)
            if not self.sessions[0] <= ask.session_ms <= self.sessions[1]:
                raise Refused(Fault.INVALID_SESSION_TIMEOUT)
            if ask.member_id and name not in self.groups:
                self.check_free(name)
                raise Refused(Fault.UNKNOWN_MEMBER_ID)
            _check_own(ask.instance_id)
            if len(ask.protocol_type) > LONGEST_NAME:
                raise Refused(Fault.INCONSISTENT_GROUP_PROTOCOL)
            names = taken(ask.instance_id, ask.client_id, ask.client_host, ask.protocol_type)
            self.check_room(EACH_MEMBER + names + brought(ask.protocols), name, ask.member_id)
            if self.runtime.stopped:
                raise Refused(Fault.COORDINATOR_NOT_AVAILABLE)
            group = self.make(name)
            self.own(group, ask.member_id)
            replies = self._join(group, later, fresh)
        except Refused as refusal:
            later.resolve(Joined(refusal.fault, ask.member_id))
        else:
            self.after(group, replies)
        return later

    def _join(self, group: KafkaGroup, later: Later[Joined], ask: Join) -> list[Reply]:
        """Gives the answers that are known at once; others are in the membership's `out`. Raises Refused."""
        membership, now = group.membership, self.now()
        if isinstance(membership, ModernGroup) and not membership.empty:
            self.learn_special(subscribed_topics(ask.protocols[0][1]) or () if ask.protocols else ())
            if not (self.policy.down and replaces_last(membership, ask)):
                return [Reply(later, mixed.join(membership, now, ask, self.topics))]
            membership = downgrade_for(membership, ask, self.rules, now, self.topics)
            group.move_to(membership)
        elif isinstance(membership, ModernGroup):
            epoch, membership = membership.epoch, ClassicGroup(self.rules)
            membership.generation = epoch
            group.move_to(membership)
        membership.join(now, later, ask)
        return []

    def sync(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
    ) -> Later[SyncAnswer]:
        """SyncGroup: answered when the leader has assigned."""
        later: Later[SyncAnswer] = Later()
        group = self.groups.get(name)
        if group is None:
            later.resolve(SyncAnswer(Fault.UNKNOWN_MEMBER_ID if name else Fault.INVALID_GROUP_ID))
        elif self.runtime.stopped:
            later.resolve(SyncAnswer(Fault.COORDINATOR_NOT_AVAILABLE))
        elif isinstance(group.membership, ClassicGroup):
            group.membership.sync(
                self.now(), later, member_id, generation, instance_id, protocol_type, protocol, assignments
            )
            self.after(group)
        else:
            who = (member_id, instance_id, generation)
            try:
                synced = mixed.sync(group.membership, self.now(), who, protocol_type, protocol, self.topics)
            except Refused as refusal:
                synced = SyncAnswer(refusal.fault)
            self._attend(group)
            self._reply(name, [(later, synced)])
        return later

    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> Fault:
        group = self.groups.get(name)
        if group is None:
            return Fault.UNKNOWN_MEMBER_ID if name else Fault.INVALID_GROUP_ID
        membership, now = group.membership, self.now()
        if isinstance(membership, ClassicGroup):
            fault = membership.heartbeat(now, member_id, generation, instance_id)
        else:
            try:
                fault = mixed.heartbeat(membership, now, member_id, instance_id, generation, self.topics)
            except Refused as refusal:
                fault = refusal.fault
            if not membership.saved:
                self.after(group)
        self._attend(group)
        return fault

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[Fault]:
        """LeaveGroup. `leaving`: (member id, instance id) of each; gives a fault for each."""
        group = self.groups.get(name)
        if group is None:
            return [Fault.UNKNOWN_MEMBER_ID if name else Fault.INVALID_GROUP_ID for _ in leaving]
        if isinstance(group.membership, ClassicGroup):
            faults = group.membership.leave(self.now(), leaving)
        else:
            faults = [group.membership.remove(*each) for each in leaving]
        self.after(group)
        return faults

    # --- KIP-848

    @staticmethod
    def new_member_id() -> str:
        return str(uuid.uuid4())

    def unmatched(self, name: str, pattern: str | None = None) -> list[TopicRegex]:
        """The patterns of this group's members, and this one that a member brings, that have to be matched with the
        topics before a member is served. One that is refused is not among them."""
        group, topics = self.groups.get(name), self.topics
        there = group.membership.behind(topics) if group and isinstance(group.membership, ModernGroup) else []
        if pattern:
            with suppress(Refused):
                if (regex := name_regex.topic_regex(pattern)).is_behind(topics):
                    there.append(regex)
        return there

    def match(self, name: str, pattern: str | None = None) -> Iterator[None]:
        """Matches the patterns that `unmatched` tells with all topics, one topic in each step. Topics that are made
        meanwhile are among them."""
        while behind := self.unmatched(name, pattern):
            for regex in behind:
                yield from regex.match(self.topics)

    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]:
        """ConsumerGroupHeartbeat. The Later gives the answer, or the error that refuses it."""
        return self.beat_in(name, beat, self._for_beat)

    def beat_in(
        self, name: str, beat: Beat, group_for: Callable[[str, Beat], KafkaGroup]
    ) -> Later[Beaten | KrappyError]:
        """A heartbeat in the group that `group_for` gives. Raises nothing."""
        later: Later[Beaten | KrappyError] = Later()
        try:
            if self.runtime.stopped:
                raise Refused(Fault.COORDINATOR_NOT_AVAILABLE)
            if not name:
                raise Refused(Fault.INVALID_REQUEST, "GroupId can't be empty")
            if beat.epoch == 0 or beat.topics is not None:
                _check_own(beat.member_id, beat.instance_id, beat.rack)
                self.check_room(EACH_MEMBER + taken(beat.regex, *(beat.topics or ())), name, beat.member_id)
            _pattern = self.check_pattern(beat.regex) if beat.regex else None  # kept until the member has it
            group = group_for(name, beat)
            if beat.epoch == JOINING or beat.topics is not None:
                self.own(group, beat.member_id)
            if name in self.groups:
                self.learn_special(beat.topics or ())
            assert isinstance(group.membership, ModernGroup)
            try:
                beaten = group.membership.beat(self.now(), beat, self.topics)
            finally:
                changed = bool(group.membership.dirty) or not group.membership.saved
                failed = self.after(group) if changed or group.forgettable else None
                self._attend(group)
        except Refused as refusal:
            later.resolve(refusal)
            return later
        if failed is not None:
            later.resolve(failed)
        else:
            self._reply(name, [(later, beaten)])
        return later

    def _for_beat(self, name: str, beat: Beat) -> KafkaGroup:
        """The KIP-848 group of this name. A first heartbeat makes it, or turns a classic group into it."""
        group = self.groups.get(name)
        if beat.epoch != 0:
            group = self.find(name)
        elif group is None:
            group = self.make(name)
        classic = group.membership
        if isinstance(classic, ModernGroup):
            return group
        if beat.epoch != 0 or not (classic.empty or self.policy.up):
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"'{name:.249}' is not a consumer group: it is a classic one")
        if classic.empty:
            membership = ModernGroup(self.settings.rules(name))
            membership.epoch = membership.target_epoch = classic.generation
        else:
            check_beat(beat)  # an invalid heartbeat must not convert the group
            if beat.regex:
                name_regex.topic_regex(beat.regex)
            self.learn_special(classic.topics() or ())
            membership = upgrade(classic, self.settings.rules(name), self.now(), self.topics)
        group.move_to(membership)
        for reply in classic.out:
            reply.token.resolve(reply.answer)
        return group

    # --- what follows

    def rang(self, group: KafkaGroup, now: int) -> None:
        """A timer of the group has ended: a session's, or a rebalance's."""
        if not self.closed:
            group.membership.tick(now)
            self.after(group)

    def after(self, group: KafkaGroup, answers: Sequence[Reply] = ()) -> KrappyError | None:
        """Call it after every change of a membership: stores the change, answers waiting members, sets the alarm.

        Gives the error that kept it from being stored, if any; the answers have it too.
        """
        membership = group.membership
        if isinstance(membership, ModernGroup) and self.policy.down and only_classic(membership):
            membership = downgrade(membership, self.rules, self.now(), self.topics)
            group.move_to(membership)
        if membership.empty and group.empty_since is None:
            group.empty_since, membership.saved = self.runtime.clock.steady_ms(), False
        elif not membership.empty and group.empty_since is not None:
            group.empty_since, membership.saved = None, False
        replies = [*answers]
        if isinstance(membership, ClassicGroup):
            replies += membership.out
            membership.out = []
        failed = None
        if not membership.saved or (isinstance(membership, ModernGroup) and membership.dirty):
            head, changed = None if membership.saved else group.head(), group.changed_members()
            try:
                self.store.write(GroupChange(group.name, head, members=changed))
                membership.saved = True
            except KrappyError as error:
                group.not_kept(changed)
                self.runtime.report("group_write_failed", group=group.name, error=str(error))
                failed = error
                replies = [_failed(reply) for reply in replies]
        self.count(group)
        self._attend(group)
        if group.forgettable and not membership.turns:  # it never had a member
            try:
                self.forget(group)
            except KrappyError as error:  # the next check of offsets forgets it
                self.runtime.report("group_write_failed", group=group.name, error=str(error))
        self._reply(group.name, replies)
        return failed

    def _reply(self, name: str, answers: Sequence[tuple[Later[Any], Any]]) -> None:
        """Gives the answers once all that they can say of the group is durable."""
        if answers and self.store.is_behind(name):
            self.runtime.spawn(self._resolve_written, name, answers)
            return
        for later, answer in answers:
            later.resolve(answer)

    async def _resolve_written(self, name: str, answers: Sequence[tuple[Later[Any], Any]]) -> None:
        try:
            await self.store.written(name).wait()
        except KrappyError as error:
            if not self.runtime.stopped:  # else the members ask again once the broker is back
                self.runtime.report("group_write_failed", error=str(error))
            for later, answer in answers:
                later.resolve(error if isinstance(answer, Beaten) else _failed(Reply(later, answer)).answer)
        else:
            for later, answer in answers:
                later.resolve(answer)

    def _attend(self, group: KafkaGroup) -> None:
        if group.membership.wake is not None:
            self._alarms.set(group, group.membership.wake)

    # --- transactions and topics

    async def stage_offsets(
        self,
        name: str,
        producer_id: int,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[At, Offset],
    ) -> None:
        """TxnOffsetCommit: these become the group's offsets if the producer's transaction commits. Durable on return.

        The caller has checked the producer's epoch and transaction. Raises Refused, StorageError.
        """
        await self.offsets.stage(name, producer_id, member_id, generation, instance_id, offsets)

    async def complete_transaction(self, name: str, producer_id: int, commit: bool) -> None:
        """Ends a producer's transaction: commits the offsets that it staged, or drops them. A second call does nothing.

        With one broker it is durable after the next sync. If a crash comes before, it is done again: the decision is on
        disk. In a cluster it is durable on return. Raises StorageError, CoordinatorNotAvailable.
        """
        self.offsets.complete(name, producer_id, commit)
        if self.replicated:
            await self.store.written(name).wait()

    def check_loaded(self, index: int) -> None:
        """In a cluster: raises CoordinatorNotAvailable unless this broker coordinates the groups of this partition of
        their topic."""
        if self._replicated is not None:
            self._replicated.table_at(index)

    def settle(self, index: int, producer_id: int, commit: bool) -> Later[None]:
        """As `complete_transaction`, in a cluster, for all groups of a partition of their topic. The Later is resolved
        once it is durable. Raises StorageError, CoordinatorNotAvailable."""
        assert self._replicated is not None
        table = self._replicated.table_at(index)
        for group in [each for each in self.groups.values() if producer_id in each.pending]:
            if self._replicated.index_of(group.name) == index:
                self.offsets.complete(group.name, producer_id, commit)
        return table.written()

    async def forget_topic(self, topic: str, id: bytes) -> None:
        """Deletes all groups' positions in a deleted topic. Durable after the next sync."""
        await self.offsets.forget_topic(topic, id)


def _answer(group: KafkaGroup, fault: Fault) -> None:
    """Answers the group's waiting members with this fault."""
    if isinstance(group.membership, ClassicGroup):
        for member in group.membership.members.values():
            for later, answer in ((member.join, Joined(fault, member.id)), (member.sync, SyncAnswer(fault))):
                if later is not None:
                    later.resolve(answer)


def _failed(reply: Reply) -> Reply:
    if isinstance(reply.answer, Joined):
        return Reply(reply.token, Joined(Fault.COORDINATOR_NOT_AVAILABLE, reply.answer.member_id))
    return Reply(reply.token, SyncAnswer(Fault.COORDINATOR_NOT_AVAILABLE))


def _check_own(*names: str | None) -> None:
    """Raises Refused when an id that a client chose is too long."""
    if any(name is not None and len(name) > LONGEST_NAME for name in names):
        raise Refused(
            Fault.INVALID_REQUEST, f"a member's id, instance id or rack has more than {LONGEST_NAME} characters"
        )
