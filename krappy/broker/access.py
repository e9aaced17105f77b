"""The one door from a request to everything that has a name: topics, groups, transactional ids, jobs, the cluster.

Each call names the operation, so that one place decides who may do what. Without an authorizer everybody may do
everything. With one, what is not allowed is refused with the same text whether it exists or not, and lists leave it
out. Without DESCRIBE, a topic is not found by its id. The name of a table (`TOPIC@latest`) counts as the name of its
topic.

Internal topics are the broker's. Nobody who comes through this door writes to one, changes its settings or partitions,
empties it or deletes it (CHANGES). No ACL allows that. It is so without an authorizer, too, and whether the topic
exists yet or not. Reading one needs READ, as for other topics. The topic of staged jobs has events of all topics, so
only brokers read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from krappy.broker.kafka_groups.elsewhere import GroupsElsewhere
from krappy.broker.latest.table_topic import table_topic, table_topic_by_id
from krappy.broker.topics.internal_topics import JOBS, OFFSETS, SHARES, TRANSACTIONS
from krappy.broker.topics.moves import Moves
from krappy.core.cluster.placement import Placement
from krappy.core.security.acl import OPERATIONS
from krappy.core.security.operations import CLUSTER_NAME, Grant, Op, Resource
from krappy.core.transactions import Transaction
from krappy.errors import AuthorizationFailed, InvalidTopic, SecurityDisabled, UnknownTopic
from krappy.ports import MOST_LEASES, GroupFacts, Layer, Listed, MemberFacts, PartitionPort, StagedJobRow
from krappy.ports.audit import Change
from krappy.settings.topic_table import Changes
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.broker.authorizer import Authorizer, OpenGrants, PrincipalGuard
    from krappy.broker.broker import LocalBroker
    from krappy.broker.client_quotas import ClientQuotas
    from krappy.broker.groups.groups import GroupCoordinator
    from krappy.broker.groups.share_partitions import SharePartitions
    from krappy.broker.groups.share_states import ShareStates
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.latest.table_topic import TableTopic
    from krappy.broker.staging.staging import StagingCoordinator
    from krappy.broker.tables.snapshots import Snapshots
    from krappy.broker.topics.internal_topics import InternalTopic
    from krappy.broker.topics.topic import Topic
    from krappy.broker.transactions.participant import TransactionParticipant
    from krappy.broker.transactions.transactions import TransactionCoordinator
    from krappy.ports.quotas import PayerPort


# What nobody does to an internal topic. TopicNames refuses to create one.
CHANGES = frozenset({Op.WRITE, Op.ALTER, Op.ALTER_CONFIGS, Op.DELETE})


class Access:
    """The door for one connection. A method raises AuthorizationFailed for what is not allowed, unless its docstring
    says otherwise. A method that is given a topic and an operation of CHANGES raises InvalidTopic if the topic is
    internal."""

    def __init__(self, broker: LocalBroker, guard: PrincipalGuard | None, payer: PayerPort | None = None) -> None:
        """`guard`: None: everything is allowed. `payer`: who pays for what has a quota; None: nobody."""
        self._broker = broker
        self._topics = broker.topics
        self._guard = guard
        self._payer = payer
        self._audit = broker.audit

    @property
    def version(self) -> int:
        """Rises when what this door allows may have changed."""
        return 0 if self._guard is None else self._guard.version

    @property
    def sees(self) -> Callable[[str], bool] | None:
        """Whether it may be told that a topic of this name exists; None: always."""
        return None if self._guard is None else self._guard.sees

    def may(self, resource: Resource, name: str, op: Op) -> bool:
        guard = self._guard
        if guard is None:
            return True
        if resource is Resource.TOPIC:
            name = self._topics.table_of(name) or name
            if op is Op.CREATE and guard.allows(Grant(Resource.CLUSTER, CLUSTER_NAME, op)):
                return True
            if name == JOBS and op is Op.READ:
                return guard.allows(Grant(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION))
        return guard.allows(Grant(resource, name, op))

    def check(self, resource: Resource, name: str, op: Op) -> None:
        if self._guard is not None and not self.may(resource, name, op):
            raise self._guard.refusal(Grant(resource, name, op))
        if resource is Resource.TOPIC and op in CHANGES and self._topics.is_internal(name):
            raise InvalidTopic(f"'{name:.249}' is an internal topic: it can only be read")
        if self._audit.allowing and self._guard is not None:
            self._audit.allowed(self._guard.principal, Grant(resource, name, op))

    def denies(self, resource: Resource, name: str, op: Op) -> bool:
        """Whether `check` raises AuthorizationFailed, for a caller that answers a refusal itself."""
        try:
            self.check(resource, name, op)
        except AuthorizationFailed:
            return True
        return False

    def check_topics(self, names: Iterable[str], op: Op, owner: str) -> None:
        """As `check`, for the topics of `owner`, a group or a job. A refusal does not name a topic that may not be
        described."""
        for name in names:
            if self._guard is not None and not self.may(Resource.TOPIC, name, op):
                refusal = self._guard.refusal(Grant(Resource.TOPIC, name, op))
                if not self._sees(name):
                    who = f"{self._guard.principal!s:.300}"
                    refusal = type(refusal)(f"{who} may not do this: it needs {op.name} on each topic of {owner}")
                raise refusal
            self.check(Resource.TOPIC, name, op)

    def _check_cluster(self, op: Op) -> None:
        self.check(Resource.CLUSTER, CLUSTER_NAME, op)

    def _sees(self, topic: str) -> bool:
        return self.may(Resource.TOPIC, topic, Op.DESCRIBE)

    def operations(self, resource: Resource, name: str) -> frozenset[Op]:
        """The operations on this resource that are allowed."""
        guard = self._guard
        return frozenset(op for op in OPERATIONS[resource] if guard is None or guard.allows(Grant(resource, name, op)))

    def hold(self, grants: Sequence[Grant], end: Callable[[AuthorizationFailed], None]) -> OpenGrants | None:
        """Notes what is in use: `end` is called when it is not allowed any more. Returns the note, or None if no note
        is needed."""
        return None if self._guard is None else self._guard.hold(grants, end)

    def acls(self, op: Op) -> Authorizer:
        """Raises SecurityDisabled."""
        self._check_cluster(op)
        if not self._broker.authorizer.on:
            raise SecurityDisabled("No Authorizer is configured on the broker")
        return self._broker.authorizer

    def quotas(self, op: Op) -> ClientQuotas:
        self._check_cluster(op)
        return self._broker.client_quotas

    def mutate(self, partitions: int) -> None:
        """Counts partitions that are about to be created or deleted. Raises Overloaded (controller_mutation_rate)."""
        if self._payer is not None and self._broker.client_quotas.on:
            self._payer.mutate(partitions)

    # --- topics

    def topic(self, name: str, op: Op) -> Topic:
        """Raises UnknownTopic."""
        self.check(Resource.TOPIC, name, op)
        found = self._topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return found

    def find_topic(self, name: str, op: Op) -> Topic | None:
        self.check(Resource.TOPIC, name, op)
        return self._topics.get(name)

    def find_topic_by_id(self, id: bytes, op: Op) -> Topic | None:
        """None also for one that may not be described."""
        found = self._broker.topics.by_id.get(id)
        if found is None or not self._sees(found.name):
            return None
        self.check(Resource.TOPIC, found.name, op)
        return found

    def followed_topic(self, name: str, id: bytes | None, op: Op) -> Topic | None:
        """A topic, by its id or its name, also an internal one, for another broker (CLUSTER_ACTION)."""
        self._check_cluster(op)
        return self._topics.get(name) if id is None else self._broker.topics.by_id.get(id)

    def topics(self, op: Op) -> Mapping[str, Topic]:
        """The topics on which this operation is allowed, by name."""
        if self._guard is None:
            return self._topics
        return {name: topic for name, topic in self._topics.items() if self.may(Resource.TOPIC, name, op)}

    async def topic_for_producer(self, name: str, op: Op = Op.WRITE) -> Topic:
        """The topic. If it is absent and auto_create_topics is on, it is created with default settings
        (CREATE). Raises UnknownTopic, InvalidTopic, …"""
        self.check(Resource.TOPIC, name, op)
        if name not in self._topics and self._broker.config.auto_create_topics:
            self.check(Resource.TOPIC, name, Op.CREATE)
            self.mutate(self._broker.config.default_partitions)
        return await self._broker.topic_for_producer(name)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Any],
        *,
        if_absent: bool = False,
        replicas: Placement | None = None,
    ) -> tuple[Topic, bool]:
        """CREATE. The topic, and whether it was created now. `replicas`: the brokers of each partition; None: `place`
        chooses them. Raises TopicExists, InvalidTopic, …"""
        self.check(Resource.TOPIC, name, Op.CREATE)
        if name not in self._topics:
            self.check_new_name(name)
            self.mutate(max(1, partitions))
        return await self._broker.create_topic(name, partitions, config, if_absent=if_absent, replicas=replicas)

    def _change(self, topic: str) -> AbstractContextManager[Change]:
        """Around a change of a topic: the change goes on, and stands in the audit log, even if its sender leaves."""
        return self._audit.change("topic", [topic], self._broker.catalog.told)

    def check_new_name(self, name: str) -> None:
        """Raises InvalidTopic for a name that a new topic can't have. If the name collides with that of a topic, the
        error names this topic only to those who may describe it."""
        self._broker.names.check(name, sees=self._sees)

    def creating(self, name: str) -> LocalBroker:
        """The broker, for a caller that creates this topic (CREATE)."""
        self.check(Resource.TOPIC, name, Op.CREATE)
        return self._broker

    def topic_layers(self) -> Mapping[str, Sequence[Layer]]:
        """The defaults that were set for topics' settings, to be shown with a topic's settings."""
        return self._broker.dynamic.topic_layers()

    async def alter_topic(
        self, name: str, config: Changes | None, partitions: int | None, replicas: Placement | None = None
    ) -> None:
        """ALTER_CONFIGS for its settings, ALTER for its partitions. `replicas`: the brokers of each new partition.
        Raises UnknownTopic, …"""
        if config is not None or partitions is None:
            self.check(Resource.TOPIC, name, Op.ALTER_CONFIGS)
        if partitions is not None:
            self.check(Resource.TOPIC, name, Op.ALTER)
        await self._broker.changes.hear_of(name)
        if partitions is not None:
            there = self._topics.get(name)
            if there is not None and partitions > there.count:
                self.mutate(partitions - there.count)
        with self._change(name):
            await self._broker.alter_topic(name, config, partitions, replicas)

    async def topic_to_change(self, name: str, op: Op) -> Topic | None:
        """As `find_topic`, for a change: a topic that another broker has made just now is there."""
        self.check(Resource.TOPIC, name, op)
        await self._broker.changes.hear_of(name)
        return self._topics.get(name)

    async def topics_to_change(self, ids: Iterable[bytes], op: Op) -> list[Topic | None]:
        """As `find_topic_by_id` of each, for a change: a topic that another broker has made just now is there."""
        ids = list(ids)
        found = [self.find_topic_by_id(id, op) for id in ids]
        if None not in found:
            return found
        await self._broker.changes.hear_of_all()
        return [self.find_topic_by_id(id, op) for id in ids]

    async def delete_topic(self, name: str, id: bytes | None = None) -> None:
        """DELETE. `id`: the topic's id; a topic of this name with another id is not deleted. Raises UnknownTopic."""
        self.check(Resource.TOPIC, name, Op.DELETE)
        await self._broker.changes.hear_of(name)
        there = self._topics.get(name)
        if there is not None:
            self.mutate(there.count)
        with self._change(name):
            await self._broker.delete_topic(name, id)

    async def delete_records(self, partition: PartitionPort, before: int) -> int:
        """DELETE on its topic. As `Partition.delete_records`."""
        self.check(Resource.TOPIC, partition.topic, Op.DELETE)
        was = partition.start_offset
        try:
            return await partition.delete_records(before)
        finally:  # even if whoever asked is gone
            if (now := partition.start_offset) != was:
                self._audit.changed("records", f"{partition.topic}-{partition.index}", {"start": was}, {"start": now})

    # --- what Kafka's clients read as if it were a topic

    def table_of(self, name: str) -> str | None:
        """The name of the topic whose table this name stands for. None if it is a topic's own name, or stands for no
        table."""
        return self._topics.table_of(name)

    def find_special(self, name: str, op: Op, state: dict[str, Any]) -> TableTopic | InternalTopic | None:
        """A topic's table (`TOPIC@latest`), or an internal topic. `state`: the connection's."""
        broker = self._broker
        self.check(Resource.TOPIC, name, op)
        found = table_topic(self._topics, broker.latest, name, state, broker.config.latest_alias)
        return found or broker.internal.find(name)

    def find_special_by_id(self, id: bytes, op: Op, state: dict[str, Any]) -> TableTopic | InternalTopic | None:
        """None also for one that may not be described."""
        broker = self._broker
        found: TableTopic | InternalTopic | None = broker.internal.by_id.get(id)
        found = found or table_topic_by_id(broker.topics.by_id, broker.latest, id, state, broker.config.latest_alias)
        if found is None or not self._sees(found.name):
            return None
        self.check(Resource.TOPIC, found.name, op)
        return found

    def internal_topics(self, op: Op) -> list[InternalTopic]:
        """Kafka's internal topics that are in use, and so are listed."""
        listed = [each for each in self._broker.internal.listed() if each.name not in self._topics]
        return [each for each in listed if self.may(Resource.TOPIC, each.name, op)]

    # --- groups

    def group(self, name: str, op: Op) -> GroupCoordinator:
        """The coordinator of the native group of this name; it also describes, moves and deletes the Kafka groups that
        this broker coordinates. Raises NotCoordinator, CoordinatorNotAvailable."""
        self.check(Resource.GROUP, name, op)
        if not self._broker.kafka_groups.native.has(name):
            self._check_coordinated(SHARES, name)
        return self._broker.groups

    def each_group(self, op: Op, only: str | None = None) -> Iterator[GroupFacts]:
        """All groups of either protocol, described; or `only` that one."""
        found = self._broker.groups.each_group(only)
        if self._guard is None:
            return found
        return (self.told(each) for each in found if self.may(Resource.GROUP, each["group"], op))

    def groups_epoch(self) -> int:
        """A number that rises whenever another broker begins to coordinate some groups. While all brokers give the same
        number, their `each_group` give all groups together, each once. Raises CoordinatorLoading,
        CoordinatorNotAvailable while nobody coordinates some groups."""
        return self._broker.kafka_groups.admin.epoch()

    def describe_group(self, name: str) -> GroupFacts:
        """A group of either protocol with its members and what they have leased, without the topics that may not be
        described. Raises UnknownGroup, NotCoordinator, CoordinatorNotAvailable."""
        groups = self.group(name, Op.DESCRIBE)
        described = groups.describe(name)
        leases: dict[str, list[tuple[str, int, int, int, int]]] = {}
        for member, topic, partition, first, last, due in groups.held(name):
            some = leases.setdefault(member, [])
            if len(some) < MOST_LEASES:
                some.append((topic, partition, first, last, due))
        for each in described["members"]:
            each["leases"] = leases.get(each["name"], [])
        return self.told(described)

    def kafka_group(self, name: str, op: Op) -> KafkaGroups | GroupsElsewhere:
        """The coordinator of the Kafka group of this name. If another broker coordinates it, or this is not allowed,
        the coordinator that is returned refuses everything."""
        if self._guard is not None and not self.may(Resource.GROUP, name, op):
            refusal = self._guard.refusal(Grant(Resource.GROUP, name, op))
            return GroupsElsewhere(self._broker.kafka_groups, refusal)
        why = self._broker.coordinators.elsewhere(OFFSETS, name)
        return self._broker.kafka_groups if why is None else GroupsElsewhere(self._broker.kafka_groups, why)

    def told(self, group: GroupFacts) -> GroupFacts:
        """A group's description, without the topics that may not be described. If topics are hidden, `leased` counts
        only the leases that are listed."""
        if self._guard is None:
            return group
        seen: GroupFacts = {
            **group,
            "topics": [name for name in group["topics"] if self._sees(name)],
            "partitions": [each for each in group["partitions"] if self._sees(each["topic"])],
        }
        if "members" in group:
            hides = len(seen["topics"]) < len(group["topics"])
            seen["members"] = [self._told_member(each, hides=hides) for each in group["members"]]
        return seen

    def _told_member(self, member: MemberFacts, *, hides: bool) -> MemberFacts:
        leases = [lease for lease in member.get("leases", []) if self._sees(lease[0])]
        leased = sum(last - first + 1 for _, _, first, last, _ in leases) if hides else member["leased"]
        return {**member, "leased": leased, "leases": leases}

    def listed_groups(self, op: Op) -> Iterator[Listed]:
        """All groups that this broker coordinates, as Kafka's tools list them. As in Kafka, `op` on the cluster is
        enough for that. Raises CoordinatorLoading while some groups are not loaded."""
        found = self._broker.kafka_groups.admin.list_groups()
        if self._guard is None or self.may(Resource.CLUSTER, CLUSTER_NAME, op):
            return found
        return (each for each in found if self.may(Resource.GROUP, each.name, op))

    def configured_groups(self, op: Op) -> list[str]:
        """The Kafka groups that have settings."""
        return [name for name in self._broker.kafka_groups.settings.names() if self.may(Resource.GROUP, name, op)]

    def share_partitions(self, name: str, op: Op) -> SharePartitions:
        """What the share group of this name has leased from the partitions that this broker leads."""
        self.check(Resource.GROUP, name, op)
        return self._broker.groups.shares

    def share_states(self, op: Op) -> ShareStates:
        """What this broker keeps of share groups, for the brokers that coordinate them, or lead partitions
        (CLUSTER_ACTION)."""
        self._check_cluster(op)
        return self._broker.groups.states

    # --- what is published all or nothing

    def transactional_id(self, name: str, op: Op) -> TransactionCoordinator:
        """The coordinator of this transactional id. Raises NotCoordinator, CoordinatorNotAvailable."""
        self.check(Resource.TRANSACTIONAL_ID, name, op)
        self._check_coordinated(TRANSACTIONS, name)
        return self._broker.transactions

    def participant(self, name: str, op: Op) -> TransactionParticipant:
        """This broker's part in the transactions of this transactional id. Any broker may coordinate them."""
        self.check(Resource.TRANSACTIONAL_ID, name, op)
        return self._broker.participant

    def participants(self, op: Op) -> TransactionParticipant:
        """This broker's part in all transactions, for the brokers that coordinate them (CLUSTER_ACTION), and
        for tools that abort what hangs (ALTER)."""
        self._check_cluster(op)
        return self._broker.participant

    def ending(self, partitions: Iterable[TopicPartition]) -> AbstractContextManager[Change]:
        """Around the end of transactions in these partitions, which somebody asks for by hand."""
        named = {str(each): each for each in partitions}

        def opened(name: str) -> dict[str, int] | None:
            topic = self._topics.get(named[name].topic)
            partition = None if topic is None else topic.local.get(named[name].partition)
            return None if partition is None else {str(id): at for id, at in partition.stability.open.items()} or None

        return self._audit.change("open transactions", list(named), opened)

    def transactions(self, op: Op) -> list[Transaction]:
        """The transactions of all transactional ids that this broker coordinates. Raises CoordinatorLoading."""
        return [each for each in self._broker.transactions.list() if self.may(Resource.TRANSACTIONAL_ID, each.name, op)]

    def job(self, name: str, op: Op) -> StagingCoordinator:
        """The coordinator of the staged job of this name, whose name counts as a transactional id. Raises
        NotCoordinator, CoordinatorNotAvailable."""
        self.check(Resource.TRANSACTIONAL_ID, name, op)
        self._check_coordinated(JOBS, name)
        return self._broker.staging

    def jobs(self, op: Op) -> list[StagedJobRow]:
        """The staged jobs that are not over."""
        return [each for each in self._broker.staging.list() if self.may(Resource.TRANSACTIONAL_ID, each.job, op)]

    def _check_coordinated(self, topic: str, name: str) -> None:
        why = self._broker.coordinators.elsewhere(topic, name)
        if why is not None:
            raise why

    # --- the rest

    def snapshots(self, id: str, op: Op) -> Snapshots:
        """The holder of the snapshot of this id. To read the snapshot needs READ on its topic. To keep or close it
        needs the same for its owner, and ALTER on the cluster for others. To know its id is not enough: who may not
        have it is told that it is gone. Raises SnapshotGone."""
        held = self._broker.snapshots
        found = held.get(id)
        if self._guard is None or found is None:
            return held
        allowed = self.may(Resource.TOPIC, found.topic, Op.READ)
        if op is not Op.READ:
            owned = allowed and found.owner == str(self._guard.principal)
            allowed = owned or self.may(Resource.CLUSTER, CLUSTER_NAME, op)
        if not allowed:
            raise held.gone(id)
        return held

    def moves(self, op: Op) -> Moves:
        """For changes of where partitions are, and who leads them."""
        self._check_cluster(op)
        return Moves(self._broker)

    def cluster(self, op: Op) -> LocalBroker:
        """For operations on the cluster, or on this broker, as a whole. IDEMPOTENT_WRITE is also allowed to everybody
        who may write to some topic (KIP-679)."""
        if not (
            op is Op.IDEMPOTENT_WRITE and self._guard is not None and self._guard.allows_any(Resource.TOPIC, Op.WRITE)
        ):
            self._check_cluster(op)
        return self._broker
