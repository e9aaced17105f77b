"""Kafka groups of a cluster: events of `__consumer_offsets`, each a key and a value as `store/group_offsets.py` has
them. So a group's state is what the views of that topic say, on each of its replicas.

The leader of a group's partition coordinates the group; `coordinated/internal_tables.py` says from when to when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from krappy.broker.coordinated.internal_table import InternalKeys, InternalTable
from krappy.broker.coordinated.internal_tables import InternalTables, Rows
from krappy.broker.coordinated.own_folder import OwnFolder
from krappy.broker.topics.internal_topics import INTERNAL, OFFSETS
from krappy.core.kafka.offset import Offset
from krappy.store.group_offsets import HEAD, GroupChange, GroupOffsets, KeptGroup, kept_groups, name_in

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

Groups = dict[str, KeptGroup]


class ReplicatedKeeper(InternalTables[Groups]):
    """Implements `Keeper`. `loaded(groups)` is called with groups that this broker coordinates from now on, and
    `unloaded(is_in)` when it forgets those for whose name `is_in` is true."""

    def __init__(
        self,
        runtime: Runtime,
        loaded: Callable[[Mapping[str, KeptGroup]], None],
        unloaded: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(runtime, OFFSETS, InternalKeys(name_in, _head_last))
        self._loaded, self._unloaded = loaded, unloaded
        self._own = OwnFolder(runtime, GroupOffsets(runtime.meta))

    # --- Keeper

    def write(self, change: GroupChange) -> None:
        self.table_of(change.group).write(change.group, *change.rows())

    def delete(self, group: str) -> None:
        self.table_of(group).delete(group)

    def is_behind(self, group: str) -> bool:
        table = self.known_table(group)
        return table is None or table.behind

    # --- InternalTables

    async def read(self, index: int, table: InternalTable, rows: Rows) -> Groups:
        groups = kept_groups(rows)

        def is_there(name: str) -> bool:
            """Whether all of a group is."""
            return name in groups and groups[name].head is not None

        async def write(name: str, kept: KeptGroup) -> None:
            puts, _ = GroupChange(name, kept.head, kept.members, kept.offsets, kept.pending).rows()
            await table.move_in(name, puts)

        groups |= await self._own.move(table, lambda name: self.index_of(name) == index, is_there, write)
        await self._forget_gone(table, groups)
        return groups

    def take(self, index: int, table: InternalTable, kept: Groups) -> None:
        self._loaded(kept)

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        self._unloaded(is_in)

    async def _forget_gone(self, table: InternalTable, groups: Groups) -> None:
        """Forgets positions in topics that were deleted while nobody coordinated their groups, durably."""
        for name, kept in groups.items():
            offsets = [at for at, offset in kept.offsets.items() if self._is_gone(at[0], offset)]
            pending = [at for at, offset in kept.pending.items() if self._is_gone(at[1], offset)]
            if offsets or pending:
                change = GroupChange(name, offsets=dict.fromkeys(offsets), pending=dict.fromkeys(pending))
                table.write(name, *change.rows())
                for at in offsets:
                    del kept.offsets[at]
                for pending_at in pending:
                    del kept.pending[pending_at]
        await table.written().wait()

    def _is_gone(self, name: str, offset: Offset) -> bool:
        """Whether the topic of this position is not there any more. The image is as new as this broker's leadership, so
        it has all topics that groups had positions in before that."""
        topic = self._runtime.topics.table_of(name) or name
        found = self._runtime.image.topics.get(topic)
        if found is None:
            return topic not in INTERNAL
        return bool(offset.topic_id) and offset.topic_id != found.id


def _head_last(key: bytes) -> tuple[bool, bytes]:
    return key.startswith(HEAD), key
