"""A topic as the broker runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from krappy.broker.partition import newest
from krappy.broker.partition.newest import Pause
from krappy.broker.partition.partition import Partition
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed, outlives
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY
from krappy.errors import KrappyError, NotLeader, UnknownPartition
from krappy.settings.topic import TopicConfig, effective
from krappy.store.catalog import StoredTopic as StoredTopic
from krappy.types import text_id


class Topic:
    """What the cluster knows of a topic (`image`), beside those of its partitions that this broker has (`local`)."""

    internal = False

    def __init__(
        self, stored: StoredTopic, image: TopicImage, inherited: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`inherited`: defaults that the broker was given for all topics."""
        self.name = stored.name
        self.id = stored.id  # 16 bytes
        self.see(image)
        self.given = dict(stored.config)  # the settings that were set for it
        self.inherited = inherited
        self.defaults = stored.defaults  # those that are others for it than for a topic made now
        self.config = self.parse(self.given, inherited)
        self.local: dict[int, Partition] = {}  # by index, in their order
        self.strays: Strays[Viewed] = Strays(self.local)
        self.deleted = False

    def see(self, image: TopicImage) -> None:
        """It is like this in the cluster from now on."""
        self.image = image
        self.count = len(image.partitions)

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
        return outlives(self.config, self.parse(given, inherited))

    def switches_view(self, given: Mapping[str, str]) -> bool:
        """Whether these settings turn its view on or off. Raises InvalidConfig."""
        return self.parse(given, self.inherited).view != self.config.view

    async def prepare(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> None:
        """To be awaited before these settings are kept. Raises InvalidConfig, StorageError."""
        config = self.parse(given, inherited)
        for partition in self.local.values():
            await partition.prepare(config)

    async def configure(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> None:
        """Other settings from now on. Raises InvalidConfig."""
        config = self.parse(given, inherited)
        self.strays.switching = self.strays.switching or config.view != self.config.view
        self.given, self.inherited, self.config = dict(given), inherited, config
        for partition in self.local.values():
            await partition.configure(config)
        self.strays.switching = False

    def led(self, index: int) -> Partition:
        """A partition that this broker leads. Raises NotLeader, UnknownPartition."""
        found = self.local.get(index)
        if found is not None and found.role is Role.LEADER:
            return found
        raise not_led(self.image, index)

    def is_offline(self, index: int) -> bool:
        """Whether this broker has the partition, and it is out of service."""
        found = self.local.get(index)
        return found is not None and bool(found.offline)

    def all_led(self) -> list[Partition]:
        """All partitions, by index, if this broker leads them. Raises NotLeader."""
        return [self.led(index) for index in range(self.count)]

    @property
    def scattered(self) -> bool:
        """Whether a key may stand in another partition than its own: all of them have to be asked, then."""
        return bool(self.strays)

    async def newest(self, keys: Sequence[bytes], pause: Pause) -> tuple[list[int], list[bytes | None]]:
        """In which partition each key's newest entry stands, and the entry (strays.py). Of the first of these keys: of
        all, unless their entries are large."""
        return await newest.newest(self.all_led(), keys, pause, self.count)

    async def holders(self, key: bytes, pause: Pause) -> list[int]:
        """The partitions that have an entry of a key, a tombstone too."""
        return await newest.holders(self.all_led(), key, pause)

    def describe_settings(self) -> dict[str, Any]:
        """Its id, the settings that were set for it, and all in force."""
        return {"id": text_id(self.id), "config": self.given, "settings": self.settings}

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
                for p in self.local.values()
            ],
        }


def not_led(image: TopicImage, index: int) -> KrappyError:
    """Why a partition of this topic is not this broker's to serve."""
    if not 0 <= index < len(image.partitions):
        return UnknownPartition(f"'{image.name}' has partitions 0 to {len(image.partitions) - 1}, not {index}")
    state = image.partitions[index].state
    who = "no broker leads it now" if state.leader == NOBODY else f"broker {state.leader} leads it"
    return NotLeader(
        f"{image.name}-{index}: {who}",
        topic=image.name,
        partition=index,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
    )
