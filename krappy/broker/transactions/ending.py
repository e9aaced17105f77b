"""Ends transactions in the partitions that this broker leads (WriteTxnMarkers).

In a partition of the topic of groups' offsets, what the transaction has staged there for groups is settled once the
marker is committed. So of two coordinators only one settles it: the marker of the older one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from krappy.broker.topics.internal_topics import OFFSETS
from krappy.errors import InvalidRequest, KrappyError
from krappy.ports import StoredAt
from krappy.types import TopicPartition
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.runtime import Runtime


class TransactionEnds:
    def __init__(self, runtime: Runtime, groups: KafkaGroups) -> None:
        self._runtime, self._groups = runtime, groups

    def end(
        self, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, partitions: Iterable[TopicPartition]
    ) -> list[Later[None]]:
        """A Later for each partition: resolved once the transaction has ended there, durably. May be done twice.
        Rejected with NotLeader, UnknownTopic, CoordinatorNotAvailable, …; CoordinatorFenced and ProducerFenced as by
        `Partition.end_transaction`."""
        return [self._end(producer_id, epoch, coordinator_epoch, commit, at) for at in partitions]

    def _end(
        self, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, at: TopicPartition
    ) -> Later[None]:
        ended: Later[None] = Later()

        def marked(stored: StoredAt | None, error: Exception | None) -> None:
            if error is not None:
                ended.reject(error)
            elif at.topic != OFFSETS:
                ended.resolve(None)
            else:
                try:
                    settled = self._groups.settle(at.partition, producer_id, commit)
                except KrappyError as failed:
                    ended.reject(failed)
                else:
                    settled.then(lambda _, failed: ended.resolve(None) if failed is None else ended.reject(failed))

        try:
            if producer_id < 0:
                raise InvalidRequest(f"a marker of the producer id {producer_id}")
            if at.topic == OFFSETS:
                self._groups.check_loaded(at.partition)
            partition = self._runtime.topics.led(at)
            partition.end_transaction(producer_id, epoch, commit, coordinator_epoch).then(marked)
        except KrappyError as error:
            ended.reject(error)
        return ended
