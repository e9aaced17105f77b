"""Topics of a broker that is one of several: a change is written to the cluster's tree, and each broker follows it.

A request is answered once this broker has followed. `Assignments` opens and closes what changes here.

If a topic was deleted just now, another topic of its name is made once nobody serves the deleted one any more
(deleted_names.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from krappy.broker.partition.partition import Partition
from krappy.broker.partition.replica import Standing
from krappy.broker.topics import deletion
from krappy.broker.topics.deleted_names import DeletedNames
from krappy.broker.topics.internal_topics import INTERNAL, ShapeInCluster
from krappy.broker.topics.scattered import ScatteredMark
from krappy.broker.topics.topic import Topic
from krappy.broker.topics.topic_changes import TopicChanges
from krappy.core.cluster import paths, placement
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.placement import DEFAULT, Placement
from krappy.core.cluster.state import NOBODY
from krappy.errors import InvalidTopic, RequestTimeout, TopicExists, UnknownTopic, after_steps
from krappy.settings.topic import TopicConfig, check_topic_name, merge
from krappy.settings.topic_table import Changes, changes_of
from krappy.store.catalog import StoredTopic as StoredTopic
from krappy.store.local_replicas import LocalReplicas
from krappy.store.log import Log
from krappy.waiting import wait_any

HEARING_S = 5.0  # seconds for this broker to hear of a topic that ZooKeeper has, if it is not deleted just then
PATIENCE_S = 20.0  # seconds for this broker to follow a change, and for a new topic to get its first leaders


class ClusterTopicChanges(TopicChanges):
    """`replicas`: what was made in this folder. `in_sync`: as in `Replication`."""

    replicas: LocalReplicas
    in_sync: Callable[[Topic, int], bool]

    def __init__(self, *args: Any) -> None:
        """`args`: those of TopicChanges."""
        super().__init__(*args)
        self._deleted = DeletedNames(self._runtime)

    async def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Any],
        *,
        if_absent: bool,
        alike: bool,
        own: bool = False,
        replicas: Placement | None = None,
    ) -> tuple[Topic, bool]:
        runtime = self._runtime
        runtime.check_taking()
        if if_absent and name in runtime.topics:
            return runtime.topics[name], False
        self.names.check(name, alike=alike, own=own)
        if name in runtime.topics:
            raise TopicExists(f"the topic '{name}' exists")
        TopicConfig.parse({**self._defaults(), **config})
        if replicas is None:
            replicas = await self.place(partitions)
        await self._deleted.until_free(name)
        runtime.check_taking()
        topics = runtime.topics
        try:
            stored = await runtime.catalog.create(name, partitions, config, replicas)
        except TopicExists:
            if not if_absent:
                raise
            await self._until(f"the topic '{name}' was created", lambda: name in topics)  # another broker was quicker
            return topics[name], False
        await self._until(f"the topic '{name}' was created", lambda: _is_led(topics.by_id.get(stored.id)))
        return topics.by_id[stored.id], True

    async def make_internal(self, name: str, shape: ShapeInCluster) -> None:
        """Makes an internal topic. Returns when each partition has its leader. Raises TopicExists, RequestTimeout,
        InvalidReplicationFactor if there are too few brokers."""
        runtime, partitions = self._runtime, shape.partitions
        placed = await self.place(partitions, shape.factor)
        await runtime.catalog.create(name, partitions, shape.settings, placed)
        await wait_any(
            [runtime.topics.changed, runtime.stopping], lambda: _all_led(runtime.image.topics.get(name)), 5.0
        )

    async def place(self, partitions: int, factor: int = DEFAULT) -> Placement:
        """The brokers of each new partition. Waits for the first broker that can take replicas: if this broker is the
        only one, and was just started, it is not registered yet. Raises InvalidReplicationFactor, RequestTimeout."""
        runtime = self._runtime
        chosen = runtime.config.default_replication_factor if factor == DEFAULT else factor
        signals = [runtime.store.changed, runtime.stopping]
        if not await wait_any(signals, lambda: placement.takes_replicas(runtime.image) or runtime.stopped, PATIENCE_S):
            raise RequestTimeout("no broker is registered that can take replicas; try again")
        runtime.check_taking()
        return placement.place(runtime.image, partitions, chosen)

    async def alter(
        self, name: str, wanted: Changes | None, partitions: int | None, replicas: Placement | None = None
    ) -> None:
        runtime = self._runtime
        runtime.check_taking()
        topic = runtime.topics.find(name)
        config = changes_of(wanted or {}, topic.given, topic.settings)
        given = merge(topic.given, config)
        topic.parse(given, topic.inherited)
        added = ""
        if partitions is not None and partitions != topic.count:
            more, factor = max(0, partitions - topic.count), len(topic.image.partitions[0].replicas)
            placed = replicas or await self.place(more, factor)
            await runtime.catalog.add_partitions(name, partitions, placed, scattered=True)
            added = f"partitions were added to '{name}'"
            await self._until(
                f"{added}, and its settings were not changed" if config else added,
                lambda: topic.deleted or (topic.count >= partitions and _is_led(topic)),
            )
        if config:
            mark = topic.strays.mark
            with after_steps(added):
                if mark is not None and topic.image.scattered is None and topic.switches_view(given, topic.inherited):
                    await mark.make_known()  # nobody may have looked at the keys while there was no view (scattered.py)
                stored = await runtime.catalog.alter(name, config)
            await self._until(f"'{name}' was altered", lambda: topic.deleted or topic.given == stored.config)

    async def hear_of(self, name: str) -> None:
        """Waits until this broker knows the topic, if ZooKeeper has it. Raises ConnectionLost."""
        runtime = self._runtime
        if name in runtime.topics:
            return
        with suppress(InvalidTopic):
            check_topic_name(name)
            if await runtime.store.read(paths.topic(name)) is not None:
                await self._wait_for([name])

    async def hear_of_all(self) -> None:
        await self._wait_for(await self._runtime.store.children(paths.TOPICS))

    async def _wait_for(self, names: Sequence[str]) -> None:
        topics = self._runtime.topics
        of_interest = [topics.changed, self._runtime.stopping]
        await wait_any(of_interest, lambda: all(name in topics for name in names), HEARING_S)

    async def delete(self, name: str, id: bytes | None) -> None:
        runtime = self._runtime
        runtime.check_taking()
        topic = runtime.topics.find(name)
        if id not in (None, topic.id):
            raise UnknownTopic(f"the topic '{name}' was deleted, and made anew")
        await runtime.catalog.delete(name)
        await self._until(f"'{name}' was deleted", lambda: topic.deleted)

    async def finish_deletions(self) -> None:
        """Tries again to remove this broker's files of deleted topics."""
        for stored in self._runtime.catalog.deleting():
            await self.finish_deletion(stored)

    async def _bury(self, stored: StoredTopic) -> None:
        await super()._bury(stored)
        await self._runtime.in_thread(lambda: self.replicas.forget(stored.id))

    async def _until(self, what: str, done: Callable[[], bool]) -> None:
        """Waits until this broker has followed a change. Raises RequestTimeout."""
        runtime = self._runtime
        if not await wait_any(
            [runtime.topics.changed, runtime.stopping], lambda: done() or runtime.stopped, PATIENCE_S
        ):
            raise RequestTimeout(f"{what}, but it is not in force on broker {runtime.id} after {PATIENCE_S:g} s")
        runtime.check_taking()

    # --- what `Assignments` does with topics

    async def bury_earlier(self, name: str) -> None:
        """Removes what is left here of deleted topics of this name. The caller holds it. Raises StorageError."""
        for dead in self._runtime.catalog.deleting():
            if dead.name == name:
                await self._bury(dead)

    async def know(self, found: TopicImage) -> Topic:
        """A topic of the image, without its partitions. The caller holds its name. Raises UnknownTopic if it was
        deleted meanwhile, StorageError."""
        await self.number(found)
        stored = self.stored(found.name, found.id)
        topic = Topic(stored, found, self._defaults())
        topic.internal, topic.in_sync = found.name in INTERNAL, self.in_sync
        if not topic.internal:  # an internal topic's keys are where their groups are, not where murmur2 puts them
            topic.strays.mark = ScatteredMark(self._runtime, found.name, found.id)
            topic.strays.mark.look()
        return topic

    def stored(self, name: str, id: bytes) -> StoredTopic:
        """What the catalog has of a topic. Raises UnknownTopic if another topic has its name by now."""
        found = self._runtime.image.topics.get(name)
        stored = self._runtime.catalog.get(name) if found is not None and found.id == id else None
        if stored is None:
            raise UnknownTopic(f"the topic '{name}' was deleted, or made anew, meanwhile", topic=name)
        return stored

    async def number(self, found: TopicImage) -> None:
        """Gives the topic's partitions their view numbers, durably."""
        await self._runtime.in_thread(
            lambda: self._runtime.catalog.numbers.give(found.id, found.name, len(found.partitions))
        )

    def partition(self, topic: Topic, index: int, number: int, log: Log, standing: Standing) -> Partition:
        return Partition(self._lent, topic.name, index, number, topic.config, log, topic.strays, standing)

    def forget_latest(self, partition: Partition) -> None:
        """What was kept of it for readers of TOPIC@latest is not needed any more."""
        self._latest.forget(partition.number)

    async def close(self, topic: Topic, *, is_deleted: bool) -> None:
        """Closes a topic that the image does not have any more. The caller holds its name."""
        runtime = self._runtime
        self._deleted.add(topic)
        runtime.topics.remove(topic)
        self.names.remove(topic.name)
        topic.deleted = True
        try:
            if is_deleted:  # before it is closed, since the disk may hang: its name may be another topic's by now
                if topic.local:
                    self._dying[topic.id] = topic
                await self._forget(topic.name, topic.id)
        finally:
            await deletion.close(runtime, self._latest, topic)
        if is_deleted:
            runtime.report("topic_deleted", topic=topic.name)
            for dead in runtime.catalog.deleting():
                if dead.id == topic.id:
                    runtime.spawn(self.finish_deletion, dead)
        else:
            runtime.report("topic_strayed", topic=topic.name, text="the cluster does not know it; its folders stay")
        runtime.topics.changed.fire()


def _is_led(topic: Topic | None) -> bool:
    return topic is not None and _all_led(topic.image)


def _all_led(image: TopicImage | None) -> bool:
    """Whether all partitions have a leader."""
    return image is not None and all(each.version >= 0 and each.state.leader != NOBODY for each in image.partitions)
