"""Writes groups to disk: changed states are marked, and one task writes many at a time.

It does not wait until they are durable. Requests that need durability (acks, commits, joins, resets) wait for the sync
after that write; one sync serves all requests of all groups that came meanwhile. A state is written as it is when its
turn comes, so a partition that was marked ten times is written once.

Each group succeeds or fails by itself. In a cluster each partition of the groups' topic has a writer of its own: a
partition whose replicas are slow, or too few, does not hold up groups of other partitions.
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
    """Writes the groups that are kept in one place: in a partition of the groups' topic, or in the meta database."""

    def __init__(self, runtime: Runtime, storage: GroupStorage) -> None:
        self._runtime = runtime
        self._storage = storage
        self._groups: dict[Owner, None] = {}  # whose settings are to be written
        self._states: dict[SharedPartition, None] = {}
        self._waiting: list[tuple[Later[None], Owner | None]] = []  # None: for all groups
        self._work = trio.Event()
        self._refused_groups: dict[Owner, None] = {}  # what was refused, and is marked again after a pause
        self._refused: dict[SharedPartition, None] = {}

    def mark(self, shared: SharedPartition) -> None:
        """Has its state written soon."""
        shared.version += 1
        self._states[shared] = None
        self._work.set()

    def mark_group(self, group: Owner) -> None:
        """Has the group's settings written soon, together with its marked states."""
        self._groups[group] = None
        self._work.set()

    def durable(self, group: Owner, states: Iterable[SharedPartition], *, settings: bool = False) -> Later[None]:
        """A Later that is set once these states of a group, as they are now, are durable; its `settings`, too. Rejected
        if another broker coordinates the group meanwhile: then they may be durable, or not."""
        unsynced = [shared for shared in states if shared.durable != shared.version]
        if not unsynced and not settings:
            later: Later[None] = Later()
            later.resolve(None)
            return later
        self._states |= dict.fromkeys(unsynced)
        return self._wait_for(group)

    def all_durable(self) -> Later[None]:
        """A Later that is set once all that is marked is durable. Rejected if some of it is not."""
        return self._wait_for(None)

    def _wait_for(self, group: Owner | None) -> Later[None]:
        later: Later[None] = Later()
        self._waiting.append((later, group))
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
            writes, refused = await self._write(groups, states)
            if waiting:
                try:
                    await self._storage.synced(writes)
                except Exception as error:
                    refused = dict.fromkeys((*groups, *(shared.group for shared in states)), _known(error)) | refused
                else:
                    for shared, version in written:
                        if shared.group not in refused:
                            shared.durable = version
            if refused:
                self._mark_later(groups, states, refused)
            for later, group in waiting:
                why = next(iter(refused.values()), None) if group is None else group.ended or refused.get(group)
                if why is None:
                    later.resolve(None)
                else:
                    later.reject(why)
            if not waiting:
                await trio.lowlevel.checkpoint()

    async def _write(
        self, groups: dict[Owner, None], states: Iterable[SharedPartition]
    ) -> tuple[list[Later[None] | None], dict[Owner, KrappyError]]:
        """Writes each group in one go, and gives other tasks their turn between. Skips what was deleted meanwhile, or
        is another broker's now. Gives what to sync, and the groups that were refused, and why."""
        changed: dict[Owner, list[SharedPartition]] = {group: [] for group in groups}
        for shared in states:
            changed.setdefault(shared.group, []).append(shared)
        writes: list[Later[None] | None] = []
        refused: dict[Owner, KrappyError] = {}
        for number, (group, some) in enumerate(changed.items(), 1):
            if number % BETWEEN_TURNS == 0:
                await trio.lowlevel.checkpoint()
            if group.gone:
                continue
            try:
                now = self._runtime.clock.steady_ms()
                packed = {each.at: pack_state(each, now) for each in some if not each.gone}
                writes.append(self._storage.put(group.name, pack_settings(group) if group in groups else None, packed))
            except Exception as error:
                refused[group] = _known(error)
        return writes, refused

    def _mark_later(
        self, groups: Iterable[Owner], states: Iterable[SharedPartition], refused: dict[Owner, KrappyError]
    ) -> None:
        """Has what was refused written again after a pause; other groups do not wait for that."""
        if not self._refused_groups and not self._refused:
            self._runtime.report("group_write_failed", error=str(next(iter(refused.values()))))
            self._runtime.spawn(self._mark_again)
        self._refused_groups |= dict.fromkeys(group for group in groups if group in refused)
        self._refused |= dict.fromkeys(shared for shared in states if shared.group in refused)

    async def _mark_again(self) -> None:
        await trio.sleep(RETRY_S)
        self._groups, self._refused_groups = {**self._refused_groups, **self._groups}, {}
        self._states, self._refused = {**self._refused, **self._states}, {}
        self._work.set()


def _known(error: Exception) -> KrappyError:
    return error if isinstance(error, KrappyError) else StorageError(f"writing groups: {error!r}")


def pack_state(shared: SharedPartition, now: int) -> bytes:
    packed: bytes = msgpack.packb(shared.leases.dump(now))
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
