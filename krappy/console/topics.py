"""Topics: list, describe, create, alter, delete; and deleting old events."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.problems import HttpError
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.ports import TopicPort

routes = Routes("topics")

MOST_SETTINGS = 1000  # that a request may name
MOST_PARTITIONS = 20_000  # that a request may name, as natively
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
    """By partition, where the log starts now."""

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


def summary_of(topic: TopicPort) -> TopicSummary:
    """A topic in a list, with the sums over its partitions."""
    partitions = topic.local.values()
    view = bool(topic.config.view)
    return TopicSummary(
        topic.name,
        topic.count,
        sum(partition.high_watermark - partition.start_offset for partition in partitions),
        sum(partition.size for partition in partitions),
        sum(partition.segments for partition in partitions),
        view,
        sum(max(0, partition.last_stable_offset - partition.applied) for partition in partitions) if view else 0,
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
    found = []
    for name in names:
        topic = call.access.find_topic(name, Op.DESCRIBE)
        if topic is not None:  # it may be deleted while others are described
            found.append(summary_of(topic))
        await call.pause()
    return TopicPage(found, total, after)


@routes.post("/topics", needs=needs.topic(Op.CREATE), summary="Create a topic", status=201)
async def create_topic(call: Call, body: NewTopic) -> TopicDescribed:
    partitions = body.partitions or call.broker.config.default_partitions
    topic, _ = await call.access.create_topic(body.name, partitions, body.config)
    return _describe(topic, PartitionsQuery())


@routes.get("/topics/{topic}", needs=needs.topic(Op.DESCRIBE), summary="A topic with its settings and partitions")
async def describe_topic(call: Call, topic: str, query: PartitionsQuery) -> TopicDescribed:
    return _describe(call.access.topic(topic, Op.DESCRIBE), query)


def _describe(topic: TopicPort, query: PartitionsQuery) -> TopicDescribed:
    told = topic.describe_settings()
    page = [topic.local[index] for index in sorted(topic.local) if index > query.after][: query.limit]
    rows = [
        PartitionDescribed(
            each.index,
            each.start_offset,
            each.last_stable_offset,
            each.high_watermark,
            each.applied,
            each.size,
            each.segments,
            None if each.view_failed is None else str(each.view_failed),
            each.offline or each.log_failed or None,
        )
        for each in page
    ]
    more = rows and rows[-1].partition < max(topic.local)
    following = rows[-1].partition if more else None
    return TopicDescribed(topic.name, told["id"], told["config"], told["settings"], summary_of(topic), rows, following)


@routes.patch(
    "/topics/{topic}",
    needs=needs.topic(Op.ALTER, Op.ALTER_CONFIGS, Op.DESCRIBE),
    summary="Change a topic's settings, add partitions",
)
async def alter_topic(call: Call, topic: str, body: TopicChange) -> TopicDescribed:
    await call.access.alter_topic(topic, body.config, body.partitions)
    return _describe(call.access.topic(topic, Op.DESCRIBE), PartitionsQuery())


@routes.delete("/topics/{topic}", needs=needs.topic(Op.DELETE), summary="Delete a topic with its events and its table")
async def delete_topic(call: Call, topic: str, query: DeleteQuery) -> Deleted:
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
    for text, before in body.before.items():
        wanted.append((found.led(int(text)), before))
        if len(wanted) % AT_ONCE == 0:
            await call.pause()
    for partition, before in wanted:  # checked first, so that an invalid offset deletes nothing anywhere
        partition.check_deletable(before)
    start = {}
    for partition, before in wanted:
        start[str(partition.index)] = await partition.delete_records(before)
    for partition, _ in wanted:
        await partition.deleted_everywhere(start[str(partition.index)])
    return DeletedRow(start)
