"""The states of one transactional id, and what each request does to them (KIP-98, KIP-360).

    Empty ──add──▶ Ongoing ──end──▶ PrepareCommit ──▶ CompleteCommit ──add──▶ Ongoing …
                      │
                      └──end, timeout, a new producer──▶ PrepareAbort ──▶ CompleteAbort
    Empty, CompleteCommit, CompleteAbort ──unused for long──▶ Dead

Rules of this file. A state is an immutable value. A request's function takes it and returns the next one, or the same
object when nothing changes, or raises the reason of a refusal; the caller makes the next state durable before it acts
on it. PrepareCommit and PrepareAbort are decisions: only their completion can follow. A producer is fenced by its
epoch: a new producer of the transactional id, and the timeout, raise it. So does the end of each transaction, for
clients that learn the new epoch from the answer (KIP-890): what comes late of one transaction can't reach the next.
Times are ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from sys import getsizeof
from typing import NamedTuple

from krappy.errors import (
    InvalidRequest,
    InvalidTransaction,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionAbortable,
    TransactionFenced,
    TransactionPending,
    UnknownProducerMapping,
)
from krappy.types import TopicPartition

NO_ID = NO_EPOCH = -1
LONGEST_NAME = 1000  # characters of a transactional id: it stays in memory for days
MAX_GROUPS = 100  # of one transaction: each of its states is stored with all of them
EACH_ID = 1500  # bytes of memory that a transactional id takes, beside its name
EACH_GROUP = 100  # bytes that each of its groups takes, beside the name
EACH_PARTITION = 400  # bytes that each of its partitions takes
MAX_EPOCH = 2**15 - 2  # then the producer gets another id; one more is left to fence it with


class TxnStage(StrEnum):
    """As Kafka names them to its admin tools."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


PREPARED = frozenset({TxnStage.PREPARE_COMMIT, TxnStage.PREPARE_ABORT})
COMPLETED = {TxnStage.PREPARE_COMMIT: TxnStage.COMPLETE_COMMIT, TxnStage.PREPARE_ABORT: TxnStage.COMPLETE_ABORT}


class Transaction(NamedTuple):
    """One transactional id. Its producer has `producer_id` and `epoch`; before its last bump `last_id` and
    `last_epoch`."""

    name: str
    producer_id: int
    epoch: int
    timeout_ms: int
    stage: TxnStage = TxnStage.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()  # whose offsets are staged
    started_ms: int = -1  # when the open transaction began; -1: none
    updated_ms: int = -1
    last_id: int = NO_ID
    last_epoch: int = NO_EPOCH
    bumped: bool = False  # of a decision: it has raised the epoch, with which the markers are written
    number: int = 0  # counts this id's transactions, so that a late marker is told from the next one's
    next_id: int = NO_ID  # the producer's id after the completion, with epoch 0; NO_ID: it keeps its own

    @property
    def memory(self) -> int:
        """About how many bytes it takes."""
        names = sum(map(getsizeof, (self.name, *self.groups)))
        return EACH_ID + names + EACH_GROUP * len(self.groups) + EACH_PARTITION * len(self.partitions)

    @property
    def prepared(self) -> bool:
        """Whether it is decided and not completed."""
        return self.stage in PREPARED

    @property
    def due_ms(self) -> int | None:
        """When the open transaction is aborted for taking too long; None without one."""
        return self.started_ms + self.timeout_ms if self.stage is TxnStage.ONGOING else None


def check_timeout(timeout_ms: int, maximum_ms: int) -> None:
    """Raises InvalidTransactionTimeout."""
    if not 0 < timeout_ms <= maximum_ms:
        raise InvalidTransactionTimeout(
            f"a transaction timeout of {timeout_ms} ms; it may be 1 to {maximum_ms} (transaction.max.timeout.ms)"
        )


def check_name(name: str) -> None:
    """Checks the transactional id of a new producer. Raises InvalidRequest."""
    if not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidRequest(f"a transactional id has 1 to {LONGEST_NAME} characters, not {len(name)}")


def needs_new_id(found: Transaction | None, expected_epoch: int) -> bool:
    """Whether `begin` will take the `new_id` that it is given."""
    if found is None:
        return True
    retried = expected_epoch != NO_EPOCH and expected_epoch == found.last_epoch and found.epoch == 0
    return found.epoch >= MAX_EPOCH and found.stage is not TxnStage.ONGOING and not retried


