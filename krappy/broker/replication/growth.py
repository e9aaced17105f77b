"""Internal topics, the audit log's topic, and topics from a cluster's backup get their missing replicas once there are
brokers for them.

An internal topic is made when it is first needed, perhaps by the first broker of a cluster, alone. Without this its
partitions would stay on that broker for ever, and die with it. So would topics that the first broker has from a backup.
The controller's broker adds what is missing, as a reassignment. Replicas that are there stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from krappy.broker.topics.internal_topics import INTERNAL, shape_in_cluster
from krappy.broker.topics.moves import Moves
from krappy.broker.tree_changes import change
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.placement import DEFAULT, MOST_BY_DEFAULT, grown
from krappy.core.cluster.reassign import is_moving
from krappy.core.cluster.tree import Operation
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

LOOK_S = 2.0
MOST_MOVING = 50  # while so many partitions of the cluster move, no further restored topic begins to grow


class Growth:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            image = self._runtime.image
            if image.controller != self._runtime.id:
                continue
            restored = [name for name, topic in image.topics.items() if topic.restored_factor]
            for name in dict.fromkeys((*INTERNAL, self._runtime.config.audit_topic, *restored)):
                topic = self._runtime.image.topics.get(name)
                if topic is None or any(map(is_moving, topic.partitions)) or self._is_busy(topic):
                    continue
                try:
                    await self._grow(topic)
                except KrappyError as error:
                    self._runtime.report("assignment_waits", topic=name, error=str(error))

    def _is_busy(self, topic: TopicImage) -> bool:
        """Whether so much is being copied that a restored topic waits."""
        if not topic.restored_factor:
            return False
        topics = self._runtime.image.topics.values()
        return sum(is_moving(each) for other in topics for each in other.partitions) >= MOST_MOVING

    async def _grow(self, topic: TopicImage) -> None:
        runtime = self._runtime
        wanted = runtime.config.default_replication_factor
        if topic.name in INTERNAL:
            wanted = shape_in_cluster(topic.name, runtime.config).factor
        factor = topic.restored_factor or (MOST_BY_DEFAULT if wanted == DEFAULT else wanted)
        more = grown(runtime.image, [each.replicas for each in topic.partitions], factor)
        if more:
            runtime.report("topic_grows", topic=topic.name, partitions=len(more))
            await Moves(runtime).reassign(topic.name, more, grows=True)
        elif topic.restored_factor and all(len(each.replicas) >= factor for each in topic.partitions):
            await change(runtime.store, lambda: self._grown(topic.name, topic.id))

    async def _grown(self, name: str, id: bytes) -> list[Operation]:
        """The operations that note that a restored topic has all its replicas."""
        topic = self._runtime.image.topics.get(name)
        if topic is None or topic.id != id or not topic.restored_factor:
            return []
        return [*topic.unless_deleted(), topic.put_replicas(topic.partitions, grows=False)]
