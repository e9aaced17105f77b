"""Where Kafka groups are kept. A broker that is alone keeps them in its meta database; for a cluster see
replicated.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from krappy.store.group_offsets import GroupChange, GroupOffsets, KeptGroup
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime


class Keeper(Protocol):
    """A write is made whole or not at all, and in the order of the calls. It is durable once a `written` that was
    called after it is resolved."""

    def begin(self) -> None:
        """Loads what is kept. Raises StorageError for what it can't read."""

    @property
    def loading(self) -> bool:
        """Whether there are groups that this broker keeps, and has not loaded yet."""

    @property
    def epoch(self) -> int:
        """As `InternalTables.epoch`."""

    def is_behind(self, group: str) -> bool:
        """Whether some of what was written of this group may not be durable yet: an answer that tells it waits for
        `written`. Also true if another broker keeps the group."""

    def write(self, change: GroupChange) -> None:
        """Raises StorageError, and NotCoordinator, CoordinatorNotAvailable where another broker keeps the group; then
        nothing is written."""

    def delete(self, group: str) -> None:
        """Removes a group with all that it has. Raises as `write`."""

    def written(self, group: str) -> Later[None]:
        """Resolved once all that was written of this group so far is durable; rejected if some of it is lost."""

    def check_here(self, group: str) -> None:
        """Raises NotCoordinator, CoordinatorNotAvailable unless this broker keeps the group now."""

    async def sure(self, group: str) -> None:
        """Returns once memory says only what is durable, and no other broker can have changed it. Raises
        CoordinatorNotAvailable."""


class LocalKeeper:
    """Implements `Keeper`. `loaded(groups)` is called once, with all groups."""

    loading = False
    epoch = 0

    def __init__(self, runtime: Runtime, loaded: Callable[[Mapping[str, KeptGroup]], None]) -> None:
        self._runtime, self._loaded = runtime, loaded
        self._store = GroupOffsets(runtime.meta)
        self.write = self._store.write
        self.delete = self._store.delete

    def begin(self) -> None:
        self._loaded(self._store.load_all())

    def is_behind(self, group: str) -> bool:
        return self._runtime.meta.behind

    def written(self, group: str) -> Later[None]:
        return self._runtime.meta_synced()

    def check_here(self, group: str) -> None:
        """Does nothing."""

    async def sure(self, group: str) -> None:
        """Does nothing: what is not durable yet will be, or this broker stops."""
