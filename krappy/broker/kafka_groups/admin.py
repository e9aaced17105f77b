"""Kafka's groups for admin tools: listing, describing and deleting them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import GroupState
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern import ModernGroup
from krappy.errors import CoordinatorLoading
from krappy.ports import DescribedGroup, Listed

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.registry import GroupRegistry
    from krappy.broker.kafka_groups.share import ShareGroups

NATIVE = "krappy"  # the protocol type, and the type, by which Kafka's tools see a native group


class Admin:
    def __init__(self, owner: GroupRegistry, share: ShareGroups) -> None:
        self._owner, self._share = owner, share
        self._runtime = owner.runtime

    def list_groups(self) -> Iterator[Listed]:
        """Every group that this broker coordinates, native ones too. Groups may be created and deleted during the
        iteration. Raises CoordinatorLoading while some are not loaded. As in Kafka, groups that nobody coordinates are
        in no broker's list: the others are listed though a partition has no leader."""
        if self._owner.store.loading or self._owner.natives.storage.loading:
            raise CoordinatorLoading("this broker has not loaded all the groups yet that it coordinates; ask again")
        return self._listed()

    def epoch(self) -> int:
        """A number that rises whenever another broker begins to coordinate some groups, as far as this broker knows. If
        all brokers give the same number, each group is coordinated by one of them. Raises CoordinatorLoading while this
        broker has not loaded all that it coordinates, CoordinatorNotAvailable while nobody coordinates some groups."""
        return self._owner.store.epoch + self._owner.natives.storage.epoch

    def _listed(self) -> Iterator[Listed]:
        for name, group in [*self._owner.groups.items()]:
            membership = group.membership
            if isinstance(membership, ClassicGroup):
                yield Listed(name, "classic", membership.protocol_type or "", membership.state)
            else:
                yield Listed(name, "consumer", "consumer", membership.state)
        for name, group in [*self._owner.shares.items()]:
            yield Listed(name, group.membership.kind, group.membership.kind, group.membership.state)
        for name, members in self._owner.natives.sizes().items():
            yield Listed(name, NATIVE, NATIVE, "Stable" if members else "Empty")

    async def describe(self, name: str) -> DescribedGroup:
        """A classic group, or a native one. Raises Refused, GROUP_ID_NOT_FOUND; CoordinatorNotAvailable."""
        if self._owner.natives.has(name):
            told = self._owner.natives.describe(name)
            who = [(each["name"], None, "", each["client"], b"", b"") for each in told["members"]]
            return DescribedGroup("Stable" if who else "Empty", NATIVE, told["order"], who)
        await self._owner.store.sure(name)
        membership = self._owner.find(name).membership
        if not isinstance(membership, ClassicGroup):
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"Group {name:.249} is not a classic group.")
        stable = membership.state is GroupState.STABLE
        return DescribedGroup(
            membership.state,
            membership.protocol_type or "",
            membership.protocol or "",
            [
                (
                    *(each.id, each.instance_id, each.client_id, each.client_host),
                    each.metadata(membership.protocol) if stable else b"",
                    each.assignment,
                )
                for each in membership.members.values()
            ],
        )

    async def describe_modern(self, name: str) -> tuple[ModernGroup, dict[bytes, str]]:
        """A KIP-848 group, and its topics' names by id. Raises Refused, GROUP_ID_NOT_FOUND; CoordinatorNotAvailable."""
        await self._owner.store.sure(name)
        membership = self._owner.find(name).membership
        if not isinstance(membership, ModernGroup):
            raise Refused(Fault.GROUP_ID_NOT_FOUND, f"Group {name:.249} is not a consumer group.")
        return membership, {topic.id: known for known, topic in self._owner.topics.items()}

    async def delete(self, name: str) -> None:
        """Deletes a group durably. Raises Refused (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP), StorageError,
        CoordinatorNotAvailable; a native group: UnknownGroup, GroupNotEmpty."""
        if self._owner.natives.has(name):
            await self._owner.natives.delete(name)
            return
        if name not in self._owner.groups:
            await self._share.delete(name)
            return
        await self._owner.store.sure(name)
        group = self._owner.find(name)
        if not group.membership.empty:
            raise Refused(Fault.NON_EMPTY_GROUP, f"the group '{name:.249}' has members; they must leave first")
        self._owner.forget(group)
        self._runtime.audit.changed("group", name, {"protocol": group.membership.kind}, None)  # before the wait
        await self._owner.store.written(name).wait()
