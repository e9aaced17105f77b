"""Consumer groups, native and Kafka's: members, leases, positions and lag; moving them, deleting them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.events import Offset, Partition
from krappy.console.slices import in_slices
from krappy.console.topics import MOST_PARTITIONS, Deleted, DeleteQuery, Name, TopicsQuery, check_confirmed, page_of
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import InvalidRequest
from krappy.ports import GroupFacts

routes = Routes("groups")
MOST_LEASES = 100  # of a member that are listed


class GroupSummary(msgspec.Struct):
    """`kind`: shared (native; members lease events), positions (native; readers commit offsets), classic or consumer
    (both of Kafka's clients)."""

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
    """`leased`: how many events it holds now. `leases`: which ones, at most 100 runs of offsets."""

    name: str
    client: str
    leased: int
    leases: list[LeaseRow]


class GroupPosition(msgspec.Struct):
    """`position`: every event before this offset is settled. Numbers of events: `leased` are with a member now,
    `redelivering` wait to be given to another, `dead` went to the dead-letter topic."""

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
    return sum(each["lag"] for each in group["partitions"])


@routes.get("/groups", needs=needs.group(Op.DESCRIBE), summary="Groups by name, a page at a time")
async def list_groups(call: Call, query: TopicsQuery) -> GroupPage:
    known = {each["group"]: each for each in await in_slices(call.access.each_group(Op.DESCRIBE))}
    names, total, after = page_of(list(known), query.filter, query.after, query.limit)
    found = [
        GroupSummary(name, known[name]["kind"], known[name]["order"], known[name]["topics"], _lag(known[name]))
        for name in names
    ]
    return GroupPage(found, total, after)


@routes.get(
    "/groups/{group}",
    needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE),
    summary="A group: members, leases, positions and lag",
)
async def describe_group(call: Call, group: str) -> GroupDescribed:
    access = call.access
    groups = access.group(group, Op.DESCRIBE)
    told = access.told(groups.describe(group))
    leases: dict[str, list[LeaseRow]] = {each["name"]: [] for each in told["members"]}
    for member, topic, partition, first, last, due in groups.held(group):
        if len(leases.get(member, ())) < MOST_LEASES and access.may(Resource.TOPIC, topic, Op.DESCRIBE):
            leases.setdefault(member, []).append(LeaseRow(topic, partition, first, last, due))
    return GroupDescribed(
        told["group"],
        told["kind"],
        told["order"],
        _lag(told),
        [MemberRow(each["name"], each["client"], each["leased"], leases[each["name"]]) for each in told["members"]],
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
    groups = call.access.group(group, Op.READ)
    if body.topic is not None:
        call.access.check(Resource.TOPIC, body.topic, Op.READ)
    else:
        call.access.check_topics({each[0] for each in groups.positions(group)}, Op.READ, "the group")
    moved = await groups.reset(group, body.topic, body.partitions, body.to, body.at, dry_run=body.dry_run)
    return GroupMoved(group, body.dry_run, [MovedRow(*each) for each in moved])


@routes.delete("/groups/{group}", needs=needs.group(Op.DELETE), summary="Delete a group: its positions")
async def delete_group(call: Call, group: str, query: DeleteQuery) -> Deleted:
    groups = call.access.group(group, Op.DELETE)
    groups.positions(group)  # raises UnknownGroup
    check_confirmed(group, query.confirm, "a group")
    await groups.delete(group)
    return Deleted(group)
