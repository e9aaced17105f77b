"""Writes groups to disk: changed states are marked, and one task writes many at a time.

It writes them without waiting until that is durable. Requests that need durability (acks, commits, joins, resets) wait
for the sync after that write; one sync serves all requests of all groups that came meanwhile. A state is written as it
is when its turn comes, so a partition that was marked ten times is written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgpack
import trio

from krappy.broker.groups.shared import SharedSettings
from krappy.core.kafka.share_state import ShareState
from krappy.core.leases import Leases
from krappy.errors import KrappyError, StorageError
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.keeping import GroupStorage
    from krappy.broker.groups.shared import Owner, SharedPartition
    from krappy.broker.runtime import Runtime

BETWEEN_TURNS = 100  # groups that are written in one turn
RETRY_S = 1.0  # pause after a write that the disk refused


class GroupWriter:
    def __init__(self, runtime: Runtime, storage: GroupStorage) -> None:
        self._runtime = runtime
        self._storage = storage
        self._groups: dict[Owner, None] = {}  # whose settings are to be written
        self._states: dict[SharedPartition, None] = {}
        self._waiting: list[tuple[Later[None], frozenset[Owner]]] = []
        self._work = trio.Event()

    def mark(self, shared: SharedPartition) -> None:
        """Has its state written soon."""
        shared.version += 1
        self._states[shared] = None
        self._work.set()

    def mark_group(self, group: Owner) -> None:
        """Has the group's settings written soon, together with its marked states."""
        self._groups[group] = None
        self._work.set()

    def durable(
        self, states: Iterable[SharedPartition] = (), *, group: Owner | None = None, always: bool = False
    ) -> Later[None]:
        """A Later that is set once these states, as they are now, are durable. `group`: its settings, too. `always`:
        all that is marked. Rejected when another broker coordinates the group meanwhile: then they may be, or not."""
        later: Later[None] = Later()
        unsynced = [shared for shared in states if shared.durable != shared.version]
        if not unsynced and not always and group is None:
            later.resolve(None)
            return later
        for shared in unsynced:
            self._states[shared] = None
        groups = {shared.group for shared in unsynced}
        self._waiting.append((later, frozenset(groups if group is None else {*groups, group})))
        self._work.set()
        return later

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            groups, self._groups = self._groups, {}
            states, self._states = self._states, {}
            waiting, self._waiting = self._waiting, []
            written = [(shared, shared.version) for shared in states]
            try:
                writes = await self._write(groups, states)
                if waiting:
                    await self._storage.synced(writes)
                    for shared, version in written:
                        shared.durable = version
            except Exception as error:
                self._groups = {**groups, **self._groups}
                self._states = {**states, **self._states}
                known = error if isinstance(error, KrappyError) else StorageError(f"writing groups: {error!r}")
                self._runtime.report("group_write_failed", error=str(known))
                for later, _ in waiting:
                    later.reject(known)
                await trio.sleep(RETRY_S)
                self._work.set()
            else:
                for later, of in waiting:
                    ended = next((group.ended for group in of if group.ended is not None), None)
                    if ended is None:
                        later.resolve(None)
                    else:
                        later.reject(ended)
                if not waiting:
                    await trio.lowlevel.checkpoint()

    async def _write(self, groups: dict[Owner, None], states: Iterable[SharedPartition]) -> list[Later[None] | None]:
        """Writes each group in one go, and gives other tasks their turn between. Skips what was deleted meanwhile, or
        is another broker's now."""
        changed: dict[Owner, list[SharedPartition]] = {group: [] for group in groups}
        for shared in states:
            changed.setdefault(shared.group, []).append(shared)
        writes = []
        for number, (group, some) in enumerate(changed.items(), 1):
            if number % BETWEEN_TURNS == 0:
                await trio.lowlevel.checkpoint()
            if not group.gone:
                packed = {each.at: pack_state(each, self._runtime.clock.ahead_ms) for each in some if not each.gone}
                writes.append(self._storage.put(group.name, pack_settings(group) if group in groups else None, packed))
        return writes


def pack_state(shared: SharedPartition, ahead_ms: int) -> bytes:
    """`ahead_ms`: how far the wall clock, by which the next start reads the times, is ahead."""
    packed: bytes = msgpack.packb(shared.leases.dump(ahead_ms))
    return packed


def pack_settings(group: Owner) -> bytes:
    return group.settings.packed()


def unpack_settings(name: str, packed: bytes) -> SharedSettings:
    """Raises StorageError for what `pack_settings` did not give."""
    try:
        return SharedSettings.unpacked(unpack(f"the settings of group '{name}'", packed))
    except (TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the settings of group '{name}' can't be read: {error}") from error


def check_state(what: str, settings: SharedSettings, packed: bytes) -> None:
    """Raises StorageError for what is no state of a partition in a group of these settings."""
    try:
        if settings.kind == "share":
            ShareState.load(unpack(what, packed))
        else:
            Leases.load(unpack(what, packed), max_deliveries=settings.max_deliveries)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise StorageError(f"{what} can't be read: {error}") from error


def unpack(what: str, data: bytes) -> Any:
    """Raises StorageError for what is not msgpack."""
    try:
        return msgpack.unpackb(data)
    except Exception as error:
        raise StorageError(f"{what} can't be read: {error or type(error).__name__}") from error
