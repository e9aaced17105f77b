"""The leader's care for the ISRs of its partitions: followers that lag leave, those that have caught up come back.

A change is a write that demands the state's version. It may be refused, or its answer lost: then what is read behind it
is in force. Until that is known, the replica set counts with both ISRs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.core.cluster import paths
from krappy.core.cluster.image import PartitionImage
from krappy.core.cluster.isr import addable, change_isr
from krappy.core.cluster.replica_set import Proposal
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import read_state
from krappy.core.cluster.tree import RefusedMulti
from krappy.errors import ConnectionLost, StorageError

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import MembershipPort

LOOK_S = 0.1
RETRY_S = 0.2  # after a read that failed


class IsrKeeper:
    def __init__(self, runtime: Runtime, cluster: MembershipPort) -> None:
        self._runtime = runtime
        self._cluster = cluster

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_S)
                for partition, proposal in self._due():
                    nursery.start_soon(self._change, partition, proposal)

    def _due(self) -> list[tuple[Partition, Proposal]]:
        cluster, now = self._cluster, trio.current_time() * 1000
        if not cluster.is_current or cluster.epoch < 0:
            return []
        lag = self._runtime.lag_ms
        found = []
        for partition in self._runtime.topics.local():
            if partition.role is not Role.LEADER:
                continue
            image = self._image(partition)
            if image is None or len(partition.replicas.isr) == len(image.replicas) == 1:
                continue
            if image.version != partition.state_version:
                continue  # a newer state is about to be taken
            proposal = partition.replicas.propose(addable(cluster.image, image), now, lag)
            if proposal is not None:
                found.append((partition, proposal))
        return found

    def _image(self, partition: Partition) -> PartitionImage | None:
        topic = self._cluster.image.topics.get(partition.topic)
        known = topic is not None and partition.index < len(topic.partitions)
        return topic.partitions[partition.index] if topic is not None and known else None

    async def _change(self, partition: Partition, proposal: Proposal) -> None:
        cluster, epoch = self._cluster, partition.epoch
        topic = cluster.image.topics[partition.topic]
        try:
            await cluster.multi(change_isr(topic, partition.index, proposal))
        except RefusedMulti:
            pass
        except (ConnectionLost, StorageError):
            await self._settle(partition, epoch, proposal)
            return
        else:
            self._runtime.report(
                "isr_changed",
                partition=str(partition),
                isr=list(proposal.isr),
                left=list(proposal.gone),
                came=list(proposal.added),
            )
        # The image has now seen what was done, or why it was refused.
        found = self._image(partition)
        if found is not None:
            partition.know(found.state, found.version, epoch, proposal)

    async def _settle(self, partition: Partition, epoch: int, proposal: Proposal) -> None:
        """Learns whether a write was done whose answer was lost. The read comes behind it, in the same session; in a
        later session this broker has another epoch, and leads no more in this one."""
        path = paths.state(partition.topic, partition.index)
        while partition.role is Role.LEADER and partition.epoch == epoch:
            try:
                found = await self._cluster.read(path)
            except (ConnectionLost, StorageError):
                await trio.sleep(RETRY_S)
                continue
            if found is not None:
                partition.know(read_state(found.data), found.version, epoch, proposal)
            return
