"""All native groups of the broker: joining, first positions, what is stored, and administration.

A group is either shared (members lease events; `group` and `core.leases`), or only holds positions that readers commit.
Both have the same kind of state for each (topic, partition). The first member that joins makes a group shared; it goes
on from the positions that it finds.

Groups and their positions are bounded in number, and so are those of one user (room.py). A group that nobody has used
for `offsets_retention_ms` gives way to a new one when there is no room; until then it is kept.

After a restart nothing is leased: connections end with the broker, and an event whose member has lost its connection
goes to the next member that polls. What was leased counts as delivered. The same is true when another broker of a
cluster takes the coordinator's place (replicated.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from krappy.broker.groups.distant import check_position, nearest
from krappy.broker.groups.group import Group
from krappy.broker.groups.group_keeper import MakeTopic
from krappy.broker.groups.group_writer import unpack, unpack_settings
from krappy.broker.groups.keeping import GroupStorage, LocalGroups
from krappy.broker.groups.member import Member
from krappy.broker.groups.refusals import check_dead_letter, check_empty, check_group_name
from krappy.broker.groups.replicated import ReplicatedGroups
from krappy.broker.groups.share_keeper import FindKeeper, ShareKeeper
from krappy.broker.groups.shared import DeadLetterRules, SharedSettings
from krappy.broker.name_locks import NameLocks
from krappy.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    KrappyError,
    NotCoordinator,
    NotLeader,
    Overloaded,
    StorageError,
    UnknownGroup,
    UnknownTopic,
    WrongGroupKind,
)
from krappy.ports import GroupFacts
from krappy.ports.audit import whose
from krappy.store.groups import GroupStore, StoredGroup
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.distant import GroupPartition
    from krappy.broker.kafka_groups.native import NativeView
    from krappy.broker.runtime import Runtime
    from krappy.ports.cluster import LogPeersPort

BETWEEN_TURNS = 100  # groups that are checked in one turn

Position = tuple[str, int, int]  # topic, partition, offset


class GroupCoordinator(ShareKeeper):
    def __init__(self, runtime: Runtime, make_topic: MakeTopic, keeper: FindKeeper, peers: LogPeersPort | None) -> None:
        storage: GroupStorage = (
            LocalGroups(runtime, GroupStore(runtime.meta), self._take)
            if peers is None
            else ReplicatedGroups(runtime, self._take, self._give_up)
        )
        super().__init__(runtime, storage, make_topic, keeper, peers)
        self.kafka: NativeView  # Kafka's groups: a name belongs to one kind of group only
        self._replicated = peers is not None
        self._groups: dict[str, Group] = {}
        self._unused: dict[str, int] = {}  # without members: when each was used last; the longest ago first
        self._locks = NameLocks()  # by group: one join, reset or delete at a time
        self._opened = False
        self._looking = False  # whether `_take_up` runs
        self._looked = True  # whether it has begun since topics changed last

    # --- life

    async def open(self) -> None:
        """Loads all groups; in a cluster each group when it begins to coordinate it. Raises StorageError."""
        self.storage.begin()
        self._opened = True
        self._runtime.spawn(self.alarms.run)
        self._runtime.topics.changed.subscribe(self._find_new_partitions)
        self._runtime.stopping.subscribe(self._wake_all)

    def _take(self, groups: Mapping[str, StoredGroup]) -> None:
        """Goes on with these groups, which this broker coordinates from now on."""
        for name, stored in groups.items():
            settings = unpack_settings(name, stored.settings)
            if settings.kind == "share":
                self.states.take(name, stored)
                continue
            group = self._groups[name] = Group(self, name, settings)
            group.ids = stored.ids
            self.room.take(group.owner, 1)
            lost: list[tuple[str, int]] = []
            for (topic, index), packed in stored.states.items():
                found = self._runtime.topics.get(topic)
                if not self._replicated and (found is None or index >= found.count):
                    lost.append((topic, index))
                    continue
                group.away[topic, index] = unpack(f"the state of group '{name}' in {topic}-{index}", packed)
                if (partition := self.distant.now((topic, index))) is not None:
                    self._take_up_partition(group, partition)
            self.note_use(group.name)
            if lost:
                self.storage.delete_states(name, lost)

    def _take_up_partition(self, group: Group, partition: GroupPartition) -> None:
        group.add(partition, group.load_away(partition)).attend()

    def _give_up(self, is_in: Callable[[str], bool]) -> None:
        """Forgets the groups with these names, which another broker coordinates now."""
        self.states.give_up(is_in)
        for group in [each for each in self._groups.values() if is_in(each.name)]:
            self._unused.pop(group.name, None)
            del self._groups[group.name]
            group.end(NotCoordinator(f"this broker does not coordinate the group '{group.name}' any more"))

    async def close(self) -> None:
        """Answers what waits, and writes every state to disk. After the next start nothing is leased."""
        if not self._opened:
            return
        self._wake_all()
        await self.undertaker.close()
        if self._replicated:  # what is to be durable was waited for, and nobody may be left to commit the rest
            return
        await self.shares.close()
        for group in self._groups.values():
            for shared in group.shared.values():
                if shared.leases.delayed:
                    group.writer.mark(shared)
        try:
            for writer in self.writers.values():
                await writer.all_durable().wait()
        except StorageError as error:
            self._runtime.report("groups_not_written", error=str(error))

    def _wake_all(self) -> None:
        for group in (*self._groups.values(), *self.shares.all()):
            group.wake_all()

    # --- changes of topics

    async def forget_topic(self, topic: str, id: bytes) -> None:
        """Deletes all groups' positions in a deleted topic. No new ones come meanwhile: a join or reset that waited for
        the disk finds that the topic is gone. Positions in a new topic of the same name stay: another broker may have
        coordinated their group before.

        In a cluster it does not wait until that is committed. The caller is the task that follows the cluster: if it
        waited, this broker would not learn that another one leads the partition that it writes to. A position that is
        left there has the topic's id, so the next load can tell that it is stale."""
        writes: list[Later[None] | None] = []
        with trio.CancelScope(shield=True):
            for number, group in enumerate([*self._groups.values()], 1):
                if number % BETWEEN_TURNS == 0:
                    await trio.lowlevel.checkpoint()
                gone = group.states_in(topic, id)
                if gone and not group.gone:
                    with suppress(NotCoordinator, CoordinatorNotAvailable):  # then it is found at the next load
                        writes.append(self.storage.delete_states(group.name, gone))  # first: if refused, tried again
                    group.remove(topic)
            writes += self.forget_shares(topic, id)
            if not self._replicated:
                await self.storage.synced(writes)

    def _find_new_partitions(self) -> None:
        """Begins to give groups with members the partitions added to their topics, from the first event on. A member of
        a topic that is made anew is told so: it takes no part in the new topic before it joins again."""
        self._looked = False
        self.distant.look()
        if not self._looking:
            self._looking = True
            self._runtime.spawn(self._take_up)

    async def _take_up(self) -> None:
        """Goes through all groups, until topics have not changed meanwhile."""
        try:
            while not self._looked:
                self._looked = True
                for number, group in enumerate([*self._groups.values()], 1):
                    if number % BETWEEN_TURNS == 0:
                        await trio.lowlevel.checkpoint()
                    group.place(self.distant.now)
                    if group.members and not group.gone:
                        self._take_up_in(group)
        finally:
            self._looking = False

    def _take_up_in(self, group: Group) -> None:
        for member in group.members.values():
            gone = (topic for topic in member.named if topic not in member.topics)
            member.anew = next((topic for topic in gone if topic in self._runtime.topics), None)
            if member.anew is not None:
                group.wake(member)  # so its polls say so
        topics = {topic for member in group.members.values() for topic in member.topics}
        there = self.distant.all_of(sorted(topic for topic in topics if topic in self._runtime.topics))
        fresh = [each for each in there if (each.topic, each.index) not in group.shared]
        for partition in fresh:
            if (partition.topic, partition.index) in group.away:
                self._take_up_partition(group, partition)
            else:
                group.add(partition, group.new_leases(partition.topic, partition.start_offset), group.owner).changed()
        if fresh:
            group.stir()

    def has(self, name: str) -> bool:
        return name in self._groups

    def check_share_room(self, owner: str, more: int = 0) -> None:
        self._make_room(None, owner, more)

    def note_use(self, name: str) -> None:
        self._unused.pop(name, None)
        group = self._groups.get(name)
        if group is not None and not group.members:
            self._unused[name] = self.now_ms()

    def _check_room(self, group: Group | None, partitions: Iterable[GroupPartition]) -> None:
        """Raises Overloaded if the user who asks now has no room for a position of `group` in each of these partitions,
        and no other group gives way. `group`: None: it counts as a new group."""
        held = {} if group is None else group.shared
        self._make_room(group, whose(), sum((each.topic, each.index) not in held for each in partitions))

    def _make_room(self, group: Group | None, owner: str, more: int) -> None:
        while True:
            try:
                return self.room.check(owner, more, is_new=group is None)
            except Overloaded:
                if not self._gives_way(group):
                    raise

    def _gives_way(self, keep: Group | None) -> bool:
        """Forgets the group unused for longest, if for long enough; not `keep`, nor one that can't be deleted now."""
        long_ago = self.now_ms() - self._runtime.config.offsets_retention_ms
        for name, used in self._unused.items():
            if used > long_ago:
                break
            if keep is None or name != keep.name:
                with suppress(StorageError, NotCoordinator, CoordinatorNotAvailable):
                    self._forget(self._groups[name])
                    self._runtime.report("group_forgotten", group=name)
                    return True
        return False

    def _forget(self, group: Group) -> Later[None] | None:
        """Removes a group without members from the store and from memory. Gives what it wrote, for `synced`."""
        write = self.storage.delete(group.name)
        group.vanish()
        self._unused.pop(group.name, None)
        del self._groups[group.name]
        return write

    def _put(self, group: Group) -> None:
        """Adds a group if it is new."""
        if group.name not in self._groups:
            self._groups[group.name] = group
            self.room.take(group.owner, 1)
            group.writer.mark_group(group)

    def sizes(self) -> dict[str, int]:
        """How many members each native group has."""
        return {name: len(group.members) for name, group in self._groups.items()}

    # --- joining

    async def join(
        self,
        name: str,
        client: str,
        topics: Sequence[str],
        *,
        start: str = "earliest",
        start_at: int | None = None,
        order: str = "none",
        lease_ms: int = 30_000,
        max_deliveries: int = 10,
        dead_letter: str | None = None,
    ) -> Member:
        """A new member, once the group's first positions are durable.

        `start` counts for topics that the group has no position in; partitions that a known topic has gained are read
        from their first event. `max_deliveries` and `dead_letter` count for these topics in the group: of its members,
        the last that has joined for a topic decides. Raises UnknownTopic, InvalidRequest, InvalidTopic, GroupFull,
        OffsetOutOfRange, WrongGroupKind, StorageError.
        """
        self._check_kind(name)
        wanted = tuple(dict.fromkeys(topics))
        if order not in ("none", "key"):
            raise InvalidRequest(f"'{order:.40}' is not an order: give none or key", field="order")
        for topic in wanted:
            self._runtime.topics.find(topic)
            check_dead_letter(topic, name, wanted, dead_letter, self._runtime.topics.is_internal)
        async with self._locks.of(name):
            starts = await self._starts(name, wanted, start, start_at)
            # Nothing is awaited from here until the group and its positions are marked to be written. Commit and
            # Kafka's clients do not take this lock, and may have made the group before this.
            self._check_kind(name)
            group, is_new = self._groups.get(name), name not in self._groups
            rules = DeadLetterRules(max_deliveries, dead_letter)
            self._check_room(group, starts)
            owner = whose()
            group = group or Group(self, name, SharedSettings("shared", order), owner)
            group.check_order(order)
            member = group.join(client, wanted, lease_ms, rules)
            try:
                changed = group.adopt(order, dict.fromkeys(wanted, rules))
                for partition in [each for each in starts if (each.topic, each.index) in group.away]:
                    self._take_up_partition(group, partition)
                    del starts[partition]
                added = [group.add(each, group.new_leases(each.topic, at), owner) for each, at in starts.items()]
                self._put(group)
                for shared in added:
                    shared.changed()
                if changed:
                    group.writer.mark_group(group)
                for shared in added:
                    if shared.leases.frontier > shared.partition.start_offset:
                        with suppress(KrappyError):  # then it is found before the first events are leased
                            await shared.find()
                await group.writer.durable(group, added, settings=is_new or changed).wait()
            except BaseException:
                member.close()
                raise
            return member

    async def _starts(
        self, name: str, topics: Sequence[str], start: str, start_at: int | None
    ) -> dict[GroupPartition, int]:
        """The first offset for each partition in which the group has no position when this returns. Raises
        UnknownTopic, OffsetOutOfRange."""
        asked: dict[GroupPartition, int] = {}
        while True:
            group = self._groups.get(name)
            held = {} if group is None else group.shared
            known = {topic for topic, _ in held}
            missing = [each for each in self.distant.all_of(topics) if (each.topic, each.index) not in held]
            unasked = [each for each in missing if each.topic not in known and each not in asked]
            if not unasked:
                return {each: each.start_offset if each.topic in known else asked[each] for each in missing}
            for each in unasked:
                told = each if start == "earliest" else self.distant.asked(each.topic, each.index)
                asked[each] = await told.offset_for(start, start_at)

    # --- administration

    def each_group(self, only: str | None = None) -> Iterator[GroupFacts]:
        """Every group, or `only` that one, without members, in no order; Kafka's too. Some may come or go meanwhile."""
        for group in [each for each in self._groups.values() if only in (None, each.name)]:
            yield group.describe(members=False)
        yield from self.kafka.each(only)

    def describe(self, name: str) -> GroupFacts:
        """Raises UnknownGroup."""
        return self.kafka.describe(name) if self.kafka.has(name) else self._find(name).describe(members=True)

    def held(self, name: str) -> Iterator[tuple[str, str, int, int, int, int]]:
        """What members of a shared group have leased: (member, topic, partition, first offset, last offset, when the
        lease ends in ms), in the order of the log. Raises UnknownGroup."""
        if not self.kafka.has(name):
            for at, shared in sorted(self._find(name).shared.items()):
                for run in shared.leases.runs():
                    if run.member is not None:
                        yield run.member, *at, run.first, run.last, self._runtime.clock.as_told(run.due)

    def positions(self, name: str) -> list[Position]:
        """The committed floor of each partition. Raises UnknownGroup."""
        if self.kafka.has(name):
            return self.kafka.positions(name)
        return [(*at, shared.leases.floor) for at, shared in sorted(self._find(name).shared.items())]

    def ends(self, name: str, topics: Collection[str]) -> list[Position]:
        """Where each partition of these topics in which the group has a position ends, if its leader tells it."""
        shared = self._groups[name].shared if name in self._groups else {}
        return [(*at, each.end) for at, each in sorted(shared.items()) if at[0] in topics and each.end >= 0]

    async def commit(self, name: str, offsets: Sequence[Position]) -> None:
        """Sets floors by hand, all or none, durably; a group that is not there is made. Raises UnknownTopic,
        UnknownPartition, OffsetOutOfRange, GroupNotEmpty, WrongGroupKind, StorageError."""
        self._check_kind(name)
        found: list[tuple[GroupPartition, int]] = []
        for topic, index, offset in offsets:
            await check_position(self.distant.asked(topic, index), offset)
            found.append((self.distant.of(self._runtime.topics.find(topic), index), offset))
        self._check_kind(name)  # leaders were asked meanwhile
        if (group := self._groups.get(name)) is not None:
            check_empty(group)
        self._check_room(group, {partition for partition, _ in found})
        group = group or Group(self, name, SharedSettings("positions"), whose())
        self._put(group)
        moved = self._move(group, found)
        self._runtime.audit.moved(name, (), offsets, often=True)  # before the wait, which ends if the sender leaves
        await moved.wait()

    async def reset(
        self,
        name: str,
        topic: str | None,
        partitions: Sequence[int] | None,
        start: str,
        start_at: int | None,
        *,
        dry_run: bool = False,
    ) -> list[tuple[str, int, int, int]]:
        """Moves a group without members: (topic, partition, old floor, new floor) of each.

        `topic` None: all that the group has a position in. An offset outside a log becomes its nearest end. With
        `dry_run` nothing is moved, and the group may have members. Raises UnknownGroup, UnknownTopic, UnknownPartition,
        GroupNotEmpty, StorageError.
        """
        async with self._locks.of(name):
            targets: dict[tuple[str, GroupPartition], int] = {}
            while True:  # until the group has not changed during an await
                held = self._positions_to_move(name, dry_run=dry_run)
                chosen = self._chosen({at for at, _ in held}, topic, partitions)
                unasked = [each for each in chosen if each not in targets]
                if not unasked:
                    break
                for each in unasked:
                    targets[each] = await nearest(self.distant.asked(each[1].topic, each[1].index), start, start_at)
            moves = [(of, partition, targets[of, partition]) for of, partition in chosen]
            answer = [(of, at.index, held.get((of, at.index), at.start_offset), target) for of, at, target in moves]
            if not dry_run:
                told = [row[:3] for row in answer], [(*row[:2], row[3]) for row in answer]
                if (group := self._groups.get(name)) is None:
                    await self.kafka.move(name, moves, *told)
                else:
                    self._check_room(group, [partition for _, partition, _ in moves])
                    moved = self._move(group, [(partition, target) for _, partition, target in moves])
                    self._runtime.audit.moved(name, *told)  # before the wait: nobody may know how that ends
                    await moved.wait()
            return answer

    def _positions_to_move(self, name: str, *, dry_run: bool) -> dict[tuple[str, int], int]:
        """Raises UnknownGroup, GroupNotEmpty."""
        if not self.kafka.has(name):
            group = self._find(name)
            if not dry_run:
                check_empty(group)
        elif not dry_run:
            self.kafka.check_empty(name)
        return {(topic, index): floor for topic, index, floor in self.positions(name)}

    def _chosen(
        self, held: set[str], topic: str | None, indexes: Sequence[int] | None
    ) -> list[tuple[str, GroupPartition]]:
        """The chosen partitions, with the topic's name as the group has it: Kafka's groups may read TOPIC@latest."""
        chosen: list[tuple[str, GroupPartition]] = []
        for each in sorted(held) if topic is None else [topic]:
            found = self._runtime.topics.find((self._runtime.topics.table_of(each) or each) if each in held else each)
            some = range(found.count) if indexes is None else sorted(set(indexes))
            chosen += [(each, self.distant.of(found, index)) for index in some]
        return chosen

    def _move(self, group: Group, moves: Sequence[tuple[GroupPartition, int]]) -> Later[None]:
        moved = []
        for partition, _ in moves:
            found = self._runtime.topics.get(partition.topic)
            if found is None:
                raise UnknownTopic(f"the topic '{partition.topic}' was deleted")
            if self.distant.of(found, partition.index) is not partition:
                raise NotLeader(f"{partition}: it was moved, or its topic was made anew, meanwhile")
        for partition, offset in moves:
            shared = group.shared.get((partition.topic, partition.index))
            if shared is None:
                shared = group.add(partition, group.new_leases(partition.topic, offset), whose())
            else:
                shared.leases.reset(offset)
                shared.trim()
            shared.changed()
            moved.append(shared)
        self.note_use(group.name)
        return group.writer.durable(group, moved, settings=True)

    async def delete(self, name: str) -> None:
        """Raises UnknownGroup, GroupNotEmpty, StorageError."""
        if self.kafka.has(name):
            await self.kafka.delete(name)
            return
        async with self._locks.of(name):
            group = self._find(name)
            check_empty(group)
            forgotten = self._forget(group)
            self._runtime.audit.changed("group", name, {"protocol": "native"}, None)
            await self.storage.synced([forgotten])

    def _check_kind(self, name: str) -> None:
        """Raises InvalidRequest, WrongGroupKind; NotCoordinator, CoordinatorNotAvailable."""
        check_group_name(name)
        if self.kafka.has(name) or self.states.keeps(name):
            raise WrongGroupKind(f"'{name}' is a group of Kafka clients; native members need another name", group=name)
        self.storage.check_here(name)

    def _find(self, name: str) -> Group:
        if (group := self._groups.get(name)) is None:
            raise UnknownGroup(f"there is no group '{name}'", group=name)
        return group
