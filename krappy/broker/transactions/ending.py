"""Ends transactions in the partitions that this broker leads (WriteTxnMarkers).

In a partition of the topic of groups' offsets, what the transaction has staged there for groups is settled once the
marker is committed. So of two coordinators only one settles it: the marker of the older one is refused. So is a marker
that comes late, when the producer has staged offsets in its next transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from krappy.broker.partition.verification import check_not_late
from krappy.broker.topics.internal_topics import OFFSETS
from krappy.core.cluster.roles import Role
from krappy.errors import InvalidRequest, KrappyError
from krappy.ports import StoredAt, TransactionEnd
from krappy.types import TopicPartition
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.runtime import Runtime


class StagedFor(NamedTuple):
    """The transaction that a producer has staged offsets in."""

    epoch: int
    number: int


class StagedIn(NamedTuple):
    """What is staged in a partition of the topic of offsets, by producer id. `led`: the leader epoch in which it was
    staged; in a later one it is not known."""

    led: int
    by_producer: dict[int, StagedFor]


class TransactionEnds:
    def __init__(self, runtime: Runtime, groups: KafkaGroups) -> None:
        self._runtime, self._groups = runtime, groups
        self._staged: dict[int, StagedIn] = {}  # by partition
        runtime.topics.changed.subscribe(self._forget_earlier)

    def end(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> list[Later[None]]:
        """A Later for each partition: resolved once the transaction has ended there, durably. May be done twice.
        Rejected with NotLeader, UnknownTopic, CoordinatorNotAvailable, …; CoordinatorFenced, ProducerFenced and
        InvalidTransaction as by `Partition.end_as_told`."""
        return [self._end(end, at) for at in partitions]

    def staging(self, index: int, producer_id: int, staged: StagedFor) -> None:
        """Offsets of groups of this partition are about to be staged, in its leader epoch now. Raises NotLeader."""
        self._staged_in(index)[producer_id] = staged

    def _staged_in(self, index: int) -> dict[int, StagedFor]:
        """What is staged in this partition, by producer id. Raises NotLeader."""
        led = self._runtime.topics.led(TopicPartition(OFFSETS, index)).epoch
        known = self._staged.get(index)
        if known is None or known.led != led:
            known = self._staged[index] = StagedIn(led, {})
        return known.by_producer

    def _forget_earlier(self) -> None:
        """Forgets what was staged in leader epochs that are over."""
        topic = self._runtime.topics.get(OFFSETS)
        local = {} if topic is None else topic.local
        for index, known in list(self._staged.items()):
            partition = local.get(index)
            if partition is None or partition.role is not Role.LEADER or partition.epoch != known.led:
                del self._staged[index]

    def _end(self, end: TransactionEnd, at: TopicPartition) -> Later[None]:
        ended: Later[None] = Later()

        def marked(stored: StoredAt | None, error: Exception | None) -> None:
            if error is not None:
                ended.reject(error)
            elif at.topic != OFFSETS:
                ended.resolve(None)
            else:
                try:
                    self._check_staged(end, at.partition)
                    self._staged_in(at.partition).pop(end.producer_id, None)
                    settled = self._groups.settle(at.partition, end.producer_id, end.commit)
                except KrappyError as failed:
                    ended.reject(failed)
                else:
                    settled.then(lambda _, failed: ended.resolve(None) if failed is None else ended.reject(failed))

        try:
            if end.producer_id < 0:
                raise InvalidRequest(f"a marker of the producer id {end.producer_id}")
            if at.topic == OFFSETS:
                self._groups.check_loaded(at.partition)
                self._check_staged(end, at.partition)
            self._runtime.topics.led(at).end_as_told(end).then(marked)
        except KrappyError as error:
            ended.reject(error)
        return ended

    def _check_staged(self, end: TransactionEnd, index: int) -> None:
        """Raises as `check_not_late`, and NotLeader."""
        staged = self._staged_in(index).get(end.producer_id)
        if staged is not None:
            check_not_late(end, staged.epoch, staged.number)
