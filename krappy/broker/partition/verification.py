"""In a cluster: no batch of a transaction that has ended, or never began, is appended (KIP-890). Nothing would end it.

- The first batch of a transaction in this partition is held, until the transaction's coordinator has told that the
  partition is in it. The producer's other batches are held behind it, in their order.
- The answer holds until a marker of the producer is appended, or the leader epoch ends. If either comes while the
  coordinator is being asked, the answer may be of before: it is asked again.
- An open transaction needs no answer: its marker is still to come.
- A batch or a marker of an older producer epoch than the last marker's is refused, and so is a marker of an older
  coordinator epoch: its coordinator has been deposed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from krappy.core.cluster.roles import Role
from krappy.errors import CoordinatorFenced, InvalidTransaction, KrappyError, ProducerFenced, StorageError
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.broker.partition.pending import Pending
    from krappy.broker.partition.viewed import Viewed


class Verification:
    def __init__(self, partition: Viewed, release: Callable[[Pending], None]) -> None:
        """`release`: queues an item that need not be held any more. Raises KrappyError."""
        self._partition, self._release = partition, release
        self._held: dict[int, deque[Pending]] = {}  # by producer id
        self._asked: dict[int, int] = {}  # producer id -> the producer epoch that the coordinator is being asked about
        self._told: dict[int, int] = {}  # producer id -> the producer epoch that it has confirmed
        self._epoch = -1  # the leader epoch of these answers
        self._opened: dict[int, int | None] = {}  # by what this drain has accepted: as `_open`

    # --- before it is queued

    def holds(self, item: Pending) -> bool:
        """Whether it takes this batch of a transaction, to release it later."""
        if item.own or not self._partition.verifies:
            return False
        id = item.header.producer_id
        if id not in self._held:
            if not self._is_asked(item):
                return False
            self._held[id] = deque()
            self._partition.spawn(lambda: self._ask(id))
        self._held[id].append(item)
        return True

    def _is_asked(self, item: Pending) -> bool:
        """Whether the coordinator is to be asked about it first."""
        id, epoch = item.header.producer_id, item.header.producer_epoch
        return self._partition.role is Role.LEADER and epoch not in (self._open(id), self._known(id))

    def _known(self, id: int) -> int | None:
        if self._epoch != self._partition.epoch:
            self._epoch = self._partition.epoch
            self._told.clear()
        return self._told.get(id)

    def _open(self, id: int) -> int | None:
        """The producer epoch of its transaction that is open in the log."""
        producers = self._partition.log.producers
        state = producers.get(id) if id in producers.stability.open else None
        return None if state is None else state.epoch

    async def _ask(self, id: int) -> None:
        held = self._held[id]
        try:
            while held:
                error = await self._verified(held[0]) if self._is_asked(held[0]) else None
                epoch = held[0].header.producer_epoch
                while held and held[0].header.producer_epoch == epoch:
                    item = held.popleft()
                    try:
                        if error is not None:
                            raise error
                        self._release(item)
                    except KrappyError as refused:
                        item.reject(refused)
        finally:
            del self._held[id]
            for item in held:  # after a bug of ours
                item.reject(StorageError(f"{self._partition}: the transaction of producer {id} was not verified"))

    async def _verified(self, item: Pending) -> KrappyError | None:
        """Asks the coordinator. Gives the reason of a refusal."""
        partition, header = self._partition, item.header
        if not item.transactional_id:
            return InvalidTransaction("a batch of a transaction, and the request names no transactional id")
        at = TopicPartition(partition.topic, partition.index)
        while True:
            led = partition.epoch
            self._asked[header.producer_id] = header.producer_epoch  # a marker takes it away
            try:
                await partition.verify(item.transactional_id, header.producer_id, header.producer_epoch, at)
            except KrappyError as error:
                self._asked.pop(header.producer_id, None)
                return error
            answered = self._asked.pop(header.producer_id, None)
            if partition.role is not Role.LEADER:
                return partition.deposed()
            if partition.epoch == led and answered is not None:
                self._known(header.producer_id)  # forgets what was told in earlier leader epochs
                self._told[header.producer_id] = answered
                return None

    # --- in a drain

    def begin(self) -> None:
        """A drain begins to decide."""
        self._opened.clear()

    def check(self, item: Pending) -> None:
        """Raises CoordinatorFenced, ProducerFenced, InvalidTransaction for what may not be appended now."""
        header = item.header
        id, epoch = header.producer_id, header.producer_epoch
        if not self._partition.verifies or (item.own and item.coordinator is None):
            return
        ended = self._partition.log.producers.ended.get(id)
        if ended is not None:
            if item.coordinator is not None and item.coordinator < ended.coordinator_epoch:
                raise CoordinatorFenced(
                    f"{self._partition}: a marker of coordinator epoch {item.coordinator}; the last one for producer "
                    f"{id} was of {ended.coordinator_epoch}"
                )
            if epoch < ended.epoch:
                raise ProducerFenced(f"producer {id} is at epoch {ended.epoch}; this is of epoch {epoch}")
        if header.is_control:
            return
        opened = self._opened[id] if id in self._opened else self._open(id)
        if epoch not in (opened, self._known(id)):
            raise InvalidTransaction(f"{self._partition} is not part of an ongoing transaction of producer {id}")

    def accepted(self, item: Pending) -> None:
        """This batch of a transaction is about to be appended."""
        if not self._partition.verifies:
            return
        id = item.header.producer_id
        if item.header.is_control:
            self._opened[id] = None
            self._told.pop(id, None)
            self._asked.pop(id, None)
        else:
            self._opened[id] = item.header.producer_epoch
