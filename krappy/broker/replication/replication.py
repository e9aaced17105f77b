"""A broker's part in its cluster: its membership, what it is assigned, its ISRs, and what it fetches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.replication import joining
from krappy.broker.replication.assignments import Assignments
from krappy.broker.replication.committed import CommittedNotes
from krappy.broker.replication.failed_logs import FailedLogs
from krappy.broker.replication.growth import Growth
from krappy.broker.replication.home import Home
from krappy.broker.replication.isr_keeper import IsrKeeper
from krappy.broker.replication.replica_logs import ReplicaLogs
from krappy.broker.tree_changes import change_registration
from krappy.broker.upkeep.machine import report_unclaimed
from krappy.core.cluster import znodes
from krappy.core.cluster.isr import leave_isr
from krappy.core.cluster.roles import Role
from krappy.core.cluster.tree import RefusedMulti
from krappy.errors import ConnectionLost, StorageError
from krappy.store.catalog import LocalCatalog
from krappy.store.format import PULSE
from krappy.store.local_replicas import LocalReplicas
from krappy.store.pulse import Pulse
from krappy.types import TopicPartition
from krappy.waiting import HANGS_S, wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.cluster_topics import ClusterTopicChanges
    from krappy.broker.topics.internal_topics import InternalTopics
    from krappy.broker.topics.topic import Topic
    from krappy.ports.cluster import FetcherPort, LogPeersPort, MembershipPort

DRAIN_S = 30.0  # controlled.shutdown.max.wait.ms
CLOSE_S = 1.0
PAUSE_S = 1.0  # after a part of it has failed
TRIES = 10  # at a state that its leader changes at the same time


class Replication:
    def __init__(
        self,
        runtime: Runtime,
        changes: ClusterTopicChanges,
        cluster: MembershipPort,
        fetcher: FetcherPort,
        peers: LogPeersPort,
    ) -> None:
        self.cluster, self._peers = cluster, peers
        self._runtime, self._changes, self._fetcher = runtime, changes, fetcher
        fetcher.quota = runtime.quotas.follower
        self._belonging, self._replicating = trio.CancelScope(), trio.CancelScope()
        self._assignments: Assignments
        self._logs: ReplicaLogs

    async def enter(self, local: LocalCatalog) -> str:
        """Reads the cluster's tree, and checks that this folder may join it. Waits for ZooKeeper, also when it is lost
        on the way. The cluster's id. Raises StorageError, ShuttingDown."""
        runtime, cluster = self._runtime, self.cluster
        self._changes.in_sync = self.in_sync
        self._changes.replicas = await runtime.in_thread(lambda: LocalReplicas(runtime.meta))
        runtime.spawn(self._belong)
        while True:
            while not cluster.is_current:
                if not await wait_any([cluster.changed, runtime.stopping], self._may_go_on, joining.PATIENCE_S):
                    runtime.report("zookeeper_waits", servers=runtime.config.zookeeper_connect)
                runtime.check_taking()
            try:
                return await joining.join(runtime, cluster, local, self._changes.replicas)
            except ConnectionLost as error:
                runtime.report("zookeeper_waits", servers=runtime.config.zookeeper_connect, error=str(error))
            await trio.sleep(PAUSE_S)
            runtime.check_taking()

    def _may_go_on(self) -> bool:
        return self.cluster.is_current or self._runtime.stopped

    async def open(self, endpoints: Mapping[str, tuple[str, int]], internal: InternalTopics) -> None:
        """Opens this broker's replicas, and registers. `endpoints`: host and port by the listener's name. Raises
        StorageError."""
        runtime, cluster, replicas = self._runtime, self.cluster, self._changes.replicas
        self._logs = logs = ReplicaLogs(runtime, replicas)
        self._assignments = assignments = Assignments(
            *(runtime, cluster, self._changes, logs, internal), self._fetcher.set, self._peers
        )
        await assignments.open()
        await runtime.in_thread(lambda: report_unclaimed(runtime))
        directory = await runtime.in_thread(replicas.directory)
        pulse = await runtime.in_thread(lambda: Pulse(runtime.config.data / PULSE))
        cluster.join(Home(runtime, logs, directory, pulse, endpoints))

    def may_read(self, topic: str, index: int, epoch: int) -> bool:
        """Whether it leads this partition, by all that it was told, in this leader epoch, and holds a read lease. A
        broker that was stopped may have a lease again before it has taken its new role: so the role is not enough."""
        found = self.cluster.image.topics.get(topic)
        if found is None or index >= len(found.partitions):
            return False
        state = found.partitions[index].state
        return (state.leader, state.leader_epoch) == (self._runtime.id, epoch) and self.cluster.may_read()

    def in_sync(self, topic: Topic, index: int) -> bool:
        """Whether its replica of a topic's partition is in sync, by all that it was told, and it holds a read lease:
        else it may not have been told yet of strays, of new partitions, or that there is another topic of that name."""
        found = self.cluster.image.topics.get(topic.name)
        if found is None or found.id != topic.id or len(found.partitions) != topic.count:
            return False
        return self._runtime.id in found.partitions[index].state.isr and self.cluster.may_read()

    def begin(self) -> None:
        """To be called once everything of this broker is open: takes its roles, and follows what is assigned to it."""
        self._runtime.spawn(self._replicate)

    def _is_told(self) -> bool:
        """Whether it holds a read lease, and has no topic that does not exist any more."""
        names = self.cluster.image.names
        return self.cluster.may_read() and all(
            names.get(each.id) == name for name, each in self._runtime.topics.items()
        )

    async def _belong(self) -> None:
        with self._belonging:
            while True:
                try:
                    await self.cluster.run(lambda: None)
                    return  # it was closed
                except Exception:  # a bug of ours: without its membership this broker would serve nothing any more
                    self._runtime.report("internal_error", task="ClusterMembership.run", exc_info=True)
                await trio.sleep(PAUSE_S)

    async def _replicate(self) -> None:
        with self._replicating:
            async with trio.open_nursery() as nursery:
                keeper, growth = IsrKeeper(self._runtime, self.cluster), Growth(self._runtime)
                failed = FailedLogs(self._runtime, self.cluster, self._assignments, self._logs)
                notes = CommittedNotes(self._runtime)
                still = partial(self._runtime.stillness.run, self._is_told)
                leaving = self._assignments.leaving
                parts = (
                    self._assignments.run,
                    leaving.run,
                    keeper.run,
                    self._fetcher.run,
                    growth.run,
                    failed.run,
                    notes.run,
                )
                for run in (*parts, still):
                    nursery.start_soon(self._keep_up, run)

    async def _keep_up(self, run: Callable[[], Awaitable[None]]) -> None:
        """Runs it until cancelled. A bug of ours in it must not end this broker's part."""
        while True:
            try:
                await run()
            except Exception:
                self._runtime.report("internal_error", task=getattr(run, "__qualname__", str(run)), exc_info=True)
            await trio.sleep(PAUSE_S)

    async def leave(self) -> None:
        """Before the broker stops: others take over what it leads, and nobody waits for it any more. After
        `DRAIN_S` seconds it stops as if it were killed."""
        runtime, cluster = self._runtime, self.cluster
        if cluster.epoch < 0:
            return
        runtime.report("draining", leads=len(self._movable()))
        with trio.move_on_after(DRAIN_S), suppress(ConnectionLost, StorageError, RefusedMulti):
            await change_registration(cluster, runtime.id, znodes.draining)
            signals = cluster.changed, runtime.topics.changed
            await wait_any(signals, lambda: not self._movable() or cluster.epoch < 0)
            # Its own disk may hang where it is to follow now. Nobody waits for that.
            await wait_any(signals, lambda: not self._still_leads() or cluster.epoch < 0, HANGS_S)
            await self._leave_isrs()
        self._replicating.cancel()
        with trio.move_on_after(CLOSE_S):
            await cluster.close()

    def _movable(self) -> list[TopicPartition]:
        """The partitions that it leads, as the cluster has it, and that another broker can take over."""
        image, own = self.cluster.image, self._runtime.id
        others = {id for id, each in image.brokers.items() if id != own and not each.draining}
        return [
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index, each in enumerate(topic.partitions)
            if each.state.leader == own and others & set(each.state.isr)
        ]

    def _still_leads(self) -> bool:
        """Whether it has not taken its new role in a partition that another broker leads by now."""
        image, own = self.cluster.image, self._runtime.id
        return any(
            partition.role is Role.LEADER and image.topics[name].partitions[index].state.leader != own
            for name, topic in self._runtime.topics.items()
            for index, partition in topic.local.items()
            if name in image.topics and index < len(image.topics[name].partitions)
        )

    async def _leave_isrs(self) -> None:
        for topic in list(self._runtime.topics.values()):
            for index in topic.local:
                for _ in range(TRIES):
                    found = self.cluster.image.topics.get(topic.name)
                    if found is None or not (wanted := leave_isr(found, index, self._runtime.id)):
                        break
                    with suppress(RefusedMulti):
                        await self.cluster.multi(wanted)

    def end(self) -> None:
        self._replicating.cancel()
        self._belonging.cancel()

    async def rest(self) -> None:
        """After `end`: gives up what this broker still leads. Its followers get no more answers, so nothing that waits
        for a commit will be committed here, and must not keep the broker from stopping."""
        async with trio.open_nursery() as nursery:
            for partition in self._runtime.topics.local():
                nursery.start_soon(partition.rest)
