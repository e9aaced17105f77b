"""Which partitions a data folder should have. If its broker was alone, they are those of its catalog. If it was in a
cluster, they are the replicas that were made in the folder, because only ZooKeeper knows the cluster's topics."""

from __future__ import annotations

from dataclasses import dataclass

from krappy.settings.topic import TopicConfig
from krappy.store.catalog import LocalCatalog
from krappy.store.local_replicas import LocalReplicas
from krappy.store.meta import Meta


@dataclass(frozen=True)
class StoredPartition:
    """`number`: that of its view. `config`: in a cluster the defaults, because the topic's own are not in the
    folder."""

    topic: str
    index: int
    topic_id: bytes
    number: int
    config: TopicConfig

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.topic}-{self.index}"


def stored_partitions(meta: Meta, catalog: LocalCatalog) -> list[StoredPartition]:
    """The partitions by topic and index. Raises StorageError for a record that can't be read."""
    replicas = LocalReplicas(meta)
    if not replicas.cluster:
        return [
            StoredPartition(topic.name, index, topic.id, number, TopicConfig.parse(topic.config))
            for topic in catalog.list()
            for index, number in enumerate(topic.numbers)
        ]
    found, numbers = [], catalog.numbers
    for id, index in replicas.all():
        given = numbers.of(id)
        if index < len(given):  # else the topic was deleted, and this is its last trace
            found.append(StoredPartition(numbers.name(id), index, id, given[index], TopicConfig()))
    return sorted(found, key=lambda each: (each.topic, each.index, each.topic_id))
