"""Kafka's groups for the native protocol, with which `krappy group` describes, moves and deletes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from krappy.core.kafka.offset import At, Offset
from krappy.errors import GroupNotEmpty, UnknownGroup
from krappy.ports import GroupFacts, MemberFacts, PartitionId, PositionFacts
from krappy.ports.audit import Position

if TYPE_CHECKING:
    from krappy.broker.groups.distant import GroupPartition
    from krappy.broker.kafka_groups.admin import Admin
    from krappy.broker.kafka_groups.group import KafkaGroup
    from krappy.broker.kafka_groups.offsets import KafkaOffsets
    from krappy.broker.kafka_groups.registry import GroupRegistry
    from krappy.broker.kafka_groups.share import ShareGroups


class NativeView:
    """Methods that take a group's name, other than `has`, raise UnknownGroup when there is no such group."""

    def __init__(self, owner: GroupRegistry, offsets: KafkaOffsets, admin: Admin, share: ShareGroups) -> None:
        self._owner, self._share = owner, share
        self._offsets = offsets
        self._admin = admin
        self._runtime = owner.runtime

    def has(self, name: str) -> bool:
        return self._owner.any(name) is not None

    def each(self, only: str | None = None) -> Iterator[GroupFacts]:
        every = [*self._owner.groups.values(), *self._owner.shares.values()]
        return map(self._describe, [group for group in every if only in (None, group.name)])

    def describe(self, name: str) -> GroupFacts:
        """A group's description, with its members."""
        group = self._find(name)
        held = self._owner.natives.shares.held(name)
        members: list[MemberFacts] = [
            {
                "name": each.id,
                "client": f"{each.client_id} {each.client_host}".strip(),
                "leased": held.get(each.id, 0),
            }
            for each in group.membership.members.values()
        ]
        return {**self._describe(group), "members": members}

    def _find(self, name: str) -> KafkaGroup:
        group = self._owner.any(name)
        if group is None:
            raise UnknownGroup(f"there is no group '{name:.249}'", group=name)
        return group

    def _describe(self, group: KafkaGroup) -> GroupFacts:
        """As `krappy.broker.groups.group.Group.describe` describes a native group."""
        shared = self._shared(group.name)
        return {
            "group": group.name,
            "kind": group.membership.kind,
            "order": "none",
            "topics": sorted({topic for topic, _ in (*group.offsets, *shared)} | (group.membership.topics() or set())),
            "partitions": [
                *(self._position(at, offset.offset) for at, offset in sorted(group.offsets.items())),
                *shared.values(),
            ],
        }

    def _shared(self, name: str) -> dict[At, PositionFacts]:
        """A share group's positions, as far as this broker knows without asking others: those that it keeps, and those
        of the partitions that it leads."""
        natives = self._owner.natives
        kept = {at: self._position(at, start, complete) for at, start, complete in natives.keepers.own.positions(name)}
        return {**kept, **natives.shares.describe(name)}

    def _position(self, at: At, floor: int, complete: int = 0) -> PositionFacts:
        """`complete`: how many events behind the floor are settled."""
        topic = self._runtime.topics.get(self._runtime.topics.table_of(at[0]) or at[0])
        end = floor
        if topic is not None and at[1] < topic.count:
            held = topic.local.get(at[1])
            end = -1 if held is None else held.high_watermark
        return {
            "topic": at[0],
            "partition": at[1],
            "floor": floor,
            "end": end,
            "lag": -1 if end < 0 else max(0, end - floor - complete),
            "leased": 0,
            "redelivering": 0,
            "dead": 0,
        }

    def positions(self, name: str) -> list[tuple[str, int, int]]:
        shared = self._shared(name)
        told = {at: each["floor"] for at, each in shared.items()}
        told |= {at: offset.offset for at, offset in self._find(name).offsets.items()}
        return [(*at, offset) for at, offset in sorted(told.items())]

    def check_empty(self, name: str) -> None:
        """Raises GroupNotEmpty."""
        members = len(self._find(name).membership.members)
        if members:
            raise GroupNotEmpty(
                f"the group '{name}' has {members} members; they must leave first", group=name, members=members
            )

    async def move(
        self,
        name: str,
        moves: Sequence[tuple[str, GroupPartition, int]],
        before: Sequence[Position],
        after: Sequence[Position],
    ) -> None:
        """Sets positions: (topic's name, partition, offset). Durable on return. `before`, `after`: what the audit log
        tells. Raises GroupNotEmpty, StorageError."""
        self.check_empty(name)
        if name in self._owner.shares:
            ids = {topic: self._runtime.topics.find(topic).id for topic, _, _ in moves}
            at = {PartitionId(ids[topic], at.index): offset for topic, at, offset in moves}
            await self._share.alter(name, at, before)
            return
        now = self._runtime.clock.steady_ms()
        offsets = {(topic, partition.index): Offset(offset, -1, "", now) for topic, partition, offset in moves}
        moved = self._offsets.commit_later(self._find(name), offsets)
        self._runtime.audit.moved(name, before, after)  # before the wait, which ends if the sender leaves
        if (error := await moved.wait()) is not None:
            raise error

    async def delete(self, name: str) -> None:
        """Durable on return. Raises GroupNotEmpty, StorageError."""
        self.check_empty(name)
        await self._admin.delete(name)
