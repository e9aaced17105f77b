"""The one door from a request to everything that has a name: topics, groups, transactional ids, jobs, the cluster.

Each call names the operation, so that one place decides who may do what. For now it allows everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from krappy.broker.kafka_groups.elsewhere import GroupsElsewhere
from krappy.broker.latest.table_topic import table_topic, table_topic_by_id
from krappy.broker.topics.internal_topics import JOBS, OFFSETS, SHARES, TRANSACTIONS
from krappy.broker.topics.moves import Moves
from krappy.core.cluster.placement import Placement
from krappy.core.security.operations import Op
from krappy.errors import InvalidTopic, UnknownTopic
from krappy.ports import GroupFacts
from krappy.settings.topic_table import Changes

if TYPE_CHECKING:
    from krappy.broker.broker import LocalBroker
    from krappy.broker.groups.groups import GroupCoordinator
    from krappy.broker.groups.share_partitions import SharePartitions
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.latest.table_topic import TableTopic
    from krappy.broker.staging.staging import StagingCoordinator
    from krappy.broker.tables.snapshots import Snapshots
    from krappy.broker.topics.internal_topics import InternalTopic
    from krappy.broker.topics.topic import Topic
    from krappy.broker.transactions.participant import TransactionParticipant
    from krappy.broker.transactions.transactions import TransactionCoordinator


class Access:
    """The door for one connection."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._topics = broker.topics

    # --- topics

    def topic(self, name: str, op: Op) -> Topic:
        """Raises UnknownTopic, and InvalidTopic for a write to an internal topic."""
        found = self._topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        if op is Op.WRITE:
            _check_not_internal(found)
        return found

    def find_topic(self, name: str, op: Op) -> Topic | None:
        return self._topics.get(name)

    def find_topic_by_id(self, id: bytes, op: Op) -> Topic | None:
        return self._broker.topics.by_id.get(id)

    def topics(self, op: Op) -> Mapping[str, Topic]:
        """The topics on which this operation is allowed, by name."""
        return self._topics

    async def topic_for_producer(self, name: str) -> Topic:
        """The topic (WRITE). If it is absent and auto_create_topics is on, it is created with default settings
        (CREATE). Raises UnknownTopic, InvalidTopic, …"""
        found = await self._broker.topic_for_producer(name)
        _check_not_internal(found)
        return found

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Any],
        *,
        if_absent: bool = False,
        replicas: Placement | None = None,
    ) -> tuple[Topic, bool]:
        """CREATE. The topic, and whether it was created now. `replicas`: the brokers of each partition; None: as
        `place` has it. Raises TopicExists, InvalidTopic, …"""
        return await self._broker.create_topic(name, partitions, config, if_absent=if_absent, replicas=replicas)

    async def alter_topic(
        self, name: str, config: Changes | None, partitions: int | None, replicas: Placement | None = None
    ) -> None:
        """ALTER_CONFIGS for its settings, ALTER for its partitions. `replicas`: the brokers of each new partition.
        Raises UnknownTopic, …"""
        if partitions is not None:  # it would change who coordinates what
            _check_not_internal(self._topics.get(name))
        await self._broker.alter_topic(name, config, partitions, replicas)

    async def delete_topic(self, name: str, id: bytes | None = None) -> None:
        """DELETE. `id`: the topic's id; a topic of this name with another id is not deleted. Raises UnknownTopic."""
        _check_not_internal(self._topics.get(name))
        await self._broker.delete_topic(name, id)

    # --- what Kafka's clients read as if it were a topic

    def table_of(self, name: str) -> str | None:
        """The name of the topic whose table this name stands for. None for a topic's own name, and for others."""
        return self._topics.table_of(name)

    def find_special(self, name: str, op: Op, state: dict[str, Any]) -> TableTopic | InternalTopic | None:
        """A topic's table (`TOPIC@latest`), or an internal topic. `state`: the connection's."""
        broker = self._broker
        found = table_topic(self._topics, broker.latest, name, state, broker.config.latest_alias)
        return found or broker.internal.by_name.get(name)

    def find_special_by_id(self, id: bytes, op: Op, state: dict[str, Any]) -> TableTopic | InternalTopic | None:
        broker = self._broker
        found = broker.internal.by_id.get(id)
        return found or table_topic_by_id(broker.topics.by_id, broker.latest, id, state, broker.config.latest_alias)

    def internal_topics(self, op: Op) -> list[InternalTopic]:
        """Kafka's internal topics that are in use, and so are listed."""
        return [each for each in self._broker.internal.listed() if each.name not in self._topics]

    # --- groups

    def group(self, name: str, op: Op) -> GroupCoordinator:
        """The coordinator of the native group of this name; it also describes, moves and deletes the Kafka groups that
        this broker coordinates. Raises NotCoordinator, CoordinatorNotAvailable."""
        if not self._broker.kafka_groups.native.has(name):
            self._check_coordinated(SHARES, name)
        return self._broker.groups

    def each_group(self, op: Op) -> Iterator[GroupFacts]:
        """All groups of either protocol, described."""
        return self._broker.groups.each_group()

    def kafka_group(self, name: str, op: Op) -> KafkaGroups | GroupsElsewhere:
        """The coordinator of the Kafka group of this name; one that refuses everything if it is another broker."""
        why = self._broker.coordinators.elsewhere(OFFSETS, name)
        return self._broker.kafka_groups if why is None else GroupsElsewhere(self._broker.kafka_groups, why)

    def kafka_groups(self, op: Op) -> KafkaGroups:
        """The coordinator of all Kafka groups of this broker."""
        return self._broker.kafka_groups

    def share_partitions(self, name: str, op: Op) -> SharePartitions:
        """What the share group of this name has leased of the partitions that this broker leads."""
        return self._broker.groups.shares

    # --- what is published all or nothing

    def transactional_id(self, name: str, op: Op) -> TransactionCoordinator:
        """The coordinator of this transactional id. Raises NotCoordinator, CoordinatorNotAvailable."""
        self._check_coordinated(TRANSACTIONS, name)
        return self._broker.transactions

    def participant(self, name: str, op: Op) -> TransactionParticipant:
        """This broker's part in the transactions of this transactional id, which any broker may coordinate."""
        return self._broker.participant

    def participants(self, op: Op) -> TransactionParticipant:
        """Its part in all transactions, for the brokers that coordinate them (CLUSTER_ACTION)."""
        return self._broker.participant

    def transactional_ids(self, op: Op) -> TransactionCoordinator:
        """The coordinator of all transactional ids of this broker."""
        return self._broker.transactions

    def job(self, name: str, op: Op) -> StagingCoordinator:
        """The coordinator of the staged job of this name. Raises NotCoordinator, CoordinatorNotAvailable."""
        self._check_coordinated(JOBS, name)
        return self._broker.staging

    def jobs(self, op: Op) -> StagingCoordinator:
        return self._broker.staging

    def _check_coordinated(self, topic: str, name: str) -> None:
        why = self._broker.coordinators.elsewhere(topic, name)
        if why is not None:
            raise why

    # --- the rest

    def snapshots(self, op: Op) -> Snapshots:
        return self._broker.snapshots

    def moves(self, op: Op) -> Moves:
        """For changes of where partitions are, and who leads them."""
        return Moves(self._broker)

    def cluster(self, op: Op) -> LocalBroker:
        """For operations on the cluster, or on this broker, as a whole."""
        return self._broker


def _check_not_internal(topic: Topic | None) -> None:
    if topic is not None and topic.internal:
        raise InvalidTopic(f"'{topic.name}' is an internal topic: it can only be read")
