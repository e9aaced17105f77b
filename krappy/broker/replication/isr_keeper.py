"""The leader's care for the ISRs of its partitions: followers that lag leave, those that have caught up come back.

It looks often where a follower is out or an event waits to be committed, and once a second at all other partitions:
where nothing is written, nobody waits for a follower that has died.

A follower comes back only while it renews its lease. So while one is out, this leader reads the leases.

A change is a write that demands the state's version. If it is refused, or its answer is lost, the state that is read
after it is in force. Until that is known, the replica set counts with both ISRs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.core.cluster import paths
from krappy.core.cluster.image import PartitionImage
from krappy.core.cluster.isr import addable, change_isr
from krappy.core.cluster.presence import Renewals
from krappy.core.cluster.replica_set import Proposal
from krappy.core.cluster.roles import Role
from krappy.core.cluster.state import read_state
from krappy.core.cluster.tree import RefusedMulti
from krappy.errors import ConnectionLost, StorageError

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import MembershipPort

LOOK_S = 0.1
LOOKS = 10  # it looks at partitions at which nothing happens at every so-manieth look only, if they are many
FEW = 100  # partitions of which it always looks at all
LISTEN_S = 0.2  # between two reads of the leases
RETRY_S = 0.2  # after a read that failed


class IsrKeeper:
    def __init__(self, runtime: Runtime, cluster: MembershipPort) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._renewals = Renewals()
        self._restless: set[Partition] = set()  # those that this broker leads, and at which something is to come
        self._walk: Iterator[Partition] = iter(())  # over all partitions, a part of them at each look
        self._part = 0  # how many

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            while True:
                await trio.sleep(LOOK_S)
                for partition, proposal in self._due():
                    nursery.start_soon(self._change, partition, proposal)

    async def _listen(self) -> None:
        """Looks which brokers renew their leases, while one of them could come into an ISR."""
        while True:
            await trio.sleep(LISTEN_S)
            if not self._are_out():
                self._renewals = Renewals()
                continue
            image = self._cluster.image
            try:
                found = {each: await self._cluster.read(paths.lease(each)) for each in image.brokers}
            except (ConnectionLost, StorageError):
                continue
            leases = {broker: znode.version for broker, znode in found.items() if znode is not None}
            self._renewals.look(image, leases, trio.current_time() * 1000)

    def _are_out(self) -> bool:
        """Whether a partition that this broker leads has a replica which may come into its ISR."""
        return any(
            addable(self._cluster.image, found).keys() - each.replicas.isr
            for each in self._restless
            if each.role is Role.LEADER and (found := self._image(each)) is not None
        )

    def _addable(self, image: PartitionImage) -> dict[int, int]:
        heard = self._renewals.heard
        return {id: epoch for id, epoch in addable(self._cluster.image, image).items() if heard(id)}

    def _due(self) -> list[tuple[Partition, Proposal]]:
        cluster, now = self._cluster, trio.current_time() * 1000
        if not cluster.is_current or cluster.epoch < 0:
            return []
        lag = self._runtime.lag_ms
        found = []
        partitions, self._restless = self._next() | self._restless, set()
        for partition in partitions:
            if partition.role is not Role.LEADER:
                continue
            image = self._image(partition)
            if image is None or len(partition.replicas.isr) == len(image.replicas) == 1:
                continue
            if len(partition.replicas.isr) < len(image.replicas) or partition.high_watermark < partition.log.end_offset:
                self._restless.add(partition)
            if image.version != partition.state_version:
                continue  # a newer state is about to be taken
            proposal = partition.replicas.propose(self._addable(image), now, lag)
            if proposal is not None:
                found.append((partition, proposal))
        return found

    def _next(self) -> set[Partition]:
        """The next part of all partitions: in a second it comes to each of them."""
        found = set(islice(self._walk, self._part))
        if len(found) < self._part or not self._part:
            partitions = list(self._runtime.topics.local())
            self._part = max(FEW, len(partitions) // LOOKS + 1)
            self._walk = iter(partitions)
            found |= set(islice(self._walk, self._part))
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
        """Learns whether a write whose answer was lost was done. The read comes after it in the same session. In a
        later session this broker has another epoch, and does not lead in this leader epoch any more."""
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
