"""What a broker's registration tells: where its data folder is, and what the folder has of the cluster's partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.replication.joining import boot_id
from krappy.broker.replication.replica_logs import ReplicaLogs
from krappy.core.cluster.image import TopicImage
from krappy.core.cluster.registration import Loss
from krappy.core.epochs import is_far
from krappy.store.pulse import Pulse
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

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

    def beat(self) -> None:
        if trio.current_time() >= self._beats_at:
            self._beats_at = math.inf
            self._runtime.spawn(self._beat)

    async def _beat(self) -> None:
        # A broker that stops waits for no beat that hangs with the disk.
        await trio.to_thread.run_sync(self._pulse.beat, limiter=self._runtime.disk_limiter, abandon_on_cancel=True)
        self._beats_at = trio.current_time() + PULSE_S

    async def new_start(self, registered: str) -> tuple[str, bool]:
        return await self._runtime.in_thread(partial(self._logs.replicas.new_start, registered))

    def has_lost(self, topic: TopicImage, index: int) -> Loss | None:
        return self._logs.has_lost(topic.id, index)

    def seen_epoch(self, topic: TopicImage, index: int) -> int:
        found = self._runtime.topics.by_id.get(topic.id)
        partition = None if found is None else found.local.get(index)
        if partition is None:
            return -1
        log, known = partition.log, max(partition.epoch, topic.partitions[index].state.leader_epoch)
        written = log.epochs.at(log.end_offset)
        if not is_far(written, known):
            return max(partition.epoch, written)
        log.damage = log.damage or f"{log.folder}: it has events of leader epoch {written}, and {known} is the last"
        return partition.epoch

    def told(self) -> None:
        empty = self._logs.told()
        if empty:
            self._runtime.spawn(self._runtime.in_thread, partial(self._logs.forget_losses, empty))
