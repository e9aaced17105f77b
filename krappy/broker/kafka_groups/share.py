"""Kafka's share groups (KIP-932): their members, what they are assigned, and what tools ask of them.

Which records a member has acquired is in groups/share_partitions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from krappy.broker.kafka_groups.group import KafkaGroup
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import Beat, Beaten
from krappy.core.kafka.share import ShareGroup, check_share_beat
from krappy.errors import KrappyError
from krappy.ports import SharePosition
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.groups.share_partitions import SharePartitions
    from krappy.broker.kafka_groups.registry import GroupRegistry
    from krappy.broker.partition.partition import Partition
    from krappy.core.kafka.offset import At


BeatIn = Callable[[str, Beat, Callable[[str, Beat], KafkaGroup]], Later[Beaten | KrappyError]]


class ShareGroups:
    def __init__(
        self,
        owner: GroupRegistry,
        leases: SharePartitions,
        beat_in: BeatIn,
        after: Callable[[KafkaGroup], KrappyError | None],
    ) -> None:
        """`beat_in`, `after`: as those of `KafkaGroups`."""
        self._owner = owner
        self._leases = leases
        self._beat_in, self._after = beat_in, after
        leases.is_group = lambda name: name in owner.shares
        leases.rules_of = owner.settings.share_rules

    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]:
        """ShareGroupHeartbeat. The Later gives the answer, or the error that refuses it."""
        return self._beat_in(name, beat, self._for_beat)

    def _for_beat(self, name: str, beat: Beat) -> KafkaGroup:
        """The share group of this name. A first heartbeat makes it; an invalid one makes none."""
        check_share_beat(beat)
        if beat.epoch != 0 or name in self._owner.shares:
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
        return {at: SharePosition(each["floor"], each["lag"]) for at, each in self._leases.describe(name).items()}

    async def alter(self, name: str, moves: Sequence[tuple[Partition, int]]) -> None:
        """Moves a group without members, durably; one that is not there is made. Raises Refused: GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP."""
        await self._owner.store.sure(name)
        if moves and name not in self._owner.shares:
            self._make(name)
            await self._owner.store.written(name).wait()
        await self._empty(name)
        await self._leases.alter(name, moves)

    def _make(self, name: str) -> None:
        """A group without members. Raises Refused, StorageError."""
        group = self._owner.make_share(name)
        assert isinstance(group.membership, ShareGroup)
        group.membership.begin()
        failed = self._after(group)
        if failed is not None:
            self._owner.drop(group)
            raise failed

    async def forget(self, name: str, topics: Iterable[str]) -> set[str]:
        """Deletes the positions of a group without members, durably; the topics that it had any in. Raises as
        `alter`."""
        await self._empty(name)
        return await self._leases.forget(name, topics)

    async def delete(self, name: str) -> None:
        """Deletes a group without members, durably. Raises as `alter`."""
        group = await self._empty(name)
        await self._leases.delete(name)
        if not group.gone:
            if not group.membership.empty:
                raise Refused(Fault.NON_EMPTY_GROUP, f"the group '{name:.249}' has members again")
            self._owner.forget(group)
            await self._owner.store.written(name).wait()

    async def _empty(self, name: str) -> KafkaGroup:
        await self._owner.store.sure(name)
        group = self.find(name)
        if not group.membership.empty:
            raise Refused(Fault.NON_EMPTY_GROUP, f"the group '{name:.249}' has members; they must leave first")
        return group