def begin(
    found: Transaction | None,
    name: str,
    timeout_ms: int,
    now_ms: int,
    *,
    new_id: int = NO_ID,
    expected_id: int = NO_ID,
    expected_epoch: int = NO_EPOCH,
) -> Transaction:
    """InitProducerId: a producer takes the transactional id, and fences the one before.

    With an expected id and epoch a producer goes on after an error of its own (KIP-360); it is refused if another
    producer has come since. An open transaction is aborted first: the state is then PrepareAbort, with the epoch
    already raised, and the producer must ask again. Raises TransactionPending, TransactionFenced, InvalidRequest.
    """
    if not name:
        raise InvalidRequest("a transactional id may not be empty")
    if found is None:
        return Transaction(name, new_id, 0, timeout_ms, updated_ms=now_ms)
    expects = expected_id != NO_ID
    if expects and expected_id not in (found.producer_id, found.last_id):
        raise _fenced(found, expected_epoch)
    if found.prepared:
        raise pending(found)
    if found.stage is TxnStage.ONGOING:
        if expects and (expected_id, expected_epoch) != (found.producer_id, found.epoch):
            raise _fenced(found, expected_epoch)
        return fence(found, now_ms, keep_last=expects)
    if expects and (expected_id, expected_epoch) == (found.last_id, found.last_epoch):
        # A retry: the answer was lost.
        return found._replace(stage=TxnStage.EMPTY, timeout_ms=timeout_ms, updated_ms=now_ms)
    if expects and (expected_id, expected_epoch) != (found.producer_id, found.epoch):
        raise _fenced(found, expected_epoch)
    last_id, last_epoch = (found.producer_id, found.epoch) if expects else (NO_ID, NO_EPOCH)
    producer_id, epoch = found.producer_id, found.epoch + 1
    if found.epoch >= MAX_EPOCH:
        producer_id, epoch = new_id, 0
    begun = Transaction(name, producer_id, epoch, timeout_ms, updated_ms=now_ms, number=found.number)
    return begun._replace(last_id=last_id, last_epoch=last_epoch)


def check_producer(found: Transaction | None, producer_id: int, epoch: int) -> Transaction:
    """Returns `found`, if this producer has it. Raises UnknownProducerMapping, TransactionFenced; TransactionPending if
    the producer will have it."""
    if found is not None and producer_id == found.next_id != NO_ID:
        raise pending(found)
    if found is None or found.producer_id != producer_id:
        raise UnknownProducerMapping(f"producer {producer_id} does not have this transactional id")
    if found.epoch != epoch:
        raise _fenced(found, epoch)
    return found


def add(
    found: Transaction | None,
    producer_id: int,
    epoch: int,
    now_ms: int,
    partitions: Iterable[TopicPartition] = (),
    groups: Iterable[str] = (),
) -> Transaction:
    """AddPartitionsToTxn, AddOffsetsToTxn: the first such request begins a transaction.

    Raises UnknownProducerMapping, TransactionFenced, TransactionPending, InvalidRequest.
    """
    found = check_producer(found, producer_id, epoch)
    if found.prepared:
        raise pending(found)
    ongoing = found.stage is TxnStage.ONGOING
    all_partitions = (found.partitions if ongoing else frozenset()) | frozenset(partitions)
    all_groups = (found.groups if ongoing else frozenset()) | frozenset(groups)
    if len(all_groups) > MAX_GROUPS:
        raise InvalidRequest(f"offsets of more than {MAX_GROUPS} groups in one transaction")
    if ongoing and (all_partitions, all_groups) == (found.partitions, found.groups):
        return found
    return found._replace(
        stage=TxnStage.ONGOING,
        partitions=all_partitions,
        groups=all_groups,
        started_ms=found.started_ms if ongoing else now_ms,
        updated_ms=now_ms,
        number=found.number if ongoing else found.number + 1,
    )


def end(
    found: Transaction | None,
    producer_id: int,
    epoch: int,
    now_ms: int,
    *,
    commit: bool,
    bumps: bool = False,
    new_id: int = NO_ID,
) -> Transaction:
    """EndTxn. Returns the same state if this transaction was already ended in this way: then the answer was lost.

    `bumps`: the end raises the epoch, which the client learns from the answer; if no epoch is left, its producer gets
    `new_id`. Such a client may abort although it has begun nothing. Raises UnknownProducerMapping, TransactionFenced,
    TransactionPending, InvalidTransaction.
    """
    prepare = TxnStage.PREPARE_COMMIT if commit else TxnStage.PREPARE_ABORT
    if bumps and found is not None and (producer_id, epoch) == (found.last_id, found.last_epoch):
        if found.stage is prepare:
            raise pending(found)
        if found.stage is COMPLETED[prepare]:
            return found
        if found.stage in (TxnStage.EMPTY, TxnStage.ONGOING):  # it has gone on since
            raise _fenced(found, epoch)
        raise _not_so(found, commit)
    found = check_producer(found, producer_id, epoch)
    if bumps and (found.stage is TxnStage.ONGOING or not (commit or found.prepared)):
        next_id = new_id if found.epoch >= MAX_EPOCH else NO_ID
        return fence(found, now_ms, keep_last=True)._replace(stage=prepare, next_id=next_id)
    if found.stage is TxnStage.ONGOING:
        return found._replace(stage=prepare, updated_ms=now_ms)
    if found.stage is prepare:
        raise pending(found)
    if found.stage is COMPLETED[prepare] and not bumps:
        return found
    raise _not_so(found, commit)


