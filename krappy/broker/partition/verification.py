"""In a cluster: no batch of a transaction that has ended, or never began, is appended (KIP-890). Nothing would end such
a transaction.

- The first batch of a transaction in this partition is held, until the transaction's coordinator has confirmed that the
  partition is part of it, and that the sender's transactional id has this producer id. The sender's other batches are
  held behind it, in their order; nobody else's are. For clients that support it (KIP-890) this question also adds the
  partition to the transaction; then a broker that is alone asks, too.
- The answer holds for this transactional id, until a marker of the producer is appended, or the leader epoch ends. If
  either happens while the coordinator is being asked, the answer may be out of date: it is asked again.
- A batch or a marker of an older producer epoch than the last marker's is refused, and so is a marker of an older
  coordinator epoch: its coordinator has been deposed.
- A marker may come late: it was sent again meanwhile, and the producer has gone on. So it is refused if the open
  transaction is another one. That is so if it has the producer epoch to which the end of the earlier one has raised it,
  or if it has another number, as far as this leader was told numbers.
- A batch of a staged job needs no answer: its coordinator ends each of its transactions in all partitions that the job
  goes to, and that end raises the epoch. So no batch of an ended transaction is taken later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from krappy.core.cluster.roles import Role
from krappy.errors import CoordinatorFenced, InvalidTransaction, KrappyError, ProducerFenced, StorageError
from krappy.ports import TransactionEnd
from krappy.types import TopicPartition

if TYPE_CHECKING:
    from krappy.broker.partition.pending import Pending
    from krappy.broker.partition.viewed import Viewed


Sender = tuple[int, str]  # producer id, transactional id


class ToldTransaction(NamedTuple):
    transactional_id: str
    epoch: int  # the producer's
    number: int  # of the transactional id's transactions; -1: not known


class Verification:
    def __init__(self, partition: Viewed, release: Callable[[Pending], None]) -> None:
        """`release`: queues an item that need not be held any more. Raises KrappyError."""
        self._partition, self._release = partition, release
        self._held: dict[Sender, deque[Pending]] = {}
        self._asked: dict[Sender, int] = {}  # the producer epoch that the coordinator is being asked about
        self._told: dict[int, ToldTransaction] = {}  # by producer id: what it has confirmed
        self._numbers: dict[int, int] = {}  # by producer id: the number of the transaction that is open in the log
        self._epoch = -1  # the leader epoch of these answers
        self._opened: dict[int, int | None] = {}  # as `_open`, after what this drain has accepted

    # --- before it is queued

    def holds(self, item: Pending) -> bool:
        """Whether it takes this batch of a transaction, to release it later."""
        if item.own or item.sender is None or not (item.sender.adds or self._partition.verifies):
            return False
        sender = item.header.producer_id, item.sender.transactional_id
        if sender not in self._held:
            if not self._is_asked(item):
                return False
            self._held[sender] = deque()
            self._partition.spawn(lambda: self._ask(sender))
        self._held[sender].append(item)
        return True

    def _is_asked(self, item: Pending) -> bool:
        """Whether the coordinator is to be asked about it first."""
        return self._partition.role is Role.LEADER and not self._is_known(item)

    def _is_known(self, item: Pending) -> bool:
        """Whether the coordinator has confirmed the transaction as its sender's."""
        self._forget_earlier()
        told, sender = self._told.get(item.header.producer_id), item.sender
        confirmed = None if told is None else (told.transactional_id, told.epoch)
        return sender is not None and confirmed == (sender.transactional_id, item.header.producer_epoch)

    def _forget_earlier(self) -> None:
        """Forgets what was told in earlier leader epochs."""
        if self._epoch != self._partition.epoch:
            self._epoch = self._partition.epoch
            self._told.clear()
            self._numbers.clear()

    def _open(self, id: int) -> int | None:
        """The producer epoch of its transaction that is open in the log."""
        producers = self._partition.log.producers
        state = producers.get(id) if id in producers.stability.open else None
        return None if state is None else state.epoch

    async def _ask(self, sender: Sender) -> None:
        held = self._held[sender]
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
            del self._held[sender]
            for item in held:  # after a bug of ours
                text = f"the transaction of producer {sender[0]} was not verified"
                item.reject(StorageError(f"{self._partition}: {text}"))

    async def _verified(self, item: Pending) -> KrappyError | None:
        """Asks the coordinator. Gives the reason of a refusal."""
        partition, header = self._partition, item.header
        assert item.sender is not None, "of a batch of the broker's own"
        at = TopicPartition(partition.topic, partition.index)
        sender = header.producer_id, item.sender.transactional_id
        while True:
            led = partition.epoch
            self._asked[sender] = header.producer_epoch  # a marker removes it
            try:
                number = await partition.verify(item.sender, header.producer_id, header.producer_epoch, at)
            except KrappyError as error:
                self._asked.pop(sender, None)
                return error
            answered = self._asked.pop(sender, None)
            if partition.role is not Role.LEADER:
                return partition.deposed()
            if partition.epoch == led and answered is not None:
                self._forget_earlier()
                self._told[header.producer_id] = ToldTransaction(sender[1], answered, number)
                return None

    # --- in a drain

    def begin(self) -> None:
        """A drain begins to decide."""
        self._opened.clear()

    def check(self, item: Pending) -> None:
        """Raises CoordinatorFenced, ProducerFenced, InvalidTransaction for what may not be appended now."""
        header = item.header
        id, epoch = header.producer_id, header.producer_epoch
        if not self._partition.verifies:
            return
        ended = self._partition.log.producers.ended.get(id)
        if ended is not None:
            if item.end_told is not None and item.end_told.coordinator_epoch < ended.coordinator_epoch:
                raise CoordinatorFenced(
                    f"{self._partition}: a marker of coordinator epoch {item.end_told.coordinator_epoch}; the last one "
                    f"for producer {id} was of {ended.coordinator_epoch}"
                )
            if epoch < ended.epoch:
                raise ProducerFenced(f"producer {id} is at epoch {ended.epoch}; this is of epoch {epoch}")
        opened = self._opened_now(id)
        if item.end_told is not None:
            self._forget_earlier()
            if opened is not None:
                check_not_late(item.end_told, opened, self._numbers.get(id, -1))
        elif not (header.is_control or item.own or self._is_known(item)):
            if opened == epoch and id not in self._told:  # forgotten, since it led anew meanwhile
                raise self._partition.unsure()
            raise InvalidTransaction(f"{self._partition} is not part of an ongoing transaction of producer {id}")

    def is_transactional(self, id: int) -> bool:
        """Whether the producer has, or had, a transaction here, once what this drain has accepted is appended."""
        return id in self._opened or self._partition.log.producers.is_transactional(id)

    def _opened_now(self, id: int) -> int | None:
        return self._opened[id] if id in self._opened else self._open(id)

    def accepted(self, item: Pending) -> None:
        """This batch of a transaction is about to be appended."""
        id = item.header.producer_id
        if item.header.is_control:
            self._opened[id] = None
            for of_it in (self._told, self._numbers):
                of_it.pop(id, None)
            for sender in [each for each in self._asked if each[0] == id]:
                del self._asked[sender]
        else:
            self._opened[id] = item.header.producer_epoch
            if id in self._told:
                self._numbers[id] = self._told[id].number


def check_not_late(end: TransactionEnd, epoch: int, number: int) -> None:
    """Checks that this end is that of the producer's transaction of this epoch and number (-1: not known). Raises
    ProducerFenced, InvalidTransaction."""
    if end.bumped and end.epoch <= epoch:
        raise ProducerFenced(f"producer {end.producer_id} has ended that, and gone on in epoch {epoch}")
    if -1 != number != end.number != -1:
        raise InvalidTransaction(
            f"a marker of transaction {end.number} of producer {end.producer_id}, and {number} is open"
        )
