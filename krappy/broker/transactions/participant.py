"""This broker's part in transactions that any broker may coordinate: it leads their partitions, or coordinates groups
whose offsets are committed in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from krappy.broker.topics.internal_topics import OFFSETS, TRANSACTIONS
from krappy.broker.transactions.ending import StagedFor
from krappy.broker.transactions.markers import group_parts
from krappy.core.cluster.state import NOBODY
from krappy.errors import (
    CoordinatorNotAvailable,
    InvalidTransaction,
    KrappyError,
    NotEnoughReplicas,
    ProducerFenced,
    TransactionFenced,
    UnknownProducerMapping,
)
from krappy.ports import GroupMember, Position, TransactionalSender
from krappy.store.group_offsets import Offset
from krappy.types import TopicPartition
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.coordinators import Coordinators
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.ending import TransactionEnds
    from krappy.broker.transactions.transactions import TransactionCoordinator
    from krappy.ports import TransactionEnd
    from krappy.ports.cluster import TransactionPeersPort

PATIENCE_S = 10.0  # how long it tries to ask a coordinator
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

    def end(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> list[Later[None]]:
        """As `TransactionEnds.end`."""
        return self._ends.end(end, partitions)

    async def verify(self, sender: TransactionalSender, producer_id: int, epoch: int, at: TopicPartition) -> int:
        """Asks the coordinator of the transactional id whether the partition is in this producer's transaction, or to
        add it (KIP-890). Gives the number of the transaction.

        Raises InvalidTransaction, ProducerFenced, UnknownProducerMapping; NotEnoughReplicas, after which clients try
        again, when no coordinator can tell within `PATIENCE_S`, or the transaction before is still being completed.
        """
        end = trio.current_time() + PATIENCE_S
        while True:
            try:
                return await self._ask(sender, producer_id, epoch, at)
            except (InvalidTransaction, ProducerFenced, UnknownProducerMapping):
                raise
            except TransactionFenced as error:
                raise ProducerFenced(error.text) from error
            except KrappyError as error:
                if trio.current_time() > end or self._runtime.stopped:
                    who = f"no coordinator of '{sender.transactional_id:.100}' can be asked"
                    raise NotEnoughReplicas(f"{at}: {who}: {error}") from error
            await trio.sleep(PAUSE_S)

    async def _ask(self, sender: TransactionalSender, producer_id: int, epoch: int, at: TopicPartition) -> int:
        name, adds = sender
        leader = self._coordinators.leader(TRANSACTIONS, name)
        if leader == self._runtime.id or self._peers is None:
            if adds:
                return await self._coordinator.add_partitions(name, producer_id, epoch, [at])
            return await self._coordinator.verify(name, producer_id, epoch, at)
        if leader == NOBODY:
            raise CoordinatorNotAvailable("it is away")
        return await self._peers.verify(leader, name, producer_id, epoch, at, adds=adds)

    async def stage_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        member: GroupMember,
        offsets: Mapping[TopicPartition, Position],
        *,
        adds: bool = False,
    ) -> None:
        """TxnOffsetCommit: these become the group's offsets when the transaction commits. Durable when it returns.
        `adds`: it adds the group to the transaction, too.

        Raises as core's `check_offsets`, and Refused when the group does not have this member in this generation.
        """
        if self._peers is None:
            if adds:
                await self._coordinator.add_group(name, producer_id, epoch, member.group)
            self._coordinator.check_offsets(name, producer_id, epoch, member.group)
        else:
            await self._verify_group(TransactionalSender(name, adds), producer_id, epoch, member.group)
        now = self._runtime.clock.steady_ms()
        staged = {(at.topic, at.partition): Offset(*position, now) for at, position in offsets.items()}
        await self._groups.stage_offsets(
            member.group, producer_id, member.id, member.generation, member.instance_id, staged
        )

    async def _verify_group(self, sender: TransactionalSender, producer_id: int, epoch: int, group: str) -> None:
        """Checks that the group is in the transaction: what is staged after the end of its transaction would be staged
        for ever. Raises as `verify`, but CoordinatorNotAvailable when no coordinator can tell."""
        self._check_coordinates(group)
        for at in group_parts(self._runtime.image, [group]):
            partition = self._runtime.topics.led(at)
            while True:
                led, ended = partition.epoch, partition.log.producers.ended.get(producer_id)
                try:
                    number = await self.verify(sender, producer_id, epoch, at)
                except NotEnoughReplicas as error:
                    raise CoordinatorNotAvailable(error.text) from error
                if (partition.epoch, partition.log.producers.ended.get(producer_id)) == (led, ended):
                    break  # else the answer may be out of date
            self._ends.staging(at.partition, producer_id, StagedFor(epoch, number))
        self._check_coordinates(group)

    def _check_coordinates(self, group: str) -> None:
        """Raises NotCoordinator, CoordinatorNotAvailable unless this broker coordinates the group."""
        why = self._coordinators.elsewhere(OFFSETS, group)
        if why is not None:
            raise why
