"""This broker's part in transactions that any broker may coordinate: it leads their partitions, or coordinates groups
whose offsets are committed in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from krappy.broker.topics.internal_topics import OFFSETS, TRANSACTIONS
from krappy.broker.transactions.markers import group_parts
from krappy.core.cluster.state import NOBODY
from krappy.errors import (
    CoordinatorNotAvailable,
    InvalidTransaction,
    KrappyError,
    NotEnoughReplicas,
    ProducerFenced,
)
from krappy.ports import GroupMember, Position
from krappy.store.group_offsets import Offset
from krappy.types import TopicPartition
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.coordinators import Coordinators
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.ending import TransactionEnds
    from krappy.broker.transactions.transactions import TransactionCoordinator
    from krappy.ports.cluster import TransactionPeersPort

PATIENCE_S = 10.0  # for a coordinator that can't be asked now
PAUSE_S = 0.1


class TransactionParticipant:
    def __init__(
        self,
        runtime: Runtime,
        coordinators: Coordinators,
        coordinator: TransactionCoordinator,
        groups: KafkaGroups,
        ends: TransactionEnds,
        peers: TransactionPeersPort | None,
    ) -> None:
        """`peers`: None: this broker is alone."""
        self._runtime, self._coordinators, self._coordinator = runtime, coordinators, coordinator
        self._groups, self._ends, self._peers = groups, ends, peers

    def end(
        self, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, partitions: Iterable[TopicPartition]
    ) -> list[Later[None]]:
        """As `TransactionEnds.end`."""
        return self._ends.end(producer_id, epoch, coordinator_epoch, commit, partitions)

    async def verify(self, name: str, producer_id: int, epoch: int, at: TopicPartition) -> None:
        """Asks the coordinator of the transactional id whether the partition is in this producer's transaction
        (KIP-890). Raises InvalidTransaction, ProducerFenced; NotEnoughReplicas, after which clients try again, when no
        coordinator can tell within `PATIENCE_S`."""
        end = trio.current_time() + PATIENCE_S
        while True:
            try:
                await self._ask(name, producer_id, epoch, at)
                return
            except (InvalidTransaction, ProducerFenced):
                raise
            except KrappyError as error:
                if trio.current_time() > end or self._runtime.stopped:
                    raise NotEnoughReplicas(f"{at}: no coordinator of '{name:.100}' can be asked: {error}") from error
            await trio.sleep(PAUSE_S)

    async def _ask(self, name: str, producer_id: int, epoch: int, at: TopicPartition) -> None:
        leader = self._coordinators.leader(TRANSACTIONS, name)
        if leader == self._runtime.id or self._peers is None:
            await self._coordinator.verify(name, producer_id, epoch, at)
        elif leader == NOBODY:
            raise CoordinatorNotAvailable("it is away")
        else:
            await self._peers.verify(leader, name, producer_id, epoch, at)

    async def stage_offsets(
        self, name: str, producer_id: int, epoch: int, member: GroupMember, offsets: Mapping[TopicPartition, Position]
    ) -> None:
        """TxnOffsetCommit: these become the group's offsets when the transaction commits. Durable when it returns.

        Raises as core's `check_offsets`, and Refused when the group does not have this member in this generation.
        """
        if self._peers is None:
            self._coordinator.check_offsets(name, producer_id, epoch, member.group)
        else:
            await self._verify_group(name, producer_id, epoch, member.group)
        now = self._runtime.clock.steady_ms()
        staged = {(at.topic, at.partition): Offset(*position, now) for at, position in offsets.items()}
        await self._groups.stage_offsets(
            member.group, producer_id, member.id, member.generation, member.instance_id, staged
        )

    async def _verify_group(self, name: str, producer_id: int, epoch: int, group: str) -> None:
        """What is staged after its transaction has ended would be staged for ever. Raises as `verify`, but
        CoordinatorNotAvailable when no coordinator can tell."""
        self._check_coordinates(group)
        for at in group_parts(self._runtime.image, [group]):
            partition = self._runtime.topics.led(at)
            while True:
                ended = partition.log.producers.ended.get(producer_id)
                try:
                    await self.verify(name, producer_id, epoch, at)
                except NotEnoughReplicas as error:
                    raise CoordinatorNotAvailable(error.text) from error
                if partition.log.producers.ended.get(producer_id) == ended:  # else that answer may be of before
                    break
        self._check_coordinates(group)

    def _check_coordinates(self, group: str) -> None:
        """Raises NotCoordinator, CoordinatorNotAvailable unless this broker coordinates the group."""
        why = self._coordinators.elsewhere(OFFSETS, group)
        if why is not None:
            raise why
