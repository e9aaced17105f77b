"""Topics: list, describe, create, alter, delete; and deleting old events."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.changes_elsewhere import delete_elsewhere
from krappy.console.elsewhere import led_here
from krappy.console.problems import HttpError
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import NotLeader
from krappy.ports import PartitionPort, PartitionTold, TopicPort

routes = Routes("topics")

MOST_SETTINGS = 1000  # settings that a request may name
MOST_PARTITIONS = 20_000  # partitions that a request may name, as in the native protocol
AT_ONCE = 500  # partitions that are looked up in one turn
LONGEST = 32_767  # characters of a name or a setting, as in Kafka's protocol

Name = Annotated[str, Meta(max_length=LONGEST)]
Confirm = Annotated[str, Meta(max_length=LONGEST, description="the name of what is deleted, repeated")]
Setting = Name | int | float | bool


class TopicSummary(msgspec.Struct):
    """A topic in a list. `view_lag`: events that its table does not include yet. Sizes in bytes."""

    name: str
    partitions: int
    events: Annotated[int, Meta(description="offsets from the start of the log to its end; gaps count, too")]
    size: int
    segments: int
    view: bool
    view_lag: int
    cleanup_policy: str


class TopicPage(msgspec.Struct):
    """`total`: how many topics pass the filter. `after`: give it to get the next page; null at the end."""

    topics: list[TopicSummary]
    total: int
    after: str | None


class PartitionDescribed(msgspec.Struct):
    """`start`: the log start. `stable`: the last stable offset, before which events can be read. `applied`: the table
    includes every event before it. `error`: why it takes no more events, or is out of service."""

    partition: int
    start: int
    stable: int
    high_watermark: int
    applied: int
    size: int
    segments: int
    view_error: str | None
    error: str | None


class TopicDescribed(msgspec.Struct):
    """`config`: the settings that were set for the topic; `settings`: all that are in force. `partitions_after`: give
    it as `after` to get the next partitions; null at the end."""

    name: str
    id: str
    config: dict[str, str]
    settings: dict[str, str]
    summary: TopicSummary
    partitions: list[PartitionDescribed]
    partitions_after: int | None


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=1000)]
    partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    config: Annotated[dict[Name, Setting], Meta(max_length=MOST_SETTINGS)] = {}


class TopicChange(msgspec.Struct, forbid_unknown_fields=True):
    """A setting of null goes back to its default. Partitions can be added, not removed."""

    config: Annotated[dict[Name, Setting | None], Meta(max_length=MOST_SETTINGS)] = {}
    partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None


PartitionText = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,8})$", max_length=9)]


class DeletedRecords(msgspec.Struct, forbid_unknown_fields=True):
    """`before`: by partition, the offset before which events are deleted; -1: all events."""

    confirm: Confirm
    before: Annotated[dict[PartitionText, Annotated[int, Meta(ge=-1, le=2**63 - 1)]], Meta(max_length=MOST_PARTITIONS)]


class DeletedRow(msgspec.Struct):
    """`start`: by partition, where the log starts now."""

    start: dict[str, int]


class Deleted(msgspec.Struct):
    deleted: str


class TopicsQuery(msgspec.Struct, forbid_unknown_fields=True):
    filter: Annotated[str, Meta(description="only names that contain this, in upper or lower case")] = ""
    after: Annotated[str, Meta(description="only names after this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class PartitionsQuery(msgspec.Struct, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=-1, lt=2**31, description="only partitions after this one")] = -1
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DeleteQuery(msgspec.Struct, forbid_unknown_fields=True):
    confirm: Confirm


def check_confirmed(name: str, confirm: str, what: str) -> None:
    """Raises HttpError unless the name was repeated."""
    if confirm != name:
        raise HttpError(
            400, "NOT_CONFIRMED", f"deleting {what} can't be undone: repeat the name '{name:.249}' as `confirm`"
        )


Told = Sequence[PartitionTold]


async def elsewhere(call: Call, topics: Sequence[TopicPort]) -> Mapping[str, Told]:
    """What the leaders tell of partitions, by topic, for those topics of which some partitions are not on this broker.
    (Its own replicas may be a moment behind their leaders.)"""
    names = [topic.name for topic in topics if len(topic.local) < topic.count]
    return {} if call.gateway is None or not names else await call.gateway.describe(names)


def row_of(partition: PartitionPort) -> PartitionDescribed:
    return PartitionDescribed(
        partition.index,
        partition.start_offset,
        partition.last_stable_offset,
        partition.high_watermark,
        partition.applied,
        partition.size,
        partition.segments,
        None if partition.view_failed is None else str(partition.view_failed),
        partition.spoiled or partition.log_failed or None,
    )


def row_told(told: PartitionTold) -> PartitionDescribed:
    """The row of a partition that this broker may not have."""
    error = told.failed or ("its leader can't be reached now" if told.start < 0 else None)
    start, stable, high_watermark, applied = (
        max(0, each) for each in (told.start, told.last_stable_offset, told.high_watermark, told.applied)
    )
    return PartitionDescribed(
        *(told.partition, start, stable, high_watermark, applied, told.size, told.segments, told.view_failed, error)
    )


def rows_of(topic: TopicPort, told: Told, after: int = -1, limit: int | None = None) -> list[PartitionDescribed]:
    """The partitions, by index. `told`: what the leaders tell, if some are not here; without it those are left out."""
    if told:
        return [row_told(each) for each in told if each.partition > after][:limit]
    return [row_of(topic.local[index]) for index in sorted(topic.local) if index > after][:limit]


def summary_of(topic: TopicPort, told: Told = ()) -> TopicSummary:
    """A topic in a list, with the sums over its partitions."""
    partitions = rows_of(topic, told)
    view = bool(topic.config.view)
    return TopicSummary(
        topic.name,
        topic.count,
        sum(partition.high_watermark - partition.start for partition in partitions),
        sum(partition.size for partition in partitions),
        sum(partition.segments for partition in partitions),
        view,
        sum(max(0, partition.stable - partition.applied) for partition in partitions) if view else 0,
        ",".join(name for name in ("compact", "delete") if getattr(topic.config, name)),
    )


def page_of(names: list[str], contains: str, after: str, limit: int) -> tuple[list[str], int, str | None]:
    """(one page of the sorted names, how many names contain `contains`, `after` of the next page or None)."""
    wanted = contains.casefold()
    passed = sorted(name for name in names if wanted in name.casefold()) if wanted else sorted(names)
    start = bisect_right(passed, after) if after else 0
    page = passed[start : start + limit]
    return page, len(passed), page[-1] if start + limit < len(passed) else None


@routes.get("/topics", needs=needs.topic(Op.DESCRIBE), summary="Topics by name, a page at a time")
async def list_topics(call: Call, query: TopicsQuery) -> TopicPage:
    shown = [name for name, topic in call.access.topics(Op.DESCRIBE).items() if not topic.internal]
    names, total, after = page_of(shown, query.filter, query.after, query.limit)
    there = [topic for name in names if (topic := call.access.find_topic(name, Op.DESCRIBE)) is not None]
    told = await elsewhere(call, there)
    found = []
    for topic in there:
        found.append(summary_of(topic, told.get(topic.name, ())))
        await call.pause()
    return TopicPage(found, total, after)


@routes.post("/topics", needs=needs.topic(Op.CREATE, Op.DESCRIBE_CONFIGS), summary="Create a topic", status=201)
async def create_topic(call: Call, body: NewTopic) -> TopicDescribed:
    partitions = body.partitions or call.broker.config.default_partitions
    topic, _ = await call.access.create_topic(body.name, partitions, body.config)
    return await _describe(call, topic, PartitionsQuery())


@routes.get(
    "/topics/{topic}",
    needs=needs.topic(Op.DESCRIBE, Op.DESCRIBE_CONFIGS),
    summary="A topic with its settings and partitions",
)
async def describe_topic(call: Call, topic: str, query: PartitionsQuery) -> TopicDescribed:
    return await _describe(call, call.access.topic(topic, Op.DESCRIBE), query)


async def _describe(call: Call, topic: TopicPort, query: PartitionsQuery) -> TopicDescribed:
    set_for_it = topic.describe_settings()
    told: Told = ()
    if call.gateway is not None and led_here(topic, range(topic.count)) is None:
        told = (await call.gateway.describe([topic.name])).get(topic.name, ())
    rows = rows_of(topic, told, query.after, query.limit)
    more = rows and rows[-1].partition < max((each.partition for each in told), default=max(topic.local, default=-1))
    following = rows[-1].partition if more else None
    id, config, settings = (set_for_it[name] for name in ("id", "config", "settings"))
    if not call.access.may(Resource.TOPIC, topic.name, Op.DESCRIBE_CONFIGS):
        config, settings = {}, {}
    return TopicDescribed(topic.name, id, config, settings, summary_of(topic, told), rows, following)


@routes.patch(
    "/topics/{topic}",
    needs=needs.topic(Op.ALTER, Op.ALTER_CONFIGS, Op.DESCRIBE, Op.DESCRIBE_CONFIGS),
    summary="Change a topic's settings, add partitions",
)
async def alter_topic(call: Call, topic: str, body: TopicChange) -> TopicDescribed:
    await call.access.alter_topic(topic, body.config, body.partitions)
    return await _describe(call, call.access.topic(topic, Op.DESCRIBE), PartitionsQuery())


@routes.delete("/topics/{topic}", needs=needs.topic(Op.DELETE), summary="Delete a topic with its events and its table")
async def delete_topic(call: Call, topic: str, query: DeleteQuery) -> Deleted:
    await call.access.topic_to_change(topic, Op.DELETE)
    call.access.topic(topic, Op.DELETE)
    check_confirmed(topic, query.confirm, "a topic")
    await call.access.delete_topic(topic)
    return Deleted(topic)


@routes.post(
    "/topics/{topic}/delete-records", needs=needs.topic(Op.DELETE), summary="Delete the oldest events of a topic"
)
async def delete_records(call: Call, topic: str, body: DeletedRecords) -> DeletedRow:
    found = call.access.topic(topic, Op.DELETE)
    check_confirmed(topic, body.confirm, "events")
    wanted = []
    away: dict[int, int] = {}
    for number, (text, before) in enumerate(body.before.items(), 1):
        try:
            wanted.append((found.led(int(text)), before))
        except NotLeader:
            if call.gateway is None:
                raise
            away[int(text)] = before
        if number % AT_ONCE == 0:
            await call.pause()
    for partition, before in wanted:  # checked first, so that an invalid offset deletes nothing here
        partition.check_deletable(before)
    start = {}
    if away and call.gateway is not None:
        starts = await delete_elsewhere(call, call.gateway, topic, away)
        start = {str(index): offset for index, offset in starts.items()}
    for partition, before in wanted:
        start[str(partition.index)] = await call.access.delete_records(partition, before)
    for partition, _ in wanted:
        await partition.deleted_everywhere(start[str(partition.index)])
    return DeletedRow(start)
