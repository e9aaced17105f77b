"""Which broker coordinates a group, a transactional id or a staged job: the leader of a partition of an internal topic.

A broker that is alone coordinates all of them. In a cluster they are kept in replicated topics: if a coordinator fails,
another replica takes its place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from krappy.broker.topics.internal_topics import InternalTopics, shape_in_cluster
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.state import NOBODY
from krappy.errors import CoordinatorNotAvailable, KrappyError, NotCoordinator, TopicExists

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.cluster_topics import ClusterTopicChanges


class Coordinated(Protocol):
    def check_here(self, name: str, /) -> None:
        """Raises CoordinatorNotAvailable while this broker has not loaded what it knows of the name."""


class Coordinators:
    def __init__(self, runtime: Runtime, internal: InternalTopics, changes: ClusterTopicChanges | None) -> None:
        """`changes`: None: this broker is alone."""
        self._runtime, self._internal, self._changes = runtime, internal, changes
        self._making: set[str] = set()
        self.loaded: dict[str, Coordinated] = {}  # by topic: what keeps its state there, once that is open

    async def find(self, topic: str, key: str) -> int:
        """The id of the broker that coordinates `key`, or NOBODY if that broker is away. `topic`: the internal topic
        for this kind of key. From now on that topic is listed. Raises StorageError, ConnectionLost."""
        self._internal.use(topic)
        await self._make(topic)
        return self.leader(topic, key)

    async def _make(self, topic: str) -> None:
        """Makes an internal topic, unless the cluster has it."""
        if self._changes is not None and topic not in self._runtime.image.topics:
            with suppress(TopicExists):  # another broker was quicker
                await self._changes.make_internal(topic, shape_in_cluster(topic, self._runtime.config))

    async def _make_later(self, topic: str) -> None:
        try:
            await self._make(topic)
        except KrappyError as error:
            self._runtime.report("assignment_waits", topic=topic, error=str(error))
        finally:
            self._making.discard(topic)

    def leader(self, topic: str, key: str) -> int:
        """As `find`, as far as this broker knows now."""
        image = self._internal.by_name[topic].image
        if self._changes is not None:
            found = self._runtime.image.topics.get(topic)
            if found is None:
                return NOBODY
            image = found
        return image.partitions[partition_of(key, len(image.partitions))].state.leader

    def keeper(self, topic: str, key: str) -> int:
        """As `leader`. Raises CoordinatorNotAvailable if that broker is away."""
        leader = self.leader(topic, key)
        if leader == NOBODY:
            if topic not in self._runtime.image.topics and topic not in self._making:
                self._making.add(topic)
                self._runtime.spawn(self._make_later, topic)
            raise CoordinatorNotAvailable(f"the broker that coordinates '{key:.100}' is away, or not chosen yet")
        return leader

    def elsewhere(self, topic: str, key: str) -> KrappyError | None:
        """Why this broker does not coordinate `key`, or None if it does."""
        if self._changes is None:
            return None
        try:
            leader = self.keeper(topic, key)
        except CoordinatorNotAvailable as error:
            return error
        if leader == self._runtime.id:
            return self._not_loaded(topic, key)
        return NotCoordinator(f"broker {leader} coordinates '{key:.100}'", coordinator=leader)

    def _not_loaded(self, topic: str, key: str) -> KrappyError | None:
        """This broker leads the partition that `key` belongs to. Returns why it does not coordinate `key` yet, or None
        if it does."""
        try:
            if topic in self.loaded:
                self.loaded[topic].check_here(key)
        except KrappyError as error:
            return error
        return None
