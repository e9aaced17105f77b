"""Reads all logs, a little at a time, so that damage is found while another replica has what is lost.

Disks lose bytes, and nobody notices until they are read (Bairavasundaram et al., An Analysis of Latent Sector Errors in
Disk Drives, 2007). In a cluster, failed_logs.py mends a log that is found damaged, here or by a reader.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import trio

from krappy.broker.partition.partition import Partition
from krappy.errors import KrappyError

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

PORTION = 1 << 20  # bytes read at a time
FASTEST = 32 << 20  # bytes a second at most, however short the interval is
PAUSE_S = 60.0  # before each round


class Scrubber:
    """One round takes `scrub_interval_ms`, whatever the logs' sizes are. Each has another order of partitions, for a
    broker that is started often begins many rounds, and ends few."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._random = Random()

    async def run(self) -> None:
        """Until cancelled; nothing if the interval is 0."""
        while interval := self._runtime.config.scrub_interval_ms / 1000:
            await trio.sleep(min(PAUSE_S, interval))
            partitions = self._partitions()
            self._random.shuffle(partitions)
            for partition in partitions:
                try:
                    await self._scrub(partition, interval)
                except KrappyError:
                    if partition.log.damage:  # else it was cut or deleted
                        partition.report("log_damaged", why=partition.log.damage)

    async def _scrub(self, partition: Partition, interval: float) -> None:
        """Raises KrappyError."""
        log, offset = partition.log, 0
        end = log.end_offset
        rate = min(FASTEST, max(1, sum(each.size for each in self._partitions())) / interval)
        while log is partition.log and not (partition.gone or partition.spoiled):
            offset = max(offset, log.start_offset)
            if offset >= min(end, log.end_offset):
                return
            span = await self._runtime.in_thread(partial(log.verify, offset, PORTION))
            self._runtime.measures.scrubbed_bytes += len(span.data)
            offset = span.next_offset
            await trio.sleep(len(span.data) / rate)

    def _partitions(self) -> list[Partition]:
        return [each for topic in self._runtime.topics.values() for each in topic.local.values()]
