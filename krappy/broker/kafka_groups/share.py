"""Kafka's share groups (KIP-932): their members, what they are assigned, and what tools ask of them.

Which records a member has acquired is in groups/share_partitions.py. The positions of a group are kept by
groups/share_states.py, maybe at another broker. The group is made there before its first member is taken, and deleted
there after the group itself. So if a request is interrupted half-way, no group lacks its positions. If positions are
left of a group that is gone, the next deletion removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from krappy.broker.groups.distant import nearest
from krappy.broker.groups.share_keepers import UNKNOWN
from krappy.broker.kafka_groups.group import KafkaGroup
from krappy.broker.name_locks import NameLocks
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import JOINING, Beat, Beaten
from krappy.core.kafka.share import ShareGroup, check_share_beat
from krappy.core.security.audit import positions
from krappy.errors import KrappyError
from krappy.ports import SharePosition
from krappy.ports.audit import Position
from krappy.ports.shares import PartitionId
from krappy.types import TopicPartition
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.registry import GroupRegistry, Natives
    from krappy.core.kafka.offset import At

BeatIn = Callable[[str, Beat, Callable[[str, Beat], KafkaGroup]], Later[Beaten | KrappyError]]


class _Joins(Exception):
    """A member may join, once it is sure that its group is kept as a share group."""


class ShareGroups:
    def __init__(
        self,
        owner: GroupRegistry,
        natives: Natives,
        beat_in: BeatIn,
        after: Callable[[KafkaGroup], KrappyError | None],
    ) -> None:
        """`beat_in`, `after`: as those of `KafkaGroups`."""
        self._owner = owner
        self._kept, self._distant = natives.keepers, natives.distant
        self._beat_in, self._after = beat_in, after
        self._locks = NameLocks()  # by group: one join or deletion at a time
        natives.shares.rules_of = owner.settings.share_rules

    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]:
        """ShareGroupHeartbeat. The Later gives the answer, or the error that refuses it."""
        if beat.epoch != JOINING:
            return self._beat_in(name, beat, self._for_beat)
        try:
            return self._beat_in(name, beat, self._for_join)
        except _Joins:
            later: Later[Beaten | KrappyError] = Later()
            self._owner.runtime.spawn(self._join, name, beat, later)
            return later

    def _for_join(self, name: str, beat: Beat) -> NoReturn:
        """Raises `_Joins` if nothing is wrong with a first heartbeat."""
        check_share_beat(beat)
        self._owner.check_share(name)
        raise _Joins

    async def _join(self, name: str, beat: Beat, later: Later[Beaten | KrappyError]) -> None:
        answer: Beaten | KrappyError
        try:
            async with self._locks.of(name):
                await self._kept.begin(name)
                answer = await self._beat_in(name, beat, self._for_beat).wait()
        except KrappyError as error:
            answer = error
        later.resolve(answer)

    def _for_beat(self, name: str, beat: Beat) -> KafkaGroup:
        """The share group of this name. A first heartbeat makes it; an invalid one makes none."""
        check_share_beat(beat)
        if beat.epoch != JOINING or name in self._owner.shares:
            return self.find(name)
        return self._owner.make_share(name)

    def find(self, name: str) -> KafkaGroup:
        """Raises Refused, GROUP_ID_NOT_FOUND."""
        group = self._owner.shares.get(name)
        if group is None:
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"Group {name:.249} is not a share group.")
        return group

    async def describe(self, name: str) -> tuple[ShareGroup, dict[bytes, str]]:
        """A share group, and the topics' names by id. Raises Refused; CoordinatorNotAvailable."""
        await self._owner.store.sure(name)
        membership = self.find(name).membership
        assert isinstance(membership, ShareGroup)
        return membership, {topic.id: known for known, topic in self._owner.topics.items()}

    async def positions(self, name: str) -> Mapping[At, SharePosition]:
        """Where the group is in each partition that it has begun to read. Raises as `describe`."""
        await self._owner.store.sure(name)
        self.find(name)
        found: dict[At, SharePosition] = {}
        names, committed = self._owner.runtime.image.names, self._owner.settings.share_rules(name).committed
        for id, kept in sorted((await self._kept.kept(name)).items()):
            if id.topic_id in names:
                at = names[id.topic_id], id.partition
                end = await self._kept.end(TopicPartition(*at), committed)
                lag = UNKNOWN if end == UNKNOWN else max(0, end - kept.start - kept.complete)
                found[at] = SharePosition(kept.start, kept.leader_epoch, lag)
        return found

    async def alter(self, name: str, moves: Mapping[PartitionId, int], before: Iterable[Position] = ()) -> None:
        """As `move`. It stands in the audit log, so it goes on even if its sender leaves. `before`: the positions that
        the group had, for the audit log."""
        names = self._owner.runtime.image.names
        after = [(names.get(id.topic_id, ""), id.partition, offset) for id, offset in moves.items()]
        with self._owner.runtime.audit.change("positions", [name], elsewhere=True) as told:
            told.before[name], told.after[name] = positions(before), positions(after)
            await self.move(name, moves)

    async def move(self, name: str, moves: Mapping[PartitionId, int]) -> None:
        """Moves a group without members, durably. If there is no such group, it is made. An offset outside a log
        becomes the log's nearest end. Raises Refused: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; UnknownTopic; NotLeader if
        the leader of a partition can't be asked for its ends."""
        await self._owner.store.sure(name)
        wanted = {id: await self._inside(id, offset) for id, offset in moves.items()}
        if moves and name not in self._owner.shares:
            self._owner.check_share(name)
            await self._kept.begin(name)
            self._make(name)
            await self._owner.store.written(name).wait()
        await self._empty(name)
        if moves:
            await self._kept.begin(name)
            await self._kept.move(name, wanted)

    async def _inside(self, id: PartitionId, offset: int) -> int:
        """The nearest offset in the partition, as its leader tells it. Raises NotLeader if the leader can't be
        asked."""
        topic = self._owner.runtime.topics.by_id.get(id.topic_id)
        if topic is None or id.partition >= topic.count:
            return offset
        return await nearest(self._distant.asked(topic.name, id.partition), "offset", offset)

    def _make(self, name: str) -> None:
        """Makes a group without members. Raises Refused, StorageError."""
        if name in self._owner.shares:
            return
        group = self._owner.make_share(name)
        assert isinstance(group.membership, ShareGroup)
        group.membership.begin()
        failed = self._after(group)
        if failed is not None:
            self._owner.drop(group)
            raise failed

    async def forget(self, name: str, topics: Iterable[bytes]) -> None:
        """Deletes the positions of a group without members in these topics, by their ids; durably. Raises as
        `alter`."""
        await self._empty(name)
        gone, names = [*topics], self._owner.runtime.image.names
        with self._owner.runtime.audit.change("positions", [name], elsewhere=True) as told:
            told.before[name] = {"topics": [names.get(id, "") for id in gone]}
            await self._kept.delete(name, gone)

    async def delete(self, name: str) -> None:
        """Deletes a group without members, durably. Raises as `alter`."""
        async with self._locks.of(name):
            if name in self._owner.shares:
                self._owner.forget(await self._empty(name))
                self._owner.runtime.audit.changed("group", name, {"protocol": "share"}, None)
                await self._owner.store.written(name).wait()
                await self._kept.delete(name, None)
            elif not await self._kept.delete(name, None):  # else a deletion was interrupted
                self._owner.find(name)

    async def _empty(self, name: str) -> KafkaGroup:
        await self._owner.store.sure(name)
        group = self.find(name)
        if not group.membership.empty:
            raise Refused(Fault.NON_EMPTY_GROUP, f"the group '{name:.249}' has members; they must leave first")
        return group
