"""What is kept of share groups (KIP-932), and who may change it: the group's coordinator, and the leader of each
partition. It is kept where native groups are, by the broker that would coordinate a native group of the name. So this
broker can see to it that a name belongs to one kind of group only.

This is the share coordinator of KIP-932. It differs from Kafka's: it is found by the group alone; each write has the
whole state of a partition, as for native groups; and a new state epoch is a random number, not the next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgpack
import trio

from krappy.broker.groups.group_writer import unpack
from krappy.broker.groups.shared import SharedSettings
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.share_state import ShareState
from krappy.core.leases import Leases
from krappy.errors import CoordinatorNotAvailable, KrappyError, StorageError, UnknownTopic
from krappy.ports.audit import whose
from krappy.ports.shares import KeptState, PartitionId, StatesRead, StatesWritten
from krappy.store.groups import StoredGroup
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.group_keeper import GroupKeeper
    from krappy.broker.groups.keeping import At, GroupStorage
    from krappy.broker.runtime import Runtime

KIND = "share"
SETTINGS = SharedSettings(KIND).packed()
AT_ONCE = 128 << 10  # bytes of states in one write, or one answer; a larger one goes alone
BETWEEN_TURNS = 50  # states that are unpacked in one turn


class _Row(NamedTuple):
    """`head`: the state without its leases. `owner`: for whom it counts (room.py)."""

    topic_id: bytes
    head: ShareState
    packed: bytes
    owner: str = ""


class ShareStates:
    """Implements `ShareStatesPort`. Its methods raise as `GroupStorage.check_here`, too. `deleted(name)`: called when a
    group was deleted, so that its leases at this broker end."""

    def __init__(self, runtime: Runtime, keeper: GroupKeeper, storage: GroupStorage) -> None:
        self._runtime, self._keeper, self._storage = runtime, keeper, storage
        self._places = keeper.room.places  # a group counts as one
        self.deleted: Callable[[str], None] = lambda name: None
        self._groups: dict[str, dict[At, _Row]] = {}
        self._owners: dict[str, str] = {}  # by group, for whom it counts

    # --- life

    def take(self, name: str, stored: StoredGroup) -> None:
        """Goes on with what is stored. Raises StorageError for what can't be read."""
        rows: dict[At, _Row] = {}
        lost: list[At] = []
        for at, packed in stored.states.items():
            topic = self._runtime.image.topics.get(at[0])
            if topic is None or at[1] >= len(topic.partitions):
                lost.append(at)
            else:
                rows[at] = _Row(topic.id, _unpacked(name, at, packed)._replace(leases=()), packed)
        self._add(name, rows)
        if lost:
            self._storage.delete_states(name, lost)

    def give_up(self, is_in: Callable[[str], bool]) -> None:
        """Forgets the groups with these names, which another broker keeps now."""
        for name in [name for name in self._groups if is_in(name)]:
            self._drop(name)

    def remove(self, topic_id: bytes) -> None:
        """Forgets a deleted topic, once `delete_states` was called for what groups have `in_topic`."""
        for rows in self._groups.values():
            gone = [at for at, row in rows.items() if row.topic_id == topic_id]
            for at in gone:
                self._remove(rows, at)

    def in_topic(self, topic_id: bytes) -> list[tuple[str, list[At]]]:
        """The groups that have anything in a topic, and where."""
        found = [
            (name, [at for at, row in rows.items() if row.topic_id == topic_id]) for name, rows in self._groups.items()
        ]
        return [(name, some) for name, some in found if some]

    def keeps(self, name: str) -> bool:
        """Whether the name is that of a share group that is kept here."""
        return name in self._groups

    def _add(self, name: str, rows: dict[At, _Row], owner: str = "") -> None:
        self._groups[name], self._owners[name] = rows, owner
        self._places.charge(owner, 1 + len(rows))

    def _drop(self, name: str) -> None:
        rows = self._groups.pop(name)
        for at in [*rows]:
            self._remove(rows, at)
        self._places.charge(self._owners.pop(name), -1)

    def _remove(self, rows: dict[At, _Row], at: At) -> None:
        self._places.charge(rows.pop(at).owner, -1)

    # --- for the group's coordinator

    async def begin(self, name: str) -> None:
        self._storage.check_here(name)
        if name not in self._groups:
            if self._keeper.has(name):
                text = f"'{name:.249}' is a native group of Krappy, which Kafka's clients can't join; take another name"
                raise Refused(Fault.GROUP_ID_NOT_FOUND, text)
            self._keeper.check_share_room(whose())
            self._storage.put(name, SETTINGS, {})
            self._add(name, {}, whose())
        await self._storage.written(name).wait()

    async def move(self, name: str, moves: Mapping[PartitionId, int]) -> None:
        rows = self._find(name)
        states = {self._at(id): (id.topic_id, _at_offset(offset)) for id, offset in moves.items()}
        others: dict[At, tuple[bytes, ShareState]] = {}
        for topic_id in {topic_id for topic_id, _ in states.values()} - _topics(rows):
            others |= self._not_begun(topic_id, len(others))
        self._put(name, rows, {**others, **states})
        await self._storage.written(name).wait()

    async def delete(self, name: str, topics: Collection[bytes] | None) -> bool:
        self._storage.check_here(name)
        rows = self._groups.get(name)
        if rows is None:
            return False
        if topics is None:
            self._storage.delete(name)
            self._drop(name)
            self.deleted(name)
        else:
            gone = [at for at, row in rows.items() if row.topic_id in topics]
            self._storage.delete_states(name, gone)
            for at in gone:
                self._remove(rows, at)
        await self._storage.written(name).wait()
        return True

    async def kept(self, name: str) -> dict[PartitionId, KeptState]:
        self._find(name)
        await self._storage.sure(name)
        found = {}
        for number, (at, row) in enumerate([*self._find(name).items()], 1):
            state = _unpacked(name, at, row.packed)
            if state.leases:
                id = PartitionId(row.topic_id, at[1])
                found[id] = KeptState(state.state_epoch, state.leader_epoch, state.start, state.complete)
            if number % BETWEEN_TURNS == 0:
                await trio.lowlevel.checkpoint()
        return found

    def positions(self, name: str) -> Iterator[tuple[At, int, int]]:
        """(where, start, how many events behind it are settled), as memory has it; nothing for a group that another
        broker keeps."""
        for at, row in sorted(self._groups.get(name, {}).items()):
            state = _unpacked(name, at, row.packed)
            if state.leases:
                yield at, state.start, state.complete

    # --- for leaders

    def read(self, name: str, asked: Mapping[PartitionId, int]) -> Later[StatesRead]:
        rows = self._find(name)
        found: StatesRead = {}
        changed: dict[At, tuple[bytes, ShareState]] = {}
        known = _topics(rows)
        room, added = AT_ONCE, 0
        for id, leader_epoch in asked.items():
            try:
                at = self._at(id)
                if id.topic_id not in known:
                    begun = self._not_begun(id.topic_id, added)
                    changed |= begun
                    added += len(begun)
                    known.add(id.topic_id)
                row = rows.get(at)
                room -= 0 if row is None else len(row.packed)
                if room < 0 and found:
                    raise CoordinatorNotAvailable("the states are too large for one answer: ask for this one again")
                if at in changed:
                    _, state = changed[at]
                elif row is None or row.topic_id != id.topic_id:  # the topic has gained this partition
                    self._keeper.check_share_room(whose(), added)
                    added += 1
                    state = _at_offset(0)
                else:
                    state = _unpacked(name, at, row.packed)
                state._replace(leader_epoch=leader_epoch).check_after(state)
            except KrappyError as error:
                found[id] = error
                continue
            if leader_epoch != state.leader_epoch:  # earlier leaders may not write any more
                state = state._replace(leader_epoch=leader_epoch)
                changed[at] = id.topic_id, state
            found[id] = state
        self._put(name, rows, changed)
        return self._storage.written(name).map(lambda _: found)

    def write(self, name: str, states: Mapping[PartitionId, ShareState]) -> Later[StatesWritten]:
        rows = self._find(name)
        refused: StatesWritten = {}
        changed: dict[At, tuple[bytes, ShareState]] = {}
        for id, state in states.items():
            try:
                at = self._at(id)
                row = rows.get(at)
                if row is None or row.topic_id != id.topic_id:
                    raise Refused(Fault.FENCED_STATE_EPOCH, "what was kept of the group there was deleted")
                state.check_after(row.head)
            except KrappyError as error:
                refused[id] = error
                continue
            if not state.is_late(row.head):
                changed[at] = id.topic_id, state
        self._put(name, rows, changed)
        return self._storage.written(name).map(lambda _: refused)

    def _find(self, name: str) -> dict[At, _Row]:
        self._storage.check_here(name)
        found = self._groups.get(name)
        if found is None:
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"Group {name:.249} is not a share group.")
        return found

    def _at(self, id: PartitionId) -> At:
        """Raises UnknownTopic."""
        topic = self._runtime.topics.by_id.get(id.topic_id)
        if topic is None or not 0 <= id.partition < topic.count:
            raise UnknownTopic("there is no topic with this id, or not this partition")
        return topic.name, id.partition

    def _not_begun(self, topic_id: bytes, others: int) -> dict[At, tuple[bytes, ShareState]]:
        """The states of all partitions of a topic that a group has none of. Those that the topic gains later are read
        from their first record: whatever the group's setting says, nothing may be skipped there (KAFKA-20742).
        `others`: how many other states are about to be written. Raises Overloaded."""
        topic = self._runtime.topics.by_id[topic_id]
        self._keeper.check_share_room(whose(), others + topic.count)
        return {(topic.name, index): (topic_id, ShareState(_new_epoch())) for index in range(topic.count)}

    def _put(self, name: str, rows: dict[At, _Row], states: Mapping[At, tuple[bytes, ShareState]]) -> None:
        """Writes these, several in one write. Memory never has what could not be written."""
        part: dict[At, _Row] = {}
        room = AT_ONCE
        for at, (topic_id, state) in states.items():
            packed: bytes = msgpack.packb(state.dump())
            room -= len(packed)
            if room < 0 and part:
                self._write(name, rows, part)
                part, room = {}, AT_ONCE - len(packed)
            owner = rows[at].owner if at in rows else whose()
            part[at] = _Row(topic_id, state._replace(leases=()), packed, owner)
        if part:
            self._write(name, rows, part)

    def _write(self, name: str, rows: dict[At, _Row], part: dict[At, _Row]) -> None:
        self._storage.put(name, None, {at: row.packed for at, row in part.items()})
        for at, row in part.items():
            if at not in rows:
                self._places.charge(row.owner, 1)
        rows |= part


def _topics(rows: Mapping[At, _Row]) -> set[bytes]:
    """The ids of the topics that a group has states in."""
    return {row.topic_id for row in rows.values()}


def _at_offset(offset: int) -> ShareState:
    """A new state: the group has settled all before this offset, and nothing from it on."""
    return ShareState(_new_epoch(), leases=Leases(offset, max_deliveries=1).dump())


def _new_epoch() -> int:
    """A random number: almost certainly no state had it before."""
    return random.randrange(1, 2**31)


def _unpacked(name: str, at: At, packed: bytes) -> ShareState:
    what = f"the state of share group '{name}' in {at[0]}-{at[1]}"
    try:
        return ShareState.load(unpack(what, packed))
    except (ValueError, TypeError) as error:
        raise StorageError(f"{what} can't be read: {error}") from error
