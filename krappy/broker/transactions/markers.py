"""Writes the markers of a transaction that is decided, to all its partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import trio

from krappy.broker.topics.internal_topics import OFFSETS
from krappy.broker.transactions.turns import written
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.image import Image
from krappy.core.cluster.state import NOBODY
from krappy.core.transactions import Transaction
from krappy.errors import (
    CoordinatorFenced,
    CoordinatorNotAvailable,
    KrappyError,
    ProducerFenced,
    StorageError,
    UnknownPartition,
    UnknownTopic,
)
from krappy.ports import TransactionEnd
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.ending import TransactionEnds
    from krappy.ports.cluster import TransactionPeersPort


class Markers(Protocol):
    async def write(self, transaction: Transaction, commit: bool, coordinator_epoch: int) -> None:
        """Ends the transaction everywhere. May be done twice. Topics that are deleted do not count. Raises KrappyError
        when that did not succeed everywhere: then it is to be done again."""


class LocalMarkers:
    """Implements `Markers` for a broker that is alone."""

    def __init__(self, runtime: Runtime, groups: KafkaGroups) -> None:
        self._runtime, self._groups = runtime, groups

    async def write(self, transaction: Transaction, commit: bool, coordinator_epoch: int) -> None:
        markers = []
        refused: StorageError | None = None
        for at in sorted(transaction.partitions):
            try:
                partition = self._runtime.topics.led(at)
                markers.append(partition.end_transaction(transaction.producer_id, transaction.epoch, commit))
            except (UnknownTopic, UnknownPartition):
                continue  # deleted, with all of the transaction's events
            except StorageError as error:
                refused = error  # a partition that is out of service does not keep the others waiting
        await written(markers)
        if refused is not None:
            raise refused
        for group in sorted(transaction.groups):
            await self._groups.complete_transaction(group, transaction.producer_id, commit)


class ClusterMarkers:
    """Implements `Markers` for a broker of a cluster: the leader of each partition writes its marker. For the offsets
    of groups, these are also the partitions of `__consumer_offsets` that the groups belong to."""

    def __init__(self, runtime: Runtime, ends: TransactionEnds, peers: TransactionPeersPort) -> None:
        self._runtime, self._ends, self._peers = runtime, ends, peers

    async def write(self, transaction: Transaction, commit: bool, coordinator_epoch: int) -> None:
        shares: dict[int, list[TopicPartition]] = defaultdict(list)
        image = self._runtime.image
        for at in sorted(transaction.partitions | group_parts(image, transaction.groups)):
            topic = image.topics.get(at.topic)
            if topic is not None and at.partition < len(topic.partitions):  # else it is deleted
                shares[topic.partitions[at.partition].state.leader].append(at)
        end = TransactionEnd(
            *(transaction.producer_id, transaction.epoch, commit, coordinator_epoch),
            bumped=transaction.bumped,
            number=transaction.number,
        )
        troubles: list[KrappyError] = []

        async def tell(broker: int, share: list[TopicPartition]) -> None:
            try:
                for error in await self._tell(broker, end, share):
                    if not isinstance(error, ProducerFenced | None):  # a newer epoch has ended all of this one's
                        troubles.append(error)
            except KrappyError as error:
                troubles.append(error)

        async with trio.open_nursery() as nursery:
            for broker, share in shares.items():
                nursery.start_soon(tell, broker, share)
        if troubles:  # an error that says that this coordinator was deposed tells the most
            raise next((each for each in troubles if isinstance(each, CoordinatorFenced)), troubles[0])

    async def _tell(
        self, broker: int, end: TransactionEnd, share: list[TopicPartition]
    ) -> Iterable[KrappyError | None]:
        """The error of each partition, or None if its marker was written. Raises KrappyError if that is not known of
        any."""
        if broker == NOBODY:
            raise CoordinatorNotAvailable(f"nobody leads {share[0]} now")
        if broker != self._runtime.id:
            return await self._peers.write_markers(broker, end, share)
        found: list[KrappyError | None] = []
        for later in self._ends.end(end, share):
            try:
                await later.wait()
                found.append(None)
            except KrappyError as error:
                found.append(error)
        return found


def group_parts(image: Image, groups: Iterable[str]) -> frozenset[TopicPartition]:
    """The partitions of the topic of groups' offsets that these groups belong to."""
    topic = image.topics.get(OFFSETS)
    if topic is None:
        return frozenset()
    return frozenset(TopicPartition(OFFSETS, partition_of(group, len(topic.partitions))) for group in groups)
