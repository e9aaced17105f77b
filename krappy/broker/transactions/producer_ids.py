"""Producer ids: who may write under which.

Clients are given theirs one after the other, and nobody may write under one that was not given yet: its log would take
what its later owner sends for a retry. The broker's own, for the publications of staged jobs, come from a range that
no client is given any of, so that what a log has under one of them is that job's and nobody else's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import trio

from krappy.errors import InvalidTransaction, UnknownProducer

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime

OWN = 1 << 62  # the broker's own begin here


class ProducerIds:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._catalog = runtime.catalog
        self.owned: set[int] = set()  # of staged jobs that are being published; a job of before has a client's

    async def open(self) -> None:
        """Ids that stand in the logs are not given any more, whoever has written them there."""
        partitions = [each for topic in self._runtime.topics.values() for each in topic.local.values()]

        def know() -> None:
            self._catalog.know_producer_ids({id for each in partitions for id in each.producer_ids()})

        await trio.to_thread.run_sync(know, limiter=self._runtime.disk_limiter)

    async def new(self) -> int:
        """An id that no producer ever had, durably so."""
        return await trio.to_thread.run_sync(self._catalog.next_producer_id, limiter=self._runtime.disk_limiter)

    async def new_own(self, partitions: Collection[Partition]) -> int:
        """One of the broker's own, of which these partitions know nothing; a log of before there was such a range may
        know anything."""
        while True:
            id = OWN + await self.new()
            if not any(partition.has_producer(id) for partition in partitions):
                return id

    def check(self, id: int, *, transactional: bool) -> None:
        """Whether a client may write under it. Raises InvalidTransaction for the broker's own, UnknownProducer. What is
        `transactional` must be of an open transaction, too, which is looked at elsewhere."""
        if id >= OWN or id in self.owned:
            raise InvalidTransaction(f"producer {id} is the broker's own, for a staged job")
        if not transactional and not self._catalog.was_given(id):
            raise UnknownProducer(f"this broker has given the producer id {id} to nobody: ask for a new one")
