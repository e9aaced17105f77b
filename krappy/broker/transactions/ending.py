"""Ends transactions in the partitions that this broker leads (WriteTxnMarkers).

In a partition of the topic of groups' offsets, what the transaction has staged there for groups is settled once the
marker is committed. So of two coordinators only one settles it: the marker of the older one is refused. So is a marker
that comes late, when the producer has staged offsets in its next transaction.

A coordinator sends the markers for all partitions of a broker by one connection, which answers in the order of the
requests. So a marker that takes longer than `HANGS_S` is not waited for, and the coordinator asks again: then it waits
for the same marker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import trio

from krappy.broker.partition.verification import check_not_late
from krappy.broker.topics.internal_topics import OFFSETS
from krappy.core.cluster.roles import Role
from krappy.errors import InvalidRequest, KrappyError, RequestTimeout
from krappy.ports import StoredAt, TransactionEnd
from krappy.types import TopicPartition
from krappy.waiting import HANGS_S, Later

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
        self._waiting: dict[tuple[TransactionEnd, TopicPartition], list[Later[None]]] = {}
        self._begun: deque[tuple[float, TopicPartition, Later[None]]] = deque()  # when each of these began to wait
        runtime.topics.changed.subscribe(self._forget_earlier)

    def end(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> list[Later[None]]:
        """A Later for each partition: resolved once the transaction has ended there, durably. May be done twice.
        Rejected with NotLeader, UnknownTopic, CoordinatorNotAvailable, RequestTimeout, …; CoordinatorFenced,
        ProducerFenced and InvalidTransaction as by `Partition.end_as_told`."""
        return [self._wait_for(end, at) for at in partitions]

    def _wait_for(self, end: TransactionEnd, at: TopicPartition) -> Later[None]:
        """As `_end`, but rejected with RequestTimeout after `HANGS_S`."""
        waiting = self._waiting.get((end, at))
        if waiting is None:
            ended = self._end(end, at)
            if ended.done:
                return ended
            waiting = self._waiting[end, at] = []

            def tell(_: None, error: Exception | None) -> None:
                for each in self._waiting.pop((end, at)):
                    each.resolve(None) if error is None else each.reject(error)

            ended.then(tell)
        later: Later[None] = Later()
        waiting.append(later)
        self._begun.append((trio.current_time(), at, later))
        if len(self._begun) == 1:
            self._runtime.spawn(self._give_up_late)
        return later

    async def _give_up_late(self) -> None:
        while self._begun:
            began, at, later = self._begun[0]
            if not later.done:
                await trio.sleep_until(began + HANGS_S)
            later.reject(RequestTimeout(f"{at}: the marker is not on the disks of all replicas in sync yet"))
            self._begun.popleft()

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
