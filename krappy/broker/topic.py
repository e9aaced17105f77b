"""A topic as the broker runs it."""

from __future__ import annotations

from typing import Any

from krappy.broker.partition import Partition
from krappy.errors import UnknownPartition
from krappy.store.catalog import Topic as StoredTopic
from krappy.store.catalog import text_id
from krappy.topic_config import TopicConfig, effective


class Topic:
    """What the catalog has of a topic, beside its partitions as they run."""

    def __init__(self, stored: StoredTopic, partitions: list[Partition]) -> None:
        self.name = stored.name
        self.id = text_id(stored.id)
        self.uuid = stored.id  # the same as 16 bytes
        self.given = dict(stored.config)  # the settings that were set for it
        self.config = TopicConfig.parse(stored.config)
        self.partitions = partitions
        self.deleted = False

    def partition(self, index: int) -> Partition:
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise UnknownPartition(f"'{self.name}' has partitions 0 to {len(self.partitions) - 1}, not {index}")

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "id": self.id,
            "config": self.given,
            "settings": effective(self.given),
            "partitions": [
                {
                    "partition": p.index,
                    "start": p.start_offset,
                    "end": p.log.end_offset,
                    "high_watermark": p.high_watermark,
                    "applied": p.applied,
                    "size": p.log.size,
                    "segments": len(p.log.segments),
                }
                for p in self.partitions
            ],
        }
