"""What the scenarios need of an administration client: confluent-kafka's, for all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.clients.base import PATIENCE


def one(futures: Mapping[Any, Future[Any]]) -> Any:
    """The result of the only future; raises KafkaException."""
    (future,) = futures.values()
    return future.result(PATIENCE)


class Admin:
    def __init__(self, address: str) -> None:
        self.client = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def create(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Creates a topic; returns once all its partitions are served, which with Kafka is a moment after
        the answer."""
        one(self.client.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]))
        self.served(name, partitions)

    def served(self, name: str, partitions: int = 1) -> None:
        """Waits until a topic has its leaders: after it was created, or after a restart."""
        end = time.monotonic() + PATIENCE
        while True:
            found = self.client.list_topics(name, PATIENCE).topics[name]
            numbers = found.partitions.values()
            if found.error is None and len(numbers) == partitions and all(one.leader >= 0 for one in numbers):
                return
            assert time.monotonic() < end, f"{name} is not served: {found.error}"
            time.sleep(0.02)

    def delete(self, name: str) -> None:
        one(self.client.delete_topics([name]))

    def add_partitions(self, name: str, total: int) -> None:
        one(self.client.create_partitions([NewPartitions(name, total)]))

    def topics(self) -> dict[str, int]:
        """How many partitions each topic has."""
        found = self.client.list_topics(timeout=PATIENCE).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def config(self, name: str) -> dict[str, Any]:
        """A topic's settings: ConfigEntry by name."""
        found: dict[str, Any] = one(self.client.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
        return found

    def set_config(self, name: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        one(self.client.incremental_alter_configs([resource]))

    def offsets(self, name: str, partition: int, spec: OffsetSpec) -> int:
        found = one(self.client.list_offsets({TopicPartition(name, partition): spec}))
        return int(found.offset)

    def delete_records(self, name: str, partition: int, before: int) -> int:
        """The new start of the log."""
        found = one(self.client.delete_records([TopicPartition(name, partition, before)]))
        return int(found.low_watermark)
