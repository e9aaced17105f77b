"""Where native groups are kept. A broker that is alone keeps them in its meta database; for a cluster see
replicated.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgpack

from krappy.core.kafka.share_state import plain_state, whole_state
from krappy.errors import StorageError
from krappy.store.groups import GroupStore, StoredGroup
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

At = tuple[str, int]  # topic, partition


class GroupStorage(Protocol):
    keeps_epochs: bool  # whether leader epochs of positions outlive this broker

    def begin(self) -> None:
        """Loads what is kept. Raises StorageError for what it can't read."""

    @property
    def loading(self) -> bool:
        """Whether there are groups that this broker keeps, and has not loaded yet."""

    @property
    def epoch(self) -> int:
        """As `InternalTables.epoch`."""

    def check_here(self, name: str) -> None:
        """Raises CoordinatorNotAvailable, CoordinatorLoading while this broker has not loaded what is kept of this
        group."""

    def index_of(self, name: str) -> int:
        """Which partition of the groups' topic a group belongs to. Other partitions may be slower, or take no
        writes."""

    def put(self, group: str, settings: bytes | None, states: Mapping[At, bytes]) -> Later[None] | None:
        """Writes a group's settings (the first write of a group must have them) and the states given. Give the result
        to `synced`. Raises StorageError; NotCoordinator, CoordinatorNotAvailable unless this broker keeps the group."""

    def delete(self, group: str) -> Later[None] | None:
        """As `put`."""

    def delete_states(self, group: str, partitions: list[At]) -> Later[None] | None:
        """As `put`."""

    async def synced(self, writes: Iterable[Later[None] | None]) -> None:
        """Returns once these writes are durable. Raises as `put`: then they may be durable, or not."""

    def written(self, name: str) -> Later[None]:
        """Resolved once all that was written of this group so far is durable; rejected if some of it is lost, or as
        `check_here`."""

    def is_sure(self, name: str) -> bool:
        """Whether this broker keeps the group, and no other can have taken its place."""

    async def sure(self, name: str) -> None:
        """Returns once memory says only what is durable, and no other broker can have changed it. Raises
        CoordinatorNotAvailable."""


def parted(state: bytes) -> tuple[bytes, bytes]:
    """(its leader epochs, the rest) of a packed state; no bytes if it has none."""
    lineage, plain = plain_state(msgpack.unpackb(state))
    return (msgpack.packb(lineage), msgpack.packb(plain)) if lineage else (b"", state)


def joined(lineage: bytes, state: bytes) -> bytes:
    """The packed state that `parted` was given. Raises StorageError."""
    try:
        found: bytes = msgpack.packb(whole_state(msgpack.unpackb(lineage), msgpack.unpackb(state)))
    except Exception as error:  # msgpack raises many kinds
        raise StorageError(f"the leader epochs of a group's state can't be read: {error}") from error
    return found


class LocalGroups:
    """Implements `GroupStorage`. `loaded(groups)` is called once."""

    loading = False
    epoch = 0
    keeps_epochs = False

    def __init__(
        self, runtime: Runtime, store: GroupStore, loaded: Callable[[Mapping[str, StoredGroup]], None]
    ) -> None:
        self._runtime, self._store, self._loaded = runtime, store, loaded

    def begin(self) -> None:
        self._loaded(self._store.load_all())

    def check_here(self, name: str) -> None:
        """Does nothing."""

    def index_of(self, name: str) -> int:
        return 0

    def put(self, group: str, settings: bytes | None, states: Mapping[At, bytes]) -> None:
        # Without leader epochs: the next start does not need them, since nobody else writes these logs. Earlier
        # versions do not know them, and would refuse the folder.
        self._store.put(group, settings, {at: parted(state)[1] for at, state in states.items()})

    def delete(self, group: str) -> None:
        self._store.delete(group)

    def delete_states(self, group: str, partitions: list[At]) -> None:
        self._store.delete_states(group, partitions)

    async def synced(self, writes: Iterable[Later[None] | None]) -> None:
        await self._runtime.sync_meta()

    def written(self, name: str) -> Later[None]:
        if self._runtime.meta.behind:
            return self._runtime.meta_synced()
        later: Later[None] = Later()
        later.resolve(None)
        return later

    def is_sure(self, name: str) -> bool:
        return True

    async def sure(self, name: str) -> None:
        await self.written(name).wait()
