"""A topic as the broker runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from krappy.broker import strays, view_life
from krappy.broker.partition import Partition
from krappy.broker.strays import Pause, Strays
from krappy.errors import UnknownPartition
from krappy.store.catalog import Topic as StoredTopic
from krappy.topic_config import TopicConfig, effective
from krappy.types import text_id


class Topic:
    """What the catalog has of a topic, beside its partitions as they run."""

    def __init__(
        self, stored: StoredTopic, partitions: list[Partition], inherited: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`inherited`: defaults that the broker was given for all topics."""
        self.name = stored.name
        self.id = text_id(stored.id)
        self.uuid = stored.id  # the same as 16 bytes
        self.given = dict(stored.config)  # the settings that were set for it
        self.inherited = inherited
        self.defaults = stored.defaults  # those that are others for it than for a topic made now
        self.config = self.parse(self.given, inherited)
        self.partitions = partitions
        self.strays = Strays(partitions)
        self.deleted = False

    def parse(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> TopicConfig:
        """Its settings in force, with these. Raises InvalidConfig."""
        return TopicConfig.parse({**self.defaults, **inherited, **given})

    @property
    def settings(self) -> dict[str, str]:
        """All in force, as Kafka writes them."""
        return effective({**self.defaults, **self.inherited, **self.given})

    @property
    def forgets_by_old_default(self) -> bool:
        """Whether its events expire because it was made by a version with which all did, and nobody said otherwise."""
        said = {**self.inherited, **self.given}
        return self.config.delete and "retention.ms" in self.defaults and "retention.ms" not in said

    def outlives(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> bool:
        """Whether its table would outlive its events with these settings, and does not now. Raises InvalidConfig."""
        return view_life.outlives(self.config, self.parse(given, inherited))

    async def prepare(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> None:
        """To be awaited before these settings are kept. Raises InvalidConfig, StorageError."""
        config = self.parse(given, inherited)
        for partition in self.partitions:
            await partition.keep_absent(config)

    async def configure(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> None:
        """Other settings from now on. Raises InvalidConfig."""
        config = self.parse(given, inherited)
        self.strays.switching = self.strays.switching or config.view != self.config.view
        self.given, self.inherited, self.config = dict(given), inherited, config
        for partition in self.partitions:
            await partition.configure(config)
        self.strays.switching = False

    def partition(self, index: int) -> Partition:
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise UnknownPartition(f"'{self.name}' has partitions 0 to {len(self.partitions) - 1}, not {index}")

    @property
    def scattered(self) -> bool:
        """Whether a key may stand in another partition than its own: all of them have to be asked, then."""
        return bool(self.strays)

    async def newest(self, keys: Sequence[bytes], pause: Pause) -> tuple[list[int], list[bytes | None]]:
        """In which partition each key's newest entry stands, and the entry (strays.py)."""
        partitions = list(self.partitions)
        return await strays.newest(partitions, keys, pause, len(partitions))

    async def holders(self, key: bytes, pause: Pause) -> list[int]:
        """The partitions that have an entry of a key, a tombstone too."""
        return await strays.holders(list(self.partitions), key, pause)

    def describe_settings(self) -> dict[str, Any]:
        """Its id, the settings that were set for it, and all in force."""
        return {"id": self.id, "config": self.given, "settings": self.settings}

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.describe_settings(),
            "scattered": self.scattered,
            "partitions": [
                {
                    "partition": p.index,
                    "start": p.start_offset,
                    "end": p.log.end_offset,
                    "high_watermark": p.high_watermark,
                    "last_stable_offset": p.last_stable_offset,
                    "applied": p.applied,
                    "size": p.log.size,
                    "segments": len(p.log.segments),
                    "failed": p.offline or p.log_failed or None,
                    "view_failed": None if p.view_failed is None else str(p.view_failed),
                }
                for p in self.partitions
            ],
        }
