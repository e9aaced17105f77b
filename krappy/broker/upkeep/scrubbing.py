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
from krappy.store.local_replicas import ReplicaId
from krappy.waiting import Errands

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

PORTION = 1 << 20  # bytes read at a time
FASTEST = 32 << 20  # bytes a second at most, however short the interval is
PAUSE_S = 60.0  # before each round
EACH_S = 0.001  # before each log: thousands of them may be empty
STILL_S = 60.0  # a read that takes longer hangs: its log is left out of this round
MEASURE_S = 1.0  # between two times that all logs are measured


class Scrubber:
    """One round takes `scrub_interval_ms`, whatever the logs' sizes are. Each round has another order of partitions,
    since a broker that is started often begins many rounds, and ends few. Rounds are long, so between two reads nothing
    is held of a partition: its topic may be deleted."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._random = Random()
        self._size, self._measured = 0, -MEASURE_S  # bytes of all logs, and when that was so

    async def run(self) -> None:
        """Until cancelled; nothing if the interval is 0."""
        async with trio.open_nursery() as nursery:
            await self._run(Errands(nursery, STILL_S, lambda _: None))

    async def _run(self, reads: Errands[ReplicaId]) -> None:
        while interval := self._runtime.config.scrub_interval_ms / 1000:
            await trio.sleep(min(PAUSE_S, interval))
            keys = [(each.id, index) for each in self._runtime.topics.values() for index in each.local]
            self._random.shuffle(keys)
            for key in keys:
                await trio.sleep(EACH_S)
                offset, end, rate = 0, *self._extent(key, interval)
                while offset < end:
                    offset, size = await self._read_in_time(reads, key, offset, end)
                    await trio.sleep(size / rate)

    def _found(self, key: ReplicaId) -> Partition | None:
        """The partition to read; None: its topic is deleted, it is not here any more, or its damage is known."""
        id, index = key
        topic = self._runtime.topics.by_id.get(id)
        found = None if topic is None else topic.local.get(index)
        return None if found is None or found.gone or found.spoiled else found

    def _extent(self, key: ReplicaId, interval: float) -> tuple[int, float]:
        """(the end of its log; how many bytes of it to read a second)."""
        found = self._found(key)
        if found is None:
            return 0, FASTEST
        now = trio.current_time()
        if now - self._measured >= MEASURE_S:
            topics = self._runtime.topics.values()
            self._size, self._measured = sum(each.size for topic in topics for each in topic.local.values()), now
        return found.log.end_offset, min(FASTEST, max(1, self._size, found.size) / interval)

    async def _read_in_time(self, reads: Errands[ReplicaId], key: ReplicaId, offset: int, end: int) -> tuple[int, int]:
        """As `_read`. If the read hangs, the log is left out."""
        found = end, 0

        async def read() -> None:
            nonlocal found
            found = await self._read(key, offset, end)

        await reads.run({key: read})
        return found

    async def _read(self, key: ReplicaId, offset: int, end: int) -> tuple[int, int]:
        """(the offset from which to go on; how many bytes were read)."""
        found = self._found(key)
        if found is None:
            return end, 0
        log = found.log
        try:
            span = await self._runtime.in_thread(partial(log.verify, max(offset, log.start_offset), PORTION))
        except KrappyError:
            if log.damage:  # else it was cut or deleted
                found.tell_damage()
            return end, 0
        self._runtime.measures.scrubbed_bytes += len(span.data)
        return (span.next_offset if len(span.data) else end), len(span.data)
