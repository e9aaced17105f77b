"""Consumer groups, native and Kafka's: members, leases, positions and lag; moving them, deleting them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.changes_elsewhere import ToldGroups
from krappy.console.events import Offset, Partition
from krappy.console.slices import in_slices
from krappy.console.topics import MOST_PARTITIONS, Deleted, DeleteQuery, Name, TopicsQuery, check_confirmed, page_of
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import InvalidRequest, NotCoordinator, UnknownGroup
from krappy.ports import GroupFacts, GroupsPort

routes = Routes("groups")
# The errors of this broker for a group that another one may have. It has the native group of a name that it
# coordinates; a Kafka group of the same name is at another broker.
ELSEWHERE = NotCoordinator, UnknownGroup


class GroupSummary(msgspec.Struct):
    """`kind`: shared (native; members lease events), positions (native; readers commit offsets), classic, consumer
    or share (of Kafka's clients)."""

    group: str
    kind: str
    order: str
    topics: list[str]
    lag: int


class GroupPage(msgspec.Struct):
    """`total`: how many groups pass the filter. `after`: give it to get the next page; null at the end."""

    groups: list[GroupSummary]
    total: int
    after: str | None


class LeaseRow(msgspec.Struct):
    """The events from `first` to `last` (offsets, inclusive) are a member's until `due` (ms since the epoch), or until
    it settles them."""

    topic: str
    partition: int
    first: int
    last: int
    due: int


class MemberRow(msgspec.Struct):
    """`leased`: how many events it holds now. `leases`: which ones, at most 100 runs of offsets. For one who may not
    describe all topics of the group, `leased` counts those of `leases` alone."""

    name: str
    client: str
    leased: int
    leases: list[LeaseRow]


class GroupPosition(msgspec.Struct):
    """`position`: every event before this offset is settled. `end` and `lag` are -1 while the partition's leader can't
    be asked. Numbers of events: `leased` are with a member now, `redelivering` wait to be given to another, `dead` went
    to the dead-letter topic."""

    topic: str
    partition: int
    position: int
    end: int
    lag: int
    leased: int
    redelivering: int
    dead: int


class GroupDescribed(msgspec.Struct):
    group: str
    kind: str
    order: str
    lag: int
    members: list[MemberRow]
    partitions: list[GroupPosition]


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group goes on. Its members must have left, except for a dry run, which only shows what would change."""

    to: Literal["earliest", "latest", "offset", "timestamp"]
    at: Annotated[Offset | None, Meta(description="for to=offset and to=timestamp (ms since the epoch)")] = None
    topic: Annotated[Name | None, Meta(description="default: every topic in which it has a position")] = None
    partitions: Annotated[list[Partition], Meta(max_length=MOST_PARTITIONS)] | None = None
    dry_run: bool = True


class MovedRow(msgspec.Struct):
    topic: str
    partition: int
    old: int
    new: int


class GroupMoved(msgspec.Struct):
    group: str
    dry_run: bool
    positions: list[MovedRow]


def _lag(group: GroupFacts) -> int:
    return sum(max(0, each["lag"]) for each in group["partitions"])


@routes.get("/groups", needs=needs.group(Op.DESCRIBE), summary="Groups by name, a page at a time")
async def list_groups(call: Call, query: TopicsQuery) -> GroupPage:
    access = call.access
    if call.gateway is None:
        groups = await in_slices(access.each_group(Op.DESCRIBE))
    else:
        groups = [
            access.told(each)
            for each in await call.gateway.groups.all()
            if access.may(Resource.GROUP, each["group"], Op.DESCRIBE)
        ]
    known = {each["group"]: each for each in groups}
    names, total, after = page_of(list(known), query.filter, query.after, query.limit)
    found = [
        GroupSummary(name, known[name]["kind"], known[name]["order"], known[name]["topics"], _lag(known[name]))
        for name in names
    ]
    return GroupPage(found, total, after)


async def _described(call: Call, group: str) -> GroupFacts:
    """A group, whichever broker coordinates it. Raises UnknownGroup."""
    try:
        told = call.access.describe_group(group)
        if call.gateway is None or all(each["end"] >= 0 for each in told["partitions"]):
            return told
    except ELSEWHERE:  # it is not raised before the caller's right to describe the group was checked
        if call.gateway is None:
            raise
    return call.access.told(await call.gateway.groups.describe(group))


@routes.get(
    "/groups/{group}",
    needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="A group: members, leases, positions and lag",
)
async def describe_group(call: Call, group: str) -> GroupDescribed:
    told = await _described(call, group)
    return GroupDescribed(
        told["group"],
        told["kind"],
        told["order"],
        _lag(told),
        [
            MemberRow(each["name"], each["client"], each["leased"], [LeaseRow(*lease) for lease in each["leases"]])
            for each in told["members"]
        ],
        [
            GroupPosition(
                *(each["topic"], each["partition"], each["floor"], each["end"], each["lag"]),
                *(each["leased"], each["redelivering"], each["dead"]),
            )
            for each in told["partitions"]
        ],
    )


@routes.post(
    "/groups/{group}/reset",
    needs=needs.group(Op.READ) + needs.topic(Op.READ),
    summary="Move a group to another position, or show what that would change",
)
async def reset_group(call: Call, group: str, body: Reset) -> GroupMoved:
    if body.to in ("offset", "timestamp") and body.at is None:
        raise InvalidRequest(f"to={body.to} needs `at`", field="at")
    if body.partitions is not None and body.topic is None:
        raise InvalidRequest("`partitions` needs `topic`, too", field="topic")
    groups, topics = await _coordinator(call, group, Op.READ)
    if body.topic is not None:
        call.access.check(Resource.TOPIC, body.topic, Op.READ)
    else:
        call.access.check_topics(topics, Op.READ, "the group")
    moved = await groups.reset(group, body.topic, body.partitions, body.to, body.at, dry_run=body.dry_run)
    return GroupMoved(group, body.dry_run, [MovedRow(*each) for each in moved])


@routes.delete("/groups/{group}", needs=needs.group(Op.DELETE), summary="Delete a group: its positions")
async def delete_group(call: Call, group: str, query: DeleteQuery) -> Deleted:
    groups, _ = await _coordinator(call, group, Op.DELETE)
    check_confirmed(group, query.confirm, "a group")
    await groups.delete(group)
    return Deleted(group)


async def _coordinator(call: Call, group: str, op: Op) -> tuple[GroupsPort | ToldGroups, set[str]]:
    """(whoever coordinates the group, the topics in which it has positions). Raises UnknownGroup."""
    try:
        here = call.access.group(group, op)
        return here, {each[0] for each in here.positions(group)}
    except ELSEWHERE:
        if call.gateway is None:
            raise
        there = call.gateway.groups
        return ToldGroups(call.broker.audit, there), set((await there.describe(group))["topics"])
