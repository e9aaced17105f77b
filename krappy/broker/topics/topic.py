"""A topic as the broker runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from krappy.broker.partition import newest
from krappy.broker.partition.newest import Pause
from krappy.broker.partition.partition import Partition
from krappy.broker.partition.strays import Strays
from krappy.broker.partition.viewed import Viewed, outlives
from krappy.core.cluster.demands import MIN_INSYNC, default_min_insync
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import NOBODY
from krappy.errors import KrappyError, NotLeader, UnknownPartition
from krappy.settings.topic import TopicConfig
from krappy.settings.topic_table import effective
from krappy.store.catalog import StoredTopic as StoredTopic
from krappy.types import text_id


class Topic:
    """What the cluster knows of a topic (`image`), and the partitions of it that this broker has (`local`)."""

    def __init__(
        self, stored: StoredTopic, image: TopicImage, inherited: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`inherited`: the broker's defaults for all topics."""
        self.name = stored.name
        self.internal = False  # whether it is the broker's own, and nobody else writes to it
        self.id = stored.id  # 16 bytes
        self.local: dict[int, Partition] = {}  # by index, in their order
        self.in_sync: Callable[[Topic, int], bool] = lambda topic, index: True  # a replica here; set in a cluster
        self.strays: Strays[Viewed] = Strays(self.local)
        self.see(image)
        self.given = dict(stored.config)  # the settings that were set for it
        self.inherited = inherited
        self._older = stored.defaults  # only those that differ from the defaults of a topic made now
        self.config = self.parse(self.given, inherited)
        self.deleted = False

    def see(self, image: TopicImage) -> None:
        """Takes the cluster's present knowledge of it."""
        self.image = image
        self.count = len(image.partitions)
        if self.strays.mark is not None:
            self.strays.mark.look()

    def parse(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> TopicConfig:
        """The settings that would be in force with these. Raises InvalidConfig."""
        return TopicConfig.parse({**self._older, **inherited, **given})

    @property
    def defaults(self) -> Mapping[str, str]:
        """Its defaults that differ from those in `topic_table`: those that it keeps from when it was created, and
        min.insync.replicas, which depends on how many replicas it has."""
        return {**self._older, MIN_INSYNC: str(default_min_insync(self.image.partitions[0]))}

    @property
    def settings(self) -> dict[str, str]:
        """All settings in force, as Kafka writes them."""
        return effective({**self.defaults, **self.inherited, **self.given})

    @property
    def forgets_by_old_default(self) -> bool:
        """Whether its events expire only because it was created by a version whose default that was."""
        said = {**self.inherited, **self.given}
        return self.config.delete and "retention.ms" in self._older and "retention.ms" not in said

    def outlives(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> bool:
        """Whether with these settings its table would outlive its events, and now does not. Raises InvalidConfig."""
        return outlives(self.config, self.parse(given, inherited))

    def switches_view(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> bool:
        """Whether these settings turn its view on or off. Raises InvalidConfig."""
        return self.parse(given, inherited).view != self.config.view

    async def prepare(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> None:
        """Makes the partitions ready for these settings, before they are stored. Raises InvalidConfig, StorageError."""
        config = self.parse(given, inherited)
        for partition in self.local.values():
            await partition.prepare(config)

    async def configure(self, given: Mapping[str, str], inherited: Mapping[str, str]) -> None:
        """Puts these settings in force. Raises InvalidConfig."""
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

    def held(self, index: int) -> Partition:
        """A partition of which this broker has a replica, whoever leads it: committed events can be read from each.
        Raises NotLeader, UnknownPartition."""
        found = self.local.get(index)
        if found is not None:
            return found
        raise not_led(self.image, index)

    def replica(self, index: int) -> Partition:
        """A partition of which this broker has a replica in sync, by all that it was told. It holds a read lease, so it
        would have been told by now of strays, or that the topic was deleted. Raises NotLeader, UnknownPartition."""
        found = self.held(index)
        if not self.in_sync(self, index):
            raise not_led(self.image, index)
        return found

    def is_offline(self, index: int) -> bool:
        """Whether this broker has the partition, and it is out of service."""
        found = self.local.get(index)
        return found is not None and bool(found.offline)

    def all_led(self) -> list[Partition]:
        """All partitions, by index, if this broker leads them. Raises NotLeader."""
        return [self.led(index) for index in range(self.count)]

    @property
    def scattered(self) -> bool:
        """Whether it may have strays: keys in another partition than murmur2 gives them. Then all partitions are
        asked for a key. Once no partition has a view, none is asked, even if the topic is marked: the client is to hear
        that there is no table."""
        return bool(self.strays) and (self.config.view or any(each.config.view for each in self.local.values()))

    @property
    def unsure(self) -> bool | None:
        """Whether it may have strays, and it is not marked as one that has some: that may change soon. None: this
        broker is alone."""
        mark = self.strays.mark
        return None if mark is None else self.scattered and not mark.is_set

    async def newest(self, keys: Sequence[bytes], pause: Pause) -> tuple[list[int], list[bytes | None]]:
        """The partition of each key's newest entry, and the entries (None: none). Stops after the first keys if their
        entries are large. The caller has waited for the views."""
        return await newest.newest(self.all_led(), keys, pause, self.count)

    async def holders(self, key: bytes, pause: Pause) -> list[int]:
        """The partitions that have an entry of the key; a tombstone counts."""
        return await newest.holders(self.all_led(), key, pause)

    def describe_settings(self) -> dict[str, Any]:
        """Its id, the settings that were set for it, and all settings in force."""
        return {"id": text_id(self.id), "config": self.given, "settings": self.settings}

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **self.describe_settings(),
            "scattered": self.scattered,
            "partitions": [
                {
                    "partition": index,
                    "leader": each.state.leader,
                    "replicas": each.replicas,
                    "isr": each.state.isr,
                    **self._describe(self.local.get(index)),
                }
                for index, each in enumerate(self.image.partitions)
            ],
        }

    def _describe(self, p: Partition | None) -> dict[str, Any]:
        """What this broker knows of a partition; offsets are left out if it does not have it."""
        if p is None:
            return {}
        return {
            "start": p.start_offset,
            "end": p.log.end_offset,
            "high_watermark": p.high_watermark,
            "last_stable_offset": p.last_stable_offset,
            "sure": p.role is Role.LEADER and p.is_sure_leader(),
            "applied": p.applied,
            "size": p.log.size,
            "segments": len(p.log.segments),
            "failed": p.spoiled or p.log_failed or None,
            "view_failed": None if p.view_failed is None else str(p.view_failed),
        }


def not_led(image: TopicImage, index: int) -> KrappyError:
    """The error for a partition that this broker does not lead: UnknownPartition or NotLeader."""
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
