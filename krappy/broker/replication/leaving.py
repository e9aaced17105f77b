"""Removes this broker's replicas of partitions that were reassigned to others.

A replica goes only if the cluster has its topic, and does not name this broker for the partition: not as a replica, not
in the ISR or the ELR, not as the leader. The image may be old, so a write demands the topic's znode as it was seen.

And it goes only if the partition's leader has all that is committed here, so far as this broker has noted
(`DATA/reached`), unless an election was unclean since. After a reassignment the leader has. But if ZooKeeper was given
older data, from before the reassignment, this may be the only copy. It stays until people say what becomes of it: if
they assign the partition to this broker again, it takes the lead (follower.py).

Where the leader's log ends does not tell that it has these events: it may have written others in their place, in the
same leader epoch. So when a broker finds older data, it notes each replica with committed events here that the cluster
does not name it for (`LocalReplicas.kept`). Such a one stays until the broker is in sync again, whatever its leader
has. Of others in internal topics nobody is asked: the leaders of these tell clients, and so other brokers, of no event
in them.

The steps are in this order, and all of them are done again if one fails:

1. The partition is closed. Requests that wait in it are told who leads it.
2. Its view and its folder are removed, durably.
3. It is not noted as made here any more. So if it comes back later, nobody takes its missing folder for a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.topics import deletion
from krappy.broker.topics.internal_topics import INTERNAL
from krappy.broker.topics.topic import not_led
from krappy.core.cluster import paths
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.state import NOBODY
from krappy.core.cluster.tree import Check, RefusedMulti
from krappy.errors import KrappyError, NotLeader, StorageError
from krappy.store.local_replicas import LocalReplicas, ReplicaId
from krappy.types import LATEST, TopicPartition
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import LogPeersPort, MembershipPort

RETRY_S = 1.0


class Leaving:
    def __init__(
        self,
        runtime: Runtime,
        cluster: MembershipPort,
        replicas: LocalReplicas,
        peers: LogPeersPort,
        found: Callable[[], None],
    ) -> None:
        """`replicas`: what was made in this broker's folder. `found()`: some are due that were not."""
        self._runtime, self._cluster, self._replicas = runtime, cluster, replicas
        self._peers, self._found = peers, found
        self._spare: set[ReplicaId] = set()  # their leaders have all that is committed here
        self._told: set[ReplicaId] = set()  # their leaders may have not, which was told

    async def run(self) -> None:
        """Finds out whose leaders have all that is committed here. Until cancelled."""
        while True:
            image, epoch = self._cluster.image, self._cluster.epoch
            others = {each for each in self._replicas.all() if self._is_another(image, each)}
            self._spare = (self._spare & others) - self._replicas.kept
            self._told &= others
            if back := [each for each in self._replicas.kept if self._is_in_sync(image, each)]:
                with suppress(StorageError):  # then it stays longer
                    await self._runtime.in_thread(partial(self._replicas.keep, back, keep=False))
            for replica in sorted(others - self._spare):
                if await self._is_spare(self._cluster.image, replica):
                    self._spare.add(replica)
                    self._found()
            left = bool(others - self._spare)
            changed = [self._cluster.changed]
            await wait_any(changed, lambda: self._is_news(image, epoch), RETRY_S if left else float("inf"))  # noqa: B023
            await trio.lowlevel.checkpoint()

    def _is_news(self, image: Image, epoch: int) -> bool:
        return self._cluster.image is not image or self._cluster.epoch != epoch

    async def _is_spare(self, image: Image, replica: ReplicaId) -> bool:
        topic = self._topic(image, replica)
        if topic is None:
            return False
        noted, state = self._runtime.reached.of(*replica), topic.partitions[replica[1]].state
        at = TopicPartition(topic.name, replica[1])
        if replica in self._replicas.kept:
            self._tell(replica, at, "ZooKeeper was given older data, and these may lack what was committed here")
            return False
        if topic.name in INTERNAL or not noted.committed or state.unclean > noted.epoch:
            return True
        if state.leader == NOBODY:
            return False
        try:
            end = await self._leaders_end(state.leader, at, state.leader_epoch, noted.epoch)
        except KrappyError:
            return False
        if end < noted.committed:
            self._tell(replica, at, "their leader lacks events that were committed here", leader=end)
        return end >= noted.committed

    def _tell(self, replica: ReplicaId, at: TopicPartition, why: str, **facts: int) -> None:
        if replica not in self._told:
            self._told.add(replica)
            facts["committed"] = self._runtime.reached.of(*replica).committed
            text = f"it belongs to other brokers now, but {why}"
            self._runtime.report("replica_kept", partition=f"{at.topic}-{at.partition}", **facts, text=text)

    async def _leaders_end(self, leader: int, at: TopicPartition, current: int, epoch: int) -> int:
        """The offset up to which the leader's log has events of leader epochs up to `epoch`."""
        found = await self._peers.end_of_epoch(leader, at, current, epoch)
        if found is not None:
            return found[1]
        ends = await self._peers.offsets_at(leader, [at], LATEST)  # all of its events are of earlier epochs
        if isinstance(end := ends[at], KrappyError):
            raise end
        return end

    def due(self, image: Image) -> Iterator[ReplicaId]:
        """The replicas here that belong to other brokers now, as far as this image tells, and that are not needed."""
        for replica in sorted(self._spare):
            if self._is_another(image, replica):
                yield replica

    def _is_another(self, image: Image, replica: ReplicaId) -> bool:
        """Whether other brokers have the replica's partition. Nothing is known before this broker is registered: then
        it has found out whether ZooKeeper was given older data."""
        topic = self._topic(image, replica)
        if topic is None or self._cluster.epoch < 0:
            return False
        partition = topic.partitions[replica[1]]
        state = partition.state
        return partition.version >= 0 and self._runtime.id not in (
            *(*partition.replicas, *state.isr, *state.elr, state.leader),
        )

    def _is_in_sync(self, image: Image, replica: ReplicaId) -> bool:
        topic = self._topic(image, replica)
        return topic is not None and self._runtime.id in topic.partitions[replica[1]].state.isr

    def _topic(self, image: Image, replica: ReplicaId) -> TopicImage | None:
        topic = image.topics.get(image.names.get(replica[0], ""))
        return topic if topic is not None and replica[1] < len(topic.partitions) else None

    async def make_sure(self, replica: ReplicaId) -> None:
        """Raises NotLeader if the replica may be this broker's again; ConnectionLost, StorageError."""
        image = self._cluster.image
        topic = self._topic(image, replica)
        if topic is None or not self._is_another(image, replica) or replica in self._replicas.kept:
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
        self._spare.discard(replica)
        runtime.report("replica_removed", partition=f"{name}-{index}")
