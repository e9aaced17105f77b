"""Removes this broker's replicas of partitions that were reassigned to others.

A replica goes only if the cluster has its topic, and does not name this broker for the partition: not as a replica, not
in the ISR or the ELR, not as the leader. The image may be old, so a write demands the topic's znode as it was seen. The
steps are in this order, and all of them are done again if one fails:

1. The partition is closed. Requests that wait in it are told who leads it.
2. Its view and its folder are removed, durably.
3. It is not noted as made here any more. So if it comes back later, nobody takes its missing folder for a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from krappy.broker.topics import deletion
from krappy.broker.topics.topic import not_led
from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.tree import Check, RefusedMulti
from krappy.errors import NotLeader
from krappy.store.local_replicas import LocalReplicas, ReplicaId

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import MembershipPort


class Leaving:
    """`replicas`: what was made in this broker's folder."""

    def __init__(self, runtime: Runtime, cluster: MembershipPort, replicas: LocalReplicas) -> None:
        self._runtime, self._cluster, self._replicas = runtime, cluster, replicas

    def due(self, image: Image) -> Iterator[ReplicaId]:
        """The replicas here that belong to other brokers now, as far as this image tells."""
        for replica in sorted(self._replicas.all()):
            if self._is_another(image, replica):
                yield replica

    def _is_another(self, image: Image, replica: ReplicaId) -> bool:
        topic = self._topic(image, replica)
        if topic is None:
            return False
        partition = topic.partitions[replica[1]]
        state = partition.state
        return partition.version >= 0 and self._runtime.id not in (
            *(*partition.replicas, *state.isr, *state.elr, state.leader),
        )

    def _topic(self, image: Image, replica: ReplicaId) -> TopicImage | None:
        topic = image.topics.get(image.names.get(replica[0], ""))
        return topic if topic is not None and replica[1] < len(topic.partitions) else None

    async def make_sure(self, replica: ReplicaId) -> None:
        """Raises NotLeader if the replica may be this broker's again; ConnectionLost, StorageError."""
        image = self._cluster.image
        topic = self._topic(image, replica)
        if topic is None or not self._is_another(image, replica):
            raise NotLeader("the partition was reassigned again")
        try:
            await self._cluster.multi([Check(paths.topic(topic.name), topic.version)])
        except RefusedMulti as error:
            raise NotLeader(f"the partition was reassigned again: {error}") from error

    async def remove(self, replica: ReplicaId) -> None:
        """Raises StorageError."""
        runtime, (id, index) = self._runtime, replica
        found = self._topic(self._cluster.image, replica)
        name = runtime.image.names[id]
        topic = runtime.topics.by_id.get(id)
        partition = None if topic is None else topic.local.pop(index, None)
        if partition is not None and topic is not None and found is not None:
            await runtime.attempt(str(partition), partition.close(not_led(found, index)))
            topic.strays.begin(topic.count)
            await runtime.attempt(str(partition), partition.remove())
        numbers = runtime.catalog.numbers.of(id)[index : index + 1]
        await deletion.remove_left(runtime, name, [index], id, numbers)
        await runtime.in_thread(lambda: self._replicas.forget(id, [index]))
        runtime.report("replica_removed", partition=f"{name}-{index}")
