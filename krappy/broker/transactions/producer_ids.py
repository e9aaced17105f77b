"""Producer ids, and who may write under which.

Clients get ascending ids. Nobody may write under an id that was not given out yet: the log would take the events of its
later owner for retries. The broker's own ids, for publishing staged jobs, come from a range that clients never get. So
all that a log has under such an id belongs to that job.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from krappy.core.staging import OWN
from krappy.errors import InvalidTransaction, UnknownProducer

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.runtime import Runtime


class ProducerIds:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._catalog = runtime.catalog
        self.owned: set[int] = set()  # ids of staged jobs that are being published; old jobs may have a client's id

    async def open(self) -> None:
        """Makes sure that ids that stand in the logs are not given out."""
        partitions = [each for topic in self._runtime.topics.values() for each in topic.local.values()]

        found = await self._runtime.in_thread(
            lambda: {id - OWN if id >= OWN else id for each in partitions for id in each.producer_ids()}
        )
        await self._catalog.know_producer_ids(found)

    async def new(self) -> int:
        """A new id for a client. That it was given out is durable on return."""
        return await self._catalog.next_producer_id()

    async def new_own(self, partitions: Collection[Partition]) -> int:
        """A new id of the broker's own that these partitions do not know. Logs that are older than the broker's own
        range may have any id."""
        while True:
            id = OWN + await self.new()
            if not any(partition.has_producer(id) for partition in partitions):
                return id

    def check(self, id: int, *, transactional: bool) -> None:
        """Checks that a client may write under the id. Raises InvalidTransaction for the broker's own; UnknownProducer.
        A `transactional` batch needs an open transaction too, which is checked elsewhere."""
        if id >= OWN or id in self.owned:
            raise InvalidTransaction(f"producer {id} is the broker's own, for a staged job")
        if not transactional and not self._catalog.was_given(id):
            raise UnknownProducer(f"this broker has given the producer id {id} to nobody: ask for a new one")
