"""Transactional ids: one value for each, replaced as a whole by every transition.

A broker that is alone keeps them in its meta database: a write is durable after `Meta.sync`, which it shares among all
writes that wait for it. Brokers of a cluster keep them in a replicated topic, under the same keys.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgpack

from krappy.core import transactions
from krappy.core.transactions import MAX_EPOCH, Transaction, TxnStage
from krappy.errors import StorageError
from krappy.store.groups import check_kinds
from krappy.store.meta import Meta
from krappy.types import TopicPartition

TRANSACTION = b"x/"
MOST_ID = 2**63 - 1  # of a producer


class TransactionStore:
    """The transactional ids of a broker, in the meta database."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> dict[str, Transaction]:
        """Every transactional id. Raises StorageError for what it can't read."""
        return {found.name: found for found in (unpacked(*row) for row in self._meta.items(TRANSACTION))}

    def put(self, transaction: Transaction) -> Callable[[], None]:
        """Writes the state of a transactional id. Returns a function that takes the write back."""
        return self._meta.change({key_of(transaction.name): packed(transaction)})

    def fence_all(self, now_ms: int) -> None:
        """Fences the producers of all transactional ids, in a restored folder. A record that can't be read stays as it
        is."""
        for row in list(self._meta.items(TRANSACTION)):
            with suppress(StorageError):
                self.put(transactions.restored(unpacked(*row), now_ms))
        self._meta.sync()

    def delete(self, name: str) -> None:
        self._meta.delete(key_of(name))


def key_of(name: str) -> bytes:
    return TRANSACTION + name.encode()


def name_in(key: bytes) -> str:
    """The transactional id whose key it is. Raises StorageError for what is no such key."""
    try:
        if key.startswith(TRANSACTION):
            return key.removeprefix(TRANSACTION).decode()
    except UnicodeDecodeError:
        pass
    raise StorageError(f"{key!r} is not the key of a transactional id")


def packed(transaction: Transaction) -> bytes:
    fields = transaction._asdict() | {
        "stage": str(transaction.stage),
        "partitions": sorted(map(list, transaction.partitions)),
        "groups": sorted(transaction.groups),
    }
    del fields["name"]
    return bytes(msgpack.packb(fields))


def unpacked(key: bytes, value: bytes) -> Transaction:
    try:
        fields = msgpack.unpackb(value)
        fields["stage"] = TxnStage(fields["stage"])
        fields["partitions"] = frozenset(
            TopicPartition(str(topic), int(index)) for topic, index in fields["partitions"]
        )
        fields["groups"] = frozenset(map(str, fields["groups"]))
        found = Transaction(name_in(key), **fields)
        check_kinds(found, {each: int for each in fields if each not in ("stage", "partitions", "groups")})
        most = MAX_EPOCH + (found.stage is not TxnStage.ONGOING)  # one more is there to fence the producer
        if not (0 <= found.epoch <= most and 0 <= found.producer_id <= MOST_ID and found.next_id <= MOST_ID):
            raise ValueError("no producer has such an id or epoch")
        return found
    except Exception as error:
        raise StorageError(f"the transactional id {key!r} can't be read: {error!r}") from error
