"""The one door from a request to whatever has a name: topics, groups, transactional ids, jobs, the cluster itself.

Whoever goes through it names the operation, so that one place decides who may do what. It allows everything for now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from krappy.broker.latest.table_topic import table_topic, table_topic_by_id
from krappy.core.security.operations import Op
from krappy.errors import UnknownTopic
from krappy.settings.topic_table import Changes

if TYPE_CHECKING:
    from krappy.broker.broker import LocalBroker
    from krappy.broker.groups.groups import GroupCoordinator
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.latest.table_topic import TableTopic
    from krappy.broker.staging.staging import StagingCoordinator
    from krappy.broker.tables.snapshots import Snapshots
    from krappy.broker.topics.internal_topics import InternalTopic
    from krappy.broker.topics.topic import Topic
    from krappy.broker.transactions.transactions import TransactionCoordinator


class Access:
    """Of one connection."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._topics = broker.topics

    # --- topics

    def topic(self, name: str, op: Op) -> Topic:
        """Raises UnknownTopic."""
        found = self._topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return found

    def find_topic(self, name: str, op: Op) -> Topic | None:
        return self._topics.get(name)

    def find_topic_by_id(self, id: bytes, op: Op) -> Topic | None:
        return self._broker.topics.by_id.get(id)

    def topics(self, op: Op) -> Mapping[str, Topic]:
        """Those with which this may be done, by name."""
        return self._topics

    async def topic_for_producer(self, name: str) -> Topic:
        """The topic (WRITE), created with default settings (CREATE) when the broker does that (auto_create_topics).
        Raises UnknownTopic, …"""
        return await self._broker.topic_for_producer(name)

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, Any], *, if_absent: bool = False
    ) -> tuple[Topic, bool]:
        """CREATE. The topic, and whether it was created now. Raises TopicExists, InvalidTopic, …"""
        return await self._broker.create_topic(name, partitions, config, if_absent=if_absent)

    async def alter_topic(self, name: str, config: Changes | None, partitions: int | None) -> None:
        """ALTER_CONFIGS for its settings, ALTER for its partitions. Raises UnknownTopic, …"""
        await self._broker.alter_topic(name, config, partitions)

    async def delete_topic(self, name: str, id: bytes | None = None) -> None:
        """DELETE. `id`: of the one that is meant. Raises UnknownTopic."""
        await self._broker.delete_topic(name, id)

    # --- what Kafka's clients read like a topic

    def table_of(self, name: str) -> str | None:
        """The topic, if there is one, whose table this name stands for; None for a topic's own name, and any other."""
        return self._topics.table_of(name)

    def find_special(self, name: str, op: Op, state: dict[str, Any]) -> TableTopic | InternalTopic | None:
        """A topic's table, `TOPIC@latest`, or an internal topic. `state`: of the connection."""
        broker = self._broker
        found = table_topic(self._topics, broker.latest, name, state, broker.config.latest_alias)
        return found or broker.internal.by_name.get(name)

    def find_special_by_id(self, id: bytes, op: Op, state: dict[str, Any]) -> TableTopic | InternalTopic | None:
        broker = self._broker
        found = broker.internal.by_id.get(id)
        return found or table_topic_by_id(broker.topics.by_id, broker.latest, id, state, broker.config.latest_alias)

    def internal_topics(self, op: Op) -> list[InternalTopic]:
        """Those of Kafka's own that are listed."""
        return [each for each in self._broker.internal.listed() if each.name not in self._topics]

    # --- groups

    def group(self, name: str, op: Op) -> GroupCoordinator:
        """Who looks after the native group of this name, and so does this with it."""
        return self._broker.groups

    def each_group(self, op: Op) -> Iterator[dict[str, Any]]:
        """All groups of either protocol, described."""
        return self._broker.groups.each_group()

    def kafka_group(self, name: str, op: Op) -> KafkaGroups:
        """Who coordinates Kafka's group of this name."""
        return self._broker.kafka_groups

    def kafka_groups(self, op: Op) -> KafkaGroups:
        """Who knows those that this broker coordinates."""
        return self._broker.kafka_groups

    # --- what is published as a whole

    def transactional_id(self, name: str, op: Op) -> TransactionCoordinator:
        """Who coordinates the transactions of this id."""
        return self._broker.transactions

    def transactional_ids(self, op: Op) -> TransactionCoordinator:
        """Who knows those that this broker coordinates."""
        return self._broker.transactions

    def job(self, name: str, op: Op) -> StagingCoordinator:
        """Who keeps what is staged under the name of this job."""
        return self._broker.staging

    def jobs(self, op: Op) -> StagingCoordinator:
        return self._broker.staging

    # --- the rest

    def snapshots(self, op: Op) -> Snapshots:
        return self._broker.snapshots

    def cluster(self, op: Op) -> LocalBroker:
        """What is done to the cluster, or to this broker, as a whole."""
        return self._broker
