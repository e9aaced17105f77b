"""Which broker coordinates a group, a transactional id or a staged job: the leader of a partition of an internal topic.

A broker that is alone coordinates all of them. In a cluster the internal topics have one replica of each partition so
far: what a coordinator knows is in its own folder. So while it is away nobody takes its place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from krappy.broker.topics.internal_topics import INTERNAL, PARTITIONS, InternalTopics
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.errors import CoordinatorNotAvailable, KrappyError, NotCoordinator, TopicExists

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.cluster_topics import ClusterTopicChanges


class Coordinators:
    def __init__(self, runtime: Runtime, internal: InternalTopics, changes: ClusterTopicChanges | None) -> None:
        """`changes`: None: this broker is alone."""
        self._runtime, self._internal, self._changes = runtime, internal, changes

    async def find(self, topic: str, key: str) -> int:
        """The id of the broker that coordinates `key`; NOBODY: it is away. `topic`: the internal one of its kind. From
        now on that topic is listed. Raises StorageError, ConnectionLost."""
        self._internal.use(topic)
        if self._changes is not None and topic not in self._runtime.image.topics:
            with suppress(TopicExists):  # another broker was quicker
                await self._changes.make_internal(topic, PARTITIONS, INTERNAL[topic])
        return self._leader(topic, key)

    def _leader(self, topic: str, key: str) -> int:
        image = self._internal.by_name[topic].image
        if self._changes is not None:
            found = self._runtime.image.topics.get(topic)
            if found is None:
                return NOBODY
            image = found
        return image.partitions[partition_of(key, len(image.partitions))].state.leader

    def elsewhere(self, topic: str, key: str) -> KrappyError | None:
        """Why this broker does not coordinate `key`; None: it does."""
        if self._changes is None:
            return None
        leader = self._leader(topic, key)
        if leader == self._runtime.id:
            return None
        if leader == NOBODY:
            return CoordinatorNotAvailable(f"the broker that coordinates '{key:.100}' is away, or not chosen yet")
        return NotCoordinator(f"broker {leader} coordinates '{key:.100}'", coordinator=leader)
