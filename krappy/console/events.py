"""The events of a topic: pages of them, a single one, and publishing."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from krappy.console import cursors
from krappy.console.api import MAX_EVENT, Call, Routes
from krappy.console.elsewhere import EventSource, sources
from krappy.console.problems import HttpError
from krappy.console.reading import Seen, Stretch, backward, forward, merge, merge_back
from krappy.console.shown import WHOLE, Given, HeaderRow, Shown, ShownAs, Viewer, bytes_of
from krappy.console.slices import in_slices
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import InvalidRequest, NotLeader, RequestTimeout
from krappy.partitioner import home_of
from krappy.ports import TopicPort
from krappy.types import ABSENT, Record

routes = Routes("events")
MAX_PAGE = 2 << 20  # bytes of the events of one page, as they are stored
NARROW = 16  # with more partitions, pages are read one at a time: each partition's next event is held, however large
_turns = itertools.count()

Partition = Annotated[int, Meta(ge=0, lt=2**31)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Limit = Annotated[int, Meta(ge=1, le=1000, description="at most this many events")]
ValueBytes = Annotated[int, Meta(ge=0, le=WHOLE, description="keys, values and headers are cut to this many bytes")]


class EventShown(msgspec.Struct):
    """One event. `tombstone`: it has a key and no value, and deletes that key from the table."""

    partition: int
    offset: int
    timestamp: Annotated[int, Meta(description="ms since the epoch; -1: the producer gave none")]
    key: Shown | None
    value: Shown | None
    tombstone: bool
    headers: list[HeaderRow]


class EventPage(msgspec.Struct):
    """Events in the order of time, those of each partition in the order of offsets.

    `after`: cursor of the next page, now or once there are more events; `before`: of the page before, null at the
    beginning of the log. `at_end`: no events followed when this page was read.
    """

    events: list[EventShown]
    before: str | None
    after: str
    at_end: bool


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    start: Annotated[
        Literal["earliest", "latest", "offset", "timestamp"],
        Meta(description="which page: the first, the last, or the one that begins at `at`"),
    ] = "latest"
    at: Annotated[Offset | None, Meta(description="for start=offset and start=timestamp (ms since the epoch)")] = None
    partition: Annotated[list[Partition], Meta(description="only these partitions; default: all")] = []
    before: Annotated[str | None, Meta(description="cursor; instead of start")] = None
    after: Annotated[str | None, Meta(description="cursor; instead of start")] = None
    limit: Limit = 100
    keys: ShownAs = "auto"
    values: ShownAs = "auto"
    value_bytes: ValueBytes = 65536


class EventQuery(msgspec.Struct, forbid_unknown_fields=True):
    keys: ShownAs = "auto"
    values: ShownAs = "auto"


class NewEvent(msgspec.Struct, forbid_unknown_fields=True):
    """An event to publish. A key or value that is a string is UTF-8."""

    key: Given | str | None = None
    value: Given | str | None = None
    tombstone: Annotated[bool, Meta(description="deletes the key: give a key and no value")] = False
    headers: Annotated[list[tuple[str, Given | str | None]], Meta(max_length=1000)] = []
    partition: Annotated[Partition | None, Meta(description="default: by the key's hash, or in turn")] = None
    timestamp: Annotated[Offset | None, Meta(description="ms since the epoch; default: now")] = None
    expect: Annotated[
        Offset | Literal["absent"] | None,
        Meta(description="publish only if the key's latest event is at this offset, or the key has no value (absent)"),
    ] = None


class PublishedRow(msgspec.Struct):
    """Where the event is stored. It is on disk."""

    topic: str
    partition: int
    offset: int
    timestamp: int


def show(event: Seen, viewer: Viewer) -> EventShown:
    """An event as the API shows it."""
    return EventShown(
        event.partition,
        event.offset,
        event.timestamp,
        viewer.key(event.key),
        viewer.value(event.value),
        event.value is None and event.key is not None,
        viewer.headers(event.headers),
    )


@routes.get(
    "/topics/{topic}/events",
    needs=needs.topic(Op.READ),
    summary="A page of events, from an offset, a time, or an end of the log",
)
async def list_events(call: Call, topic: str, query: EventsQuery) -> EventPage:
    found = call.access.topic(topic, Op.READ)
    partitions = await sources(call, found, query.partition)
    async with call.console.wide.one(call.who) if len(partitions) > NARROW else nullcontext():
        return await _list_page(call, found, partitions, query)


async def _list_page(call: Call, topic: TopicPort, partitions: list[EventSource], query: EventsQuery) -> EventPage:
    viewer = call.viewer(query.keys, query.values, query.value_bytes)
    if query.before is not None and query.after is not None:
        raise InvalidRequest("either before or after, not both", field="before")
    if query.before is not None:
        return await _page_back(call, partitions, _positions(query.before, topic, partitions), query.limit, viewer)
    if query.after is not None:
        return await _page_on(call, partitions, _positions(query.after, topic, partitions), query.limit, viewer)
    if query.start == "latest":
        ends = {partition.index: partition.last_stable_offset for partition in partitions}
        return await _page_back(call, partitions, ends, query.limit, viewer)
    if query.start in ("offset", "timestamp") and query.at is None:
        raise InvalidRequest(f"start={query.start} needs `at`", field="at")
    if query.start == "offset" and query.at is not None and len(partitions) > 1:
        starts = {partition.index: query.at for partition in partitions}
    else:
        starts = {partition.index: await partition.offset_for(query.start, query.at) for partition in partitions}
    return await _page_on(call, partitions, starts, query.limit, viewer)


def _positions(cursor: str, topic: TopicPort, partitions: list[EventSource]) -> dict[int, int]:
    """The offsets of a cursor; 0 for partitions that were added since it was made."""
    held = cursors.read_offsets(cursor, topic)
    return {partition.index: held.get(partition.index, 0) for partition in partitions}


async def _page_on(
    call: Call, partitions: list[EventSource], positions: dict[int, int], limit: int, viewer: Viewer
) -> EventPage:
    stretches: list[Stretch] = []
    for partition in partitions:
        at = min(max(positions[partition.index], partition.start_offset), partition.last_stable_offset)
        positions[partition.index] = at
        stretches.append(await forward(partition, at, limit, MAX_PAGE // len(partitions)))
        await call.pause()
    indexes = [partition.index for partition in partitions]
    ends = {partition.index: partition.last_stable_offset for partition in partitions}
    merged = merge(stretches, ends, indexes, limit, MAX_PAGE)
    following = _following(merged, stretches, indexes, positions)
    return await _page(merged, partitions, positions, following, viewer)


async def _page_back(
    call: Call, partitions: list[EventSource], positions: dict[int, int], limit: int, viewer: Viewer
) -> EventPage:
    stretches: list[Stretch] = []
    for partition in partitions:
        positions[partition.index] = min(positions[partition.index], partition.last_stable_offset)
        stretches.append(await backward(partition, positions[partition.index], limit, MAX_PAGE // len(partitions)))
        await call.pause()
    indexes = [partition.index for partition in partitions]
    starts = {partition.index: partition.start_offset for partition in partitions}
    merged = merge_back(stretches, starts, indexes, limit, MAX_PAGE)
    earlier = dict(positions)
    first: dict[int, int] = {}
    for event in merged:
        first.setdefault(event.partition, event.offset)
    for index, stretch in zip(indexes, stretches, strict=True):
        whole = not stretch.events or stretch.events[0].offset == first.get(index)
        earlier[index] = stretch.start if whole else first.get(index, positions[index])
    return await _page(merged, partitions, earlier, positions, viewer)


def _following(
    merged: list[Seen], stretches: list[Stretch], indexes: list[int], positions: dict[int, int]
) -> dict[int, int]:
    last = {event.partition: event.offset for event in merged}
    following = dict(positions)
    for index, stretch in zip(indexes, stretches, strict=True):
        whole = not stretch.events or stretch.events[-1].offset == last.get(index)
        following[index] = stretch.end if whole else last.get(index, positions[index] - 1) + 1
    return following


async def _page(
    merged: list[Seen],
    partitions: list[EventSource],
    before: dict[int, int],
    after: dict[int, int],
    viewer: Viewer,
) -> EventPage:
    begun = any(before[partition.index] > partition.start_offset for partition in partitions)
    return EventPage(
        await in_slices(show(event, viewer) for event in merged),
        cursors.write(before) if begun else None,
        cursors.write(after),
        all(after[partition.index] >= partition.last_stable_offset for partition in partitions),
    )


@routes.get(
    "/topics/{topic}/partitions/{partition}/events/{offset}", needs=needs.topic(Op.READ), summary="One event, whole"
)
async def get_event(call: Call, topic: str, partition: Partition, offset: Offset, query: EventQuery) -> EventShown:
    [found] = await sources(call, call.access.topic(topic, Op.READ), [partition])
    await found.offset_for("offset", offset)  # raises OffsetOutOfRange
    stretch = await forward(found, offset, 1, 1)
    if not stretch.events or stretch.events[0].offset != offset:
        raise HttpError(404, "NO_SUCH_EVENT", f"there is no event at offset {offset} of {topic}-{partition} (any more)")
    return show(stretch.events[0], call.viewer(query.keys, query.values))


@routes.post(
    "/topics/{topic}/events",
    needs=needs.topic(Op.WRITE),
    summary="Publish one event",
    status=201,
    max_body=MAX_EVENT,
    large=("key", "value"),
)
async def publish(call: Call, topic: str, body: NewEvent) -> PublishedRow:
    found = call.access.topic(topic, Op.WRITE)
    key = bytes_of(body.key, "key", packed=call.packed)
    await call.pause()
    value = bytes_of(body.value, "value", packed=call.packed)
    await call.pause()
    if body.tombstone and (key is None or value is not None):
        raise InvalidRequest("a tombstone has a key and no value", field="tombstone")
    if value is None and not body.tombstone:
        raise InvalidRequest("an event without a value is a tombstone: give `tombstone`, or a value", field="value")
    headers = tuple((name, bytes_of(given, "headers", packed=call.packed)) for name, given in body.headers)
    count = found.count
    if body.partition is not None:
        index = body.partition
    elif key is not None:
        index = home_of(key, count)
    else:
        index = next(_turns) % count
    expect = ABSENT if body.expect == "absent" else body.expect
    if expect is not None and key is None:
        raise InvalidRequest("`expect` needs a key", field="expect")
    record = Record(value, key, headers, body.timestamp)
    try:
        later = found.led(index).publish_record(record, expect)
    except NotLeader:
        if call.gateway is None:
            raise
        receipt = await call.gateway.publish(found.name, index, record, expect)
        return PublishedRow(found.name, index, receipt.offset, receipt.timestamp)
    try:
        stored = await later.wait()
    except NotLeader as error:
        text = f"{error.text}: it was written when another broker took the lead, and may have been lost"
        raise RequestTimeout(text) from error
    return PublishedRow(found.name, index, stored.offset, stored.timestamp)