def after_end(ended: Transaction) -> tuple[int, int]:
    """The id and epoch that the producer has once this is completed."""
    return (ended.producer_id, ended.epoch) if ended.next_id == NO_ID else (ended.next_id, 0)


def needs_id_to_end(found: Transaction | None, epoch: int) -> bool:
    """Whether an `end` that raises this epoch will take the `new_id` that it is given."""
    return found is not None and found.epoch == epoch >= MAX_EPOCH


def fence(found: Transaction, now_ms: int, *, keep_last: bool = False) -> Transaction:
    """Aborts an ongoing transaction against its producer's will: the epoch is raised, so it can't go on.

    With `keep_last` the producer of the old epoch may still ask for the new one.
    """
    return found._replace(
        stage=TxnStage.PREPARE_ABORT,
        epoch=found.epoch + 1,
        updated_ms=now_ms,
        last_id=found.producer_id if keep_last else NO_ID,
        last_epoch=found.epoch if keep_last else NO_EPOCH,
        bumped=True,
    )


def restored(found: Transaction, now_ms: int) -> Transaction:
    """What a restored backup has of it. Its producer can't go on: since the backup it may have been told of writes that
    are lost, and would commit the rest of a transaction. An ongoing one is aborted; a decision stays."""
    fenced = fence(found, now_ms) if found.epoch <= MAX_EPOCH else found
    if found.stage is TxnStage.ONGOING:
        return fenced
    return fenced._replace(stage=found.stage, bumped=found.prepared, next_id=NO_ID)


def overdue(found: Transaction, now_ms: int) -> bool:
    due = found.due_ms
    return due is not None and due <= now_ms


def complete(found: Transaction, now_ms: int) -> Transaction:
    """The state once every marker is on disk and every staged offset is committed or dropped."""
    completed = found._replace(
        stage=COMPLETED[found.stage],
        partitions=frozenset(),
        groups=frozenset(),
        started_ms=-1,
        updated_ms=now_ms,
        bumped=False,
        next_id=NO_ID,
    )
    producer_id, epoch = after_end(found)
    return completed._replace(producer_id=producer_id, epoch=epoch)


def expired(found: Transaction, now_ms: int, kept_ms: int) -> bool:
    """Whether the id was unused for `kept_ms`, so it is Dead (transactional.id.expiration.ms)."""
    return found.stage is not TxnStage.ONGOING and not found.prepared and now_ms - found.updated_ms > kept_ms


def check_offsets(found: Transaction | None, producer_id: int, epoch: int, group: str) -> None:
    """Checks that this producer may stage offsets of the group now.

    Raises UnknownProducerMapping, TransactionFenced, TransactionPending, TransactionAbortable.
    """
    found = check_producer(found, producer_id, epoch)
    if found.prepared:
        raise pending(found)
    if found.stage is not TxnStage.ONGOING or group not in found.groups:
        raise TransactionAbortable(f"offsets of the group '{group}' are not part of an ongoing transaction")


def check_write(found: Transaction | None, epoch: int, at: TopicPartition) -> None:
    """Checks that a batch of this epoch may go to the partition now.

    Raises ProducerFenced for an old epoch, TransactionAbortable when the partition is not in an ongoing transaction,
    InvalidTransaction when the producer has none.
    """
    if found is None:
        raise InvalidTransaction(f"the producer of a batch for {at} has no transactional id")
    if epoch < found.epoch:
        raise ProducerFenced(f"'{found.name}' is at epoch {found.epoch}; this batch is of epoch {epoch}")
    if epoch != found.epoch or found.stage is not TxnStage.ONGOING or at not in found.partitions:
        raise TransactionAbortable(f"{at} is not part of an ongoing transaction of this producer")


def _not_so(found: Transaction, commit: bool) -> InvalidTransaction:
    return InvalidTransaction(f"{'commit' if commit else 'abort'} of '{found.name}', which is {found.stage}")


def _fenced(found: Transaction, epoch: int) -> TransactionFenced:
    return TransactionFenced(f"'{found.name}' is at epoch {found.epoch}; this producer has epoch {epoch}")


def pending(found: Transaction) -> TransactionPending:
    return TransactionPending(f"the last transaction of '{found.name}' is being completed: {found.stage}")
