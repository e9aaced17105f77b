"""Internal topics get the replicas that they were to have, once there are brokers for them.

Such a topic is made when it is first needed, perhaps by the first broker of a cluster, alone. Without this its
partitions would stay on that broker for ever, and die with it. The controller's broker adds what is missing, as a
reassignment. Replicas that are there stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from krappy.broker.topics.internal_topics import INTERNAL, shape_in_cluster
from krappy.broker.topics.moves import Moves
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.placement import DEFAULT, MOST_BY_DEFAULT, grown
from krappy.core.cluster.reassign import is_moving
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

LOOK_S = 2.0


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
            for name in INTERNAL:
                if name in image.topics and not any(map(is_moving, image.topics[name].partitions)):
                    try:
                        await self._grow(image.topics[name])
                    except KrappyError as error:
                        self._runtime.report("assignment_waits", topic=name, error=str(error))

    async def _grow(self, topic: TopicImage) -> None:
        runtime = self._runtime
        wanted = shape_in_cluster(topic.name, runtime.config).factor
        factor = MOST_BY_DEFAULT if wanted == DEFAULT else wanted
        more = grown(runtime.image, [each.replicas for each in topic.partitions], factor)
        if more:
            runtime.report("internal_topic_grows", topic=topic.name, partitions=len(more))
            await Moves(runtime).reassign(topic.name, more)
