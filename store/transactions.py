"""Transactional ids in the meta database: one value for each, replaced as a whole by every transition.

A write is durable after `Meta.sync`, which the broker shares among all writes that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from krappy.core.transactions import Transaction, TxnStage
from krappy.errors import StorageError
from krappy.store.meta import Meta
from krappy.types import TopicPartition

TRANSACTION = b"x/"


class TransactionStore:
    """The transactional ids of a broker, in the meta database."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def load_all(self) -> dict[str, Transaction]:
        """Every transactional id. Raises StorageError for what it can't read."""
        return {found.name: found for found in (_unpacked(*row) for row in self._meta.items(TRANSACTION))}

    def put(self, transaction: Transaction) -> Callable[[], None]:
        """Writes the state of a transactional id. Returns a function that takes the write back."""
        return self._meta.change({TRANSACTION + transaction.name.encode(): _packed(transaction)})

    def delete(self, name: str) -> None:
        self._meta.delete(TRANSACTION + name.encode())


def _packed(transaction: Transaction) -> bytes:
    fields = transaction._asdict() | {
        "stage": str(transaction.stage),
        "partitions": sorted(map(list, transaction.partitions)),
        "groups": sorted(transaction.groups),
    }
    del fields["name"]
    return bytes(msgpack.packb(fields))


def _unpacked(key: bytes, value: bytes) -> Transaction:
    try:
        fields = msgpack.unpackb(value)
        fields["stage"] = TxnStage(fields["stage"])
        fields["partitions"] = frozenset(
            TopicPartition(str(topic), int(index)) for topic, index in fields["partitions"]
        )
        fields["groups"] = frozenset(map(str, fields["groups"]))
        return Transaction(key.removeprefix(TRANSACTION).decode(), **fields)
    except Exception as error:
        raise StorageError(f"the transactional id {key!r} can't be read: {error!r}") from error
