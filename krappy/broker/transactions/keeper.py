"""Where transactional ids are kept. A broker that is alone keeps them in its meta database; for a cluster see
replicated.py.

Times are kept as those of the wall clock: by it the next start, or the next coordinator, goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from krappy.core.transactions import Transaction

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.store.transactions import TransactionStore


class Term(Protocol):
    """A time in which one broker coordinates a transactional id. `epoch`: markers carry it; those of an earlier epoch
    are refused."""

    epoch: int

    def check(self, name: str) -> None:
        """Raises NotCoordinator, CoordinatorNotAvailable when it is over."""

    async def save(self, transaction: Transaction, *, sync: bool = True) -> None:
        """Makes a state durable. Without `sync` it survives the process, not a power loss, unless it is replicated.
        If it raises StorageError, the old state stays, but after a crash just then it may be the old or the new one. It
        also raises as `check`: then another coordinator finds the old or the new state."""

    def keep(self, transaction: Transaction) -> None:
        """Writes a state that becomes durable later. Raises as `save`."""

    def delete(self, name: str) -> None:
        """Raises as `keep`."""

    @property
    def is_sure(self) -> bool:
        """Whether nobody has taken this broker's place, as far as can be known without a write. Raises as `check`."""


class TransactionKeeper(Protocol):
    replicated: bool

    def begin(self) -> None:
        """Loads what is kept. Raises StorageError for what it can't read."""

    @property
    def loading(self) -> bool:
        """Whether there are ids that this broker coordinates, and has not loaded yet."""

    def check_here(self, name: str) -> None:
        """Raises CoordinatorNotAvailable while this broker has not loaded what is kept of the id."""

    def term(self, name: str) -> Term:
        """Raises NotCoordinator, CoordinatorNotAvailable unless this broker coordinates the id now."""


class LocalTransactions:
    """Implements `TransactionKeeper`, and the one `Term` that never ends. `loaded(ids, term)` is called once."""

    replicated = False
    loading = False
    epoch = 0
    is_sure = True

    def __init__(
        self,
        runtime: Runtime,
        store: TransactionStore,
        loaded: Callable[[Iterable[Transaction], Term], None],
    ) -> None:
        self._runtime, self._store, self._loaded = runtime, store, loaded

    def begin(self) -> None:
        self._loaded(self._store.load_all().values(), self)

    def term(self, name: str) -> Term:
        return self

    def check_here(self, name: str) -> None:
        """Does nothing."""

    check = check_here

    async def save(self, transaction: Transaction, *, sync: bool = True) -> None:
        take_back = self._store.put(as_kept(transaction, self._runtime.clock.ahead_ms))
        if sync:
            await self._runtime.sync_meta(take_back)

    def keep(self, transaction: Transaction) -> None:
        self._store.put(as_kept(transaction, self._runtime.clock.ahead_ms))

    def delete(self, name: str) -> None:
        self._store.delete(name)


def as_kept(transaction: Transaction, ahead_ms: int) -> Transaction:
    """The transaction with times of the wall clock. `ahead_ms`: how far that is ahead of the steady clock."""
    started = transaction.started_ms + ahead_ms if transaction.started_ms >= 0 else transaction.started_ms
    return transaction._replace(started_ms=started, updated_ms=transaction.updated_ms + ahead_ms)
