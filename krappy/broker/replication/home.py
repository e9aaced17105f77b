"""What a broker's registration tells: where its data folder is, and what the folder has of the cluster's partitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.replication.joining import boot_id
from krappy.broker.replication.replica_logs import ReplicaLogs
from krappy.broker.topics.catalog import FAR
from krappy.core.cluster.image import Image, TopicImage
from krappy.core.cluster.registration import Loss
from krappy.core.epochs import is_far
from krappy.core.staging import OWN
from krappy.store.pulse import Pulse
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

DOUBT_S = 60.0  # for which a broker that is started again still knows that ZooKeeper was given older data
PULSE_S = 5.0  # an old copy of the data folder that lacks less than this may not be noticed


class Home:
    """Implements `HomePort`."""

    def __init__(
        self,
        runtime: Runtime,
        logs: ReplicaLogs,
        directory: str,
        pulse: Pulse,
        endpoints: Mapping[str, tuple[str, int]],
    ) -> None:
        self._runtime, self._logs, self._pulse = runtime, logs, pulse
        self._beats_at = -math.inf  # on trio's clock
        self._lease = pulse.lease
        self._notes = False  # the lease is being noted on disk
        self._doubts_until = -math.inf
        self.directory, self.endpoints = directory, endpoints
        self.boot = "" if runtime.fsync else boot_id()

    @property
    def moved(self) -> Signal:
        return self._runtime.room.moved

    @property
    def away(self) -> bool:
        return self._runtime.room.away

    @property
    def pulse(self) -> int:
        return self._pulse.count

    @property
    def lease(self) -> int:
        return self._lease

    def producer_ids(self, following: int) -> int:
        partitions = [each for each in self._runtime.topics.local() if not each.offline]
        found = {id - OWN if id >= OWN else id for each in partitions for id in each.producer_ids()}
        return max((id + 1 for id in found if following <= id < following + FAR), default=following)

    def renewed(self, lease: int) -> None:
        if lease < self._lease and trio.current_time() < self._doubts_until:
            return
        self._lease = lease
        if not self._notes:
            self._notes = True
            self._runtime.spawn(self._note)

    async def _note(self) -> None:
        await self._aside(partial(self._pulse.note, self._lease))
        self._notes = False

    async def doubt(self) -> None:
        self._doubts_until = trio.current_time() + DOUBT_S
        for partition in self._runtime.topics.local():
            if not partition.offline:
                partition.log.claim = partition.log.epochs.at(partition.log.end_offset - 1), partition.log.end_offset
        image, replicas = self._runtime.image, self._logs.replicas
        reached = self._runtime.reached
        others = [each for each in replicas.all() if reached.of(*each).committed and not self._is_own(image, *each)]
        await self._runtime.in_thread(partial(replicas.keep, others))

    def _is_own(self, image: Image, topic_id: bytes, index: int) -> bool:
        """Whether the cluster names this broker for a partition."""
        found = image.topics.get(image.names.get(topic_id, ""))
        return found is not None and any(
            self._runtime.id in each.replicas for each in found.partitions[index : index + 1]
        )

    def beat(self) -> None:
        if trio.current_time() >= self._beats_at:
            self._beats_at = math.inf
            self._runtime.spawn(self._beat)

    async def _beat(self) -> None:
        await self._aside(self._pulse.beat)
        self._beats_at = trio.current_time() + PULSE_S

    async def _aside(self, work: Callable[[], None]) -> None:
        # A broker that stops does not wait if this hangs with the disk.
        await trio.to_thread.run_sync(work, limiter=self._runtime.disk_limiter, abandon_on_cancel=True)

    async def new_start(self, registered: str) -> tuple[str, bool]:
        return await self._runtime.in_thread(partial(self._logs.replicas.new_start, registered))

    def has_lost(self, topic: TopicImage, index: int) -> Loss | None:
        return self._logs.has_lost(topic.id, index)

    def seen_epoch(self, topic: TopicImage, index: int) -> int:
        found = self._runtime.topics.by_id.get(topic.id)
        partition = None if found is None else found.local.get(index)
        known = topic.partitions[index].state.leader_epoch
        if partition is None:  # it was moved here, perhaps, after ZooKeeper's data
            kept = (topic.id, index) in self._logs.replicas
            written = self._runtime.reached.of(topic.id, index).epoch if kept else -1
            return -1 if is_far(written, known) else written
        log, known = partition.log, max(partition.epoch, known)
        written = log.epochs.at(log.end_offset)
        if not is_far(written, known):
            return max(partition.epoch, written)
        log.damage = log.damage or f"{log.folder}: it has events of leader epoch {written}, and {known} is the last"
        return partition.epoch

    def told(self) -> None:
        empty = self._logs.told()
        if empty:
            self._runtime.spawn(self._runtime.in_thread, partial(self._logs.forget_losses, empty))
