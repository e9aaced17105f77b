"""A broker's part in its cluster: its membership, what it is assigned, its ISRs, and what it fetches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from krappy.broker.replication import joining
from krappy.broker.replication.assignments import Assignments
from krappy.broker.replication.isr_keeper import IsrKeeper
from krappy.broker.replication.replica_logs import ReplicaLogs
from krappy.store.catalog import LocalCatalog
from krappy.store.local_replicas import LocalReplicas
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.topics.cluster_topics import ClusterTopicChanges
    from krappy.ports.cluster import FetcherPort, MembershipPort


class Replication:
    def __init__(
        self, runtime: Runtime, changes: ClusterTopicChanges, cluster: MembershipPort, fetcher: FetcherPort
    ) -> None:
        self.cluster = cluster
        self._runtime, self._changes, self._fetcher = runtime, changes, fetcher
        self._belonging, self._replicating = trio.CancelScope(), trio.CancelScope()
        self._assignments: Assignments

    async def enter(self, local: LocalCatalog) -> str:
        """Reads the cluster's tree, and checks that this folder may join it. Waits for ZooKeeper. The cluster's id.
        Raises StorageError, ConnectionLost, ShuttingDown."""
        runtime, cluster = self._runtime, self.cluster
        self._changes.replicas = await runtime.in_thread(lambda: LocalReplicas(runtime.meta))
        runtime.spawn(self._belong)
        while not cluster.is_current:
            if not await wait_any([cluster.changed, runtime.stopping], self._may_go_on, joining.PATIENCE_S):
                runtime.report("zookeeper_waits", servers=runtime.config.zookeeper_connect)
            runtime.check_taking()
        return await joining.join(runtime, cluster, local, self._changes.replicas)

    def _may_go_on(self) -> bool:
        return self.cluster.is_current or self._runtime.stopped

    async def open(self, endpoints: Mapping[str, tuple[str, int]]) -> None:
        """Opens this broker's replicas, and registers. `endpoints`: host and port by the listener's name. Raises
        StorageError."""
        runtime, cluster, replicas = self._runtime, self.cluster, self._changes.replicas
        logs = ReplicaLogs(runtime, replicas)
        self._assignments = assignments = Assignments(runtime, cluster, self._changes, logs, self._fetcher.set)
        await assignments.open()
        directory = await runtime.in_thread(replicas.directory)
        boot = "" if runtime.fsync else joining.boot_id()
        cluster.join(directory, boot, endpoints, assignments.has_lost, assignments.told)
        runtime.spawn(self._replicate)

    async def _belong(self) -> None:
        with self._belonging:
            await self.cluster.run(lambda: None)

    async def _replicate(self) -> None:
        with self._replicating:
            async with trio.open_nursery() as nursery:
                for run in (self._assignments.run, IsrKeeper(self._runtime, self.cluster).run, self._fetcher.run):
                    nursery.start_soon(run)

    def end(self) -> None:
        self._replicating.cancel()
        self._belonging.cancel()
