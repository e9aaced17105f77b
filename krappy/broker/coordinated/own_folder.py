"""What a broker kept in its own folder while it was alone, and a cluster keeps in an internal topic. It moves to the
topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from krappy.broker.coordinated.internal_table import InternalTable

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

Item = TypeVar("Item")


class OwnStore(Protocol[Item]):
    """The items in the meta database, by name."""

    def load_all(self) -> dict[str, Item]: ...
    def delete(self, name: str, /) -> None: ...


class OwnFolder(Generic[Item]):
    def __init__(self, runtime: Runtime, store: OwnStore[Item]) -> None:
        """Raises StorageError for what can't be read."""
        self._runtime, self._store = runtime, store
        self._left = store.load_all()

    @property
    def left(self) -> Collection[str]:
        """The names that have not moved yet."""
        return self._left.keys()

    async def move(
        self,
        table: InternalTable,
        belongs: Callable[[str], bool],
        is_there: Callable[[str], bool],
        write: Callable[[str, Item], Awaitable[None]],
    ) -> dict[str, Item]:
        """Moves the names that belong to the table, durably. `write` writes those that the table does not have yet;
        they are returned. If this is interrupted, the next load goes on with it."""
        mine = {name: kept for name, kept in self._left.items() if belongs(name)}
        fresh = {name: kept for name, kept in mine.items() if not is_there(name)}
        for name, kept in fresh.items():
            await write(name, kept)
        await table.written().wait()
        for name in mine:
            self._store.delete(name)
            del self._left[name]
        if mine:
            await self._runtime.sync_meta()
        return fresh
