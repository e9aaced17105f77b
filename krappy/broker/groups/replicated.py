"""Native groups of a cluster: events of `__share_group_state`. The keys are those of `store/groups.py`. The value of a
group's settings is the same as at a broker that is alone. The value of its state in a partition is the id of the topic,
then the state. A state's leader epochs are in a header: brokers of earlier versions do not read that header, and do not
write it. The leader of a group's partition coordinates the group; `coordinated/internal_tables.py` says from when to
when.

Another broker that takes a coordinator's place finds which events are settled, and how often the others were delivered.
Nothing is leased there, as after a restart: members join there, and events that were leased are delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from krappy.broker.coordinated.internal_table import InternalKeys, InternalTable
from krappy.broker.coordinated.internal_tables import InternalTables, Row, Rows
from krappy.broker.coordinated.own_folder import OwnFolder
from krappy.broker.groups.group_writer import check_state, unpack_settings
from krappy.broker.groups.keeping import At, joined, parted
from krappy.broker.groups.shared import SharedSettings
from krappy.broker.topics.internal_topics import SHARES
from krappy.errors import StorageError
from krappy.store.groups import GROUP, STATE, GroupStore, StoredGroup, group_key, group_of, state_at, stored_groups
from krappy.types import Headers
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime

ID = 16  # bytes of a topic's id
LINEAGE = "lineage"  # the header with a state's leader epochs
Groups = dict[str, StoredGroup]


class ReplicatedGroups(InternalTables[Groups]):
    """Implements `GroupStorage`. `loaded(groups)` is called with groups that this broker coordinates from now on, and
    `unloaded(is_in)` when it forgets the groups for whose name `is_in` is true."""

    keeps_epochs = True

    def __init__(
        self,
        runtime: Runtime,
        loaded: Callable[[Mapping[str, StoredGroup]], None],
        unloaded: Callable[[Callable[[str], bool]], None],
    ) -> None:
        super().__init__(runtime, SHARES, InternalKeys(group_of, lambda key: (key.startswith(GROUP), key)))
        self._loaded, self._unloaded = loaded, unloaded
        self._own = OwnFolder(runtime, GroupStore(runtime.meta))

    # --- GroupStorage

    def put(self, group: str, settings: bytes | None, states: Mapping[At, bytes]) -> Later[None]:
        # The ids of the topics whose partitions this broker has: the image may have newer ones of the same names.
        ids = {at[0]: topic.id for at in states if (topic := self._runtime.topics.get(at[0])) is not None}
        table = self.table_of(group)
        puts, headers = self._rows_of(group, settings, states, ids)
        table.write_parts(group, puts, [], headers)
        return table.written()

    def is_sure(self, name: str) -> bool:
        table = self.known_table(name)
        return table is not None and table.partition.epoch == table.epoch and table.partition.still_leads

    def delete(self, group: str) -> Later[None]:
        table = self.table_of(group)
        table.delete(group)
        return table.written()

    def delete_states(self, group: str, partitions: list[At]) -> Later[None]:
        table = self.table_of(group)
        table.write_parts(group, {}, [group_key(STATE, group, *at) for at in partitions])
        return table.written()

    async def synced(self, writes: Iterable[Later[None] | None]) -> None:
        for each in writes:
            if each is not None:
                await each.wait()

    def _rows_of(
        self, group: str, settings: bytes | None, states: Mapping[At, bytes], ids: Mapping[str, bytes]
    ) -> tuple[dict[bytes, bytes], dict[bytes, Headers]]:
        """The rows to write, and their headers. `ids`: of topics, by name. States in other topics are left out."""
        puts = {} if settings is None else {group_key(GROUP, group): settings}  # first: without them no state counts
        headers: dict[bytes, Headers] = {}
        for at, state in states.items():
            if at[0] in ids:
                key = group_key(STATE, group, *at)
                lineage, plain = parted(state)
                puts[key] = ids[at[0]] + plain
                if lineage:
                    headers[key] = ((LINEAGE, lineage),)
        return puts, headers

    # --- InternalTables

    async def read(self, index: int, table: InternalTable, rows: Rows) -> Groups:
        rows = self._readable_rows(table, rows)
        gone: dict[str, list[bytes]] = {}
        for key, value, _ in rows:
            if not self._is_there(key, value):  # its topic was deleted while nobody coordinated the group
                gone.setdefault(group_of(key), []).append(key)
        for name, keys in gone.items():
            table.write_parts(name, {}, keys)
        known = {group_of(key) for key, *_ in rows if state_at(key) is None}
        ids = {name: topic.id for name, topic in self._runtime.image.topics.items()}

        async def write(name: str, kept: StoredGroup) -> None:
            await table.move_in(name, *self._rows_of(name, kept.settings, kept.states, ids))

        fresh = await self._own.move(table, lambda name: self.index_of(name) == index, known.__contains__, write)
        # Once more: a topic may have been deleted meanwhile.
        there = ((key, value) for key, value, _ in rows if self._is_there(key, value))
        found = stored_groups((key, value if state_at(key) is None else value[ID:]) for key, value in there) | fresh
        topics = self._runtime.image.topics
        for each in found.values():
            each.ids.update((name, topics[name].id) for name, _ in each.states if name in topics)
        return found

    def _readable_rows(self, table: InternalTable, rows: Rows) -> Rows:
        """The rows of settings that can be read, and of states that can be read and whose group has such settings."""
        settings: dict[str, SharedSettings] = {}

        def group(key: bytes, value: bytes, headers: Headers) -> Row:
            name = group_of(key)
            settings[name] = unpack_settings(name, value)
            return key, value, headers

        def state(key: bytes, value: bytes, headers: Headers) -> Row:
            name = group_of(key)
            if name not in settings:
                raise StorageError(f"a state of the group '{name:.249}' is stored, but not the group")
            if self._is_there(key, value):
                if lineage := dict(headers).get(LINEAGE):
                    value = value[:ID] + joined(lineage, value[ID:])
                check_state(f"a state of the group '{name:.249}'", settings[name], value[ID:])
            return key, value, headers

        heads = [row for row in rows if state_at(row[0]) is None]
        found = [*self.readable(table, heads, group)]
        return [*found, *self.readable(table, (row for row in rows if state_at(row[0]) is not None), state)]

    def _is_there(self, key: bytes, value: bytes) -> bool:
        """Whether this is a group's settings, or a state in a partition that is there. The image is as new as this
        broker's leadership, so it has all topics that groups had states in before that."""
        at = state_at(key)
        if at is None:
            return True
        found = self._runtime.image.topics.get(at[0])
        return found is not None and found.id == value[:ID] and at[1] < len(found.partitions)

    def take(self, index: int, table: InternalTable, kept: Groups) -> None:
        self.take_each(table, kept, lambda name: self._loaded({name: kept[name]}))

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        self._unloaded(is_in)
