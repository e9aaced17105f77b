"""Kafka groups of a cluster: events of `__consumer_offsets`. Their keys and values are those of
`store/group_offsets.py`, but committed offsets are Kafka's records (`offset_records.py`). So the view of that topic has
a group's state, on each of its replicas.

The leader of a group's partition coordinates the group; `coordinated/internal_tables.py` says from when to when.

Brokers of earlier versions kept committed offsets there, too, but under `ko/`, and can't coordinate groups of a
partition that has records. So as long as some broker does not know records (`OFFSET_RECORDS`), leaders write the old
form. Then each leader loads its partitions anew, and replaces what is under `ko/`: the record and the tombstone of the
old key are in one batch, so whenever this is interrupted, each offset is there in one of the two forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from krappy.broker.coordinated.internal_table import NO_HEADERS, InternalKeys, InternalTable
from krappy.broker.coordinated.internal_tables import InternalTables, Rows
from krappy.broker.coordinated.own_folder import OwnFolder
from krappy.broker.kafka_groups.offset_records import add_offset_rows, is_offset_key, offset_in, offset_key
from krappy.broker.topics.internal_topics import INTERNAL, OFFSETS
from krappy.core.cluster.znodes import OFFSET_RECORDS
from krappy.core.kafka.offset import At, Offset
from krappy.store.group_offsets import HEAD, OFFSET, GroupChange, GroupOffsets, KeptGroup, add_row, name_in
from krappy.store.groups import group_key
from krappy.types import Headers
from krappy.waiting import wait_any

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

Groups = dict[str, KeptGroup]
Puts = dict[bytes, bytes]
AT_ONCE = 500  # offsets that are replaced by one batch: it has room for as many of the largest


class ReplicatedKeeper(InternalTables[Groups]):
    """Implements `Keeper`. `loaded(groups)` is called with groups that this broker coordinates from now on, and
    `unloaded(is_in)` when it forgets the groups for whose name `is_in` is true."""

    def __init__(
        self,
        runtime: Runtime,
        loaded: Callable[[Mapping[str, KeptGroup]], None],
        unloaded: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(runtime, OFFSETS, InternalKeys(_name_in, _head_last))
        self._loaded, self._unloaded = loaded, unloaded
        self._own = OwnFolder(runtime, GroupOffsets(runtime.meta))
        self._with_records: set[int] = set()  # partitions whose committed offsets are records

    # --- Keeper

    def begin(self) -> None:
        super().begin()
        self._runtime.spawn(self._follow)

    def write(self, change: GroupChange) -> None:
        table = self.table_of(change.group)
        # Each offset counts by itself. A group's state and its members do not.
        write = table.write if change.members else table.write_parts
        write(change.group, *self._rows_of(table, change))

    def delete(self, group: str) -> None:
        self.table_of(group).delete(group)

    def is_behind(self, group: str) -> bool:
        table = self.known_table(group)
        return table is None or table.behind

    # --- InternalTables

    async def read(self, index: int, table: InternalTable, rows: Rows) -> Groups:
        groups: Groups = {}
        own = [row for row in rows if not is_offset_key(row[0])]
        for _ in self.readable(table, own, lambda key, value, _: add_row(groups, key, value)):
            pass
        old = {name: [*kept.offsets] for name, kept in groups.items() if kept.offsets}
        records = [row for row in rows if is_offset_key(row[0])]
        for (name, at), offset in self.readable(
            table, records, lambda key, value, headers: (offset_key(key), offset_in(value, headers))
        ):
            groups.setdefault(name, KeptGroup()).offsets[at] = offset
        if records or self._may_write_records(table):
            self._with_records.add(index)
            await self._replace(table, old, groups)
        else:
            self._with_records.discard(index)

        def is_there(name: str) -> bool:
            """Whether all of a group is there."""
            return name in groups and groups[name].head is not None

        async def write(name: str, kept: KeptGroup) -> None:
            change = GroupChange(name, kept.head, kept.members, kept.offsets, kept.pending)
            puts, _, headers = self._rows_of(table, change)
            await table.move_in(name, puts, headers)

        groups |= await self._own.move(table, lambda name: self.index_of(name) == index, is_there, write)
        await self._forget_gone(table, groups)
        return groups

    def take(self, index: int, table: InternalTable, kept: Groups) -> None:
        self.take_each(table, kept, lambda name: self._loaded({name: kept[name]}))

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        self._unloaded(is_in)

    # --- records

    def _rows_of(self, table: InternalTable, change: GroupChange) -> tuple[Puts, list[bytes], Mapping[bytes, Headers]]:
        """(what to put, what to delete, headers of what is put)."""
        if table.partition.index not in self._with_records:
            return *change.rows(), NO_HEADERS
        puts, deletes = change.rows_without_offsets()
        return puts, deletes, add_offset_rows(change.group, change.offsets, puts, deletes)

    def _may_write_records(self, table: InternalTable) -> bool:
        """Whether all brokers can read records, and old offsets can be replaced now."""
        return self._runtime.image.level(OFFSET_RECORDS) > 0 and table.partition.replicas.enough

    async def _replace(self, table: InternalTable, old: Mapping[str, list[At]], groups: Groups) -> None:
        """Replaces committed offsets that are under `ko/`."""
        for name, places in old.items():
            for start in range(0, len(places), AT_ONCE):
                some = places[start : start + AT_ONCE]
                puts: Puts = {}
                deletes = [group_key(OFFSET, name, *at) for at in some]
                headers = add_offset_rows(name, {at: groups[name].offsets[at] for at in some}, puts, deletes)
                table.write(name, puts, deletes, headers)
                await table.written().wait()

    async def _follow(self) -> None:
        """Has partitions loaded anew once their committed offsets can become records. Until cancelled."""
        signals = [self._runtime.store.changed, self._runtime.topics.changed]
        while True:
            await wait_any(signals, lambda: bool(self._old_tables()))
            for index in self._old_tables():
                self._forget(index)
            self._runtime.topics.changed.fire()

    def _old_tables(self) -> list[int]:
        tables = self._tables.items()
        return [at for at, table in tables if at not in self._with_records and self._may_write_records(table)]

    async def _forget_gone(self, table: InternalTable, groups: Groups) -> None:
        """Forgets positions in topics that were deleted while nobody coordinated their groups, durably."""
        for name, kept in groups.items():
            offsets = [at for at, offset in kept.offsets.items() if self._is_gone(at[0], offset)]
            pending = [at for at, offset in kept.pending.items() if self._is_gone(at[1], offset)]
            if offsets or pending:
                change = GroupChange(name, offsets=dict.fromkeys(offsets), pending=dict.fromkeys(pending))
                table.write_parts(name, *self._rows_of(table, change))
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


def _name_in(key: bytes) -> str:
    return offset_key(key)[0] if is_offset_key(key) else name_in(key)


def _head_last(key: bytes) -> tuple[bool, bytes]:
    return key.startswith(HEAD), key
