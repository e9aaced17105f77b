"""Transactional ids of a cluster: events of `__transaction_state`. Keys and values are those of
`store/transactions.py`. The leader of an id's partition coordinates it; `coordinated/internal_tables.py` says from when
to when. Its leader epoch is the coordinator epoch of the markers that it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from krappy.broker.coordinated.internal_table import InternalKeys, InternalTable
from krappy.broker.coordinated.internal_tables import InternalTables, Rows
from krappy.broker.coordinated.own_folder import OwnFolder
from krappy.broker.topics.internal_topics import TRANSACTIONS
from krappy.broker.transactions.keeper import Term, as_kept
from krappy.core.transactions import Transaction
from krappy.errors import CoordinatorNotAvailable, KrappyError
from krappy.store.transactions import TransactionStore, key_of, name_in, packed, unpacked

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

Ids = dict[str, Transaction]


class LeaderTerm:
    """Implements `Term`: for all ids of a partition, as long as this broker leads it in one leader epoch."""

    def __init__(self, runtime: Runtime, table: InternalTable) -> None:
        self._runtime, self._table = runtime, table
        self.epoch = table.epoch
        self.check = table.check
        self.delete = table.delete

    async def save(self, transaction: Transaction, *, sync: bool = True) -> None:
        self.keep(transaction)
        await self._table.written().wait()
        self.check(transaction.name)

    def keep(self, transaction: Transaction) -> None:
        value = packed(as_kept(transaction, self._runtime.clock.ahead_ms))
        self._table.write(transaction.name, {key_of(transaction.name): value}, [])

    @property
    def is_sure(self) -> bool:
        try:
            return self._table.partition.is_sure
        except KrappyError as error:
            raise CoordinatorNotAvailable(f"this broker does not coordinate any more: {error}") from error


class ReplicatedTransactions(InternalTables[Ids]):
    """Implements `TransactionKeeper`. `loaded(ids, term)` is called with ids that this broker coordinates from now on,
    and `unloaded(is_in)` when it forgets the ids for whose name `is_in` is true."""

    replicated = True

    def __init__(
        self,
        runtime: Runtime,
        loaded: Callable[[Iterable[Transaction], Term], None],
        unloaded: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(runtime, TRANSACTIONS, InternalKeys(name_in, lambda key: (False, key)))
        self._loaded, self._unloaded = loaded, unloaded
        self._terms: dict[int, LeaderTerm] = {}
        self._own = OwnFolder(runtime, TransactionStore(runtime.meta))

    def term(self, name: str) -> Term:
        self.check_here(name)
        return self._terms[self.index_of(name)]

    # --- InternalTables

    async def read(self, index: int, table: InternalTable, rows: Rows) -> Ids:
        ids = {found.name: found for found in self.readable(table, rows, lambda key, value, _: unpacked(key, value))}

        async def write(name: str, kept: Transaction) -> None:
            table.write(name, {key_of(name): packed(kept)}, [])

        fresh = await self._own.move(table, lambda name: self.index_of(name) == index, ids.__contains__, write)
        return ids | fresh

    def take(self, index: int, table: InternalTable, kept: Ids) -> None:
        self._terms[index] = term = LeaderTerm(self._runtime, table)
        ahead = self._runtime.clock.ahead_ms
        self.take_each(table, kept, lambda name: self._loaded([as_kept(kept[name], -ahead)], term))

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        self._unloaded(is_in)
