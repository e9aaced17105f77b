"""OpenSnapshot, ReadSnapshot, KeepSnapshot, CloseSnapshot, GetColumns and ReadLog: large reads of a table or a log, by
one reader or many."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from krappy import arrow_layout
from krappy.arrow_layout import binary
from krappy.core.security import needs
from krappy.core.security.operations import Grant, Op, Resource
from krappy.entries import columns as entry_columns
from krappy.entries.entry import pack_entry
from krappy.errors import InvalidRequest, OffsetOutOfRange, SnapshotGone, UnknownTopic
from krappy.handlers.native.consume import MAX_BYTES
from krappy.handlers.native.table import (
    MAX_ANSWER,
    MAX_PAGE_BYTES,
    SLICE,
    bounds_size,
    check_size,
    grants_of,
    look_up_spread,
    moved_since_now,
    partitions_of,
    ready_partitions,
    until_still,
    while_readable,
)
from krappy.handlers.registry import serves
from krappy.ports import PartitionPort, SessionPort, TopicPort
from krappy.types import Span, text_id
from krappy.wire import messages

ALL = ("key", "value", "offset", "timestamp", "headers")
MOST_KEYS = 100_000  # of one lookup
STRETCH = 1_000  # small entries looked up in one turn
ABSENT = pack_entry(0, -1, None)
ROW = 32  # bytes that a row adds to the size of an answer beside its key and entry


@serves(messages.OpenSnapshot, needs=needs.topic(Op.READ))
async def open_snapshot(session: SessionPort, request: messages.OpenSnapshot) -> messages.SnapshotOpened:
    broker = session.broker
    topic = _topic(session, request)
    count = topic.count if request.partitions is None else len(request.partitions)
    check_size(bounds_size(request) * count, session.answer_bytes, "ranges")
    with ExitStack() as unless_done:
        with session.standing_on(grants_of(topic)):
            partitions = await ready_partitions(session, topic, request)
            session.access.check(Resource.TOPIC, topic.name, Op.READ)  # the ACLs may have changed meanwhile
            snapshot = broker.open_snapshot(
                partitions,
                *(request.prefix, request.start, request.end),
                request.ttl_ms,
                tombstones=request.tombstones,
                whole=len(partitions) == topic.count,
            )
            snapshot.owner = str(session.principal)
            snapshots = session.access.snapshots(snapshot.id, Op.READ)
            unless_done.callback(snapshots.close, snapshot.id)  # for example: the client has left
            with snapshots.reading(snapshot.id):
                size = None if request.measure is None else await snapshot.measure(request.measure)
                ranges = await snapshot.ranges(request.splits)
            check_size(sum(len(bound or b"") for each in ranges for bound in each[1:]), session.answer_bytes, "ranges")
        unless_done.pop_all()
    return messages.SnapshotOpened(snapshot.id, snapshot.offsets, ranges, size)


@serves(messages.ReadSnapshot, needs=needs.topic(Op.READ))
async def read_snapshot(session: SessionPort, request: messages.ReadSnapshot) -> messages.SnapshotRead:
    wanted = frozenset(ALL if request.columns is None else request.columns)
    heads_only = not wanted & {"value", "headers"}
    keys: list[bytes] = []
    entries: list[bytes] = []
    following = request.start
    with session.access.snapshots(request.snapshot, Op.READ).reading(request.snapshot) as snapshot:
        tombstones = snapshot.tombstones if request.tombstones is None else request.tombstones
        most = min(request.max_bytes, MAX_PAGE_BYTES, session.read_bytes)
        with session.standing_on([Grant(Resource.TOPIC, snapshot.topic, Op.READ)]):
            async with session.reading(most), session.answering(most) as room:
                while True:
                    rows = snapshot.rows(request.partition, following, request.end, max(room, 1), tombstones=tombstones)
                    following = rows.following
                    some = [entry[: entry_columns.END] for entry in rows.entries] if heads_only else rows.entries
                    keys += rows.keys
                    entries += some
                    room -= sum(map(len, rows.keys)) + sum(map(len, some)) + ROW * len(some)
                    if following is None or room <= 0:
                        break
                    await session.pause()
                values, offsets, timestamps, headers = entry_columns.columns(entries, wanted)
                return messages.SnapshotRead(
                    next=following,
                    rows=len(keys),
                    keys=binary(keys) if "key" in wanted else None,
                    values=values,
                    offsets=offsets,
                    timestamps=timestamps,
                    headers=headers,
                )


@serves(messages.KeepSnapshot, needs=needs.cluster(Op.ALTER))
async def keep_snapshot(session: SessionPort, request: messages.KeepSnapshot) -> messages.SnapshotKept:
    session.access.snapshots(request.snapshot, Op.ALTER).keep(request.snapshot, request.ttl_ms)
    return messages.SnapshotKept()


@serves(messages.CloseSnapshot, needs=needs.cluster(Op.ALTER))
async def close_snapshot(session: SessionPort, request: messages.CloseSnapshot) -> messages.SnapshotClosed:
    with suppress(SnapshotGone):
        session.access.snapshots(request.snapshot, Op.ALTER).close(request.snapshot)
    return messages.SnapshotClosed()


@serves(messages.GetColumns, needs=needs.topic(Op.READ))
async def get_columns(session: SessionPort, request: messages.GetColumns) -> messages.ColumnsGot:
    topic = session.access.topic(request.topic, Op.READ)
    once = partial(_get_columns_once, session, topic, request)
    return await while_readable(session, topic, lambda: until_still(once))


async def _get_columns_once(
    session: SessionPort, topic: TopicPort, request: messages.GetColumns
) -> messages.ColumnsGot | None:
    """None: partitions were added meanwhile, or the first stray was written."""
    moved = moved_since_now(topic)
    wanted = frozenset(ALL if request.columns is None else request.columns)
    heads_only = not wanted & {"value", "headers"}
    only = 0 if topic.count == 1 else request.partition
    partitions = [topic.led(only)] if only is not None else await partitions_of(session, topic, lambda: _keys(request))
    views = await session.broker.wait_for_views(partitions)
    pause = views.after(session.pause)
    where: list[int] = []
    entries: list[bytes | None] = []
    size, step = 0, SLICE
    async with session.reading(MAX_ANSWER), session.answering(MAX_ANSWER) as room:
        check_size(len(request.offsets), room)  # the answer's own offsets take as much
        keys = _keys(request)  # only now: a list of keys takes much more memory than the column they come in
        await views.wait()
        while len(entries) < len(keys):
            if moved() and only is None:
                return None
            some = keys[len(entries) : len(entries) + step]
            at, found = await look_up_spread(topic, some, only, pause, topic.led)
            where += at
            if heads_only:
                found = [entry and entry[: entry_columns.END] for entry in found]
            entries += found
            size += sum([len(entry) + ROW for entry in found if entry is not None])
            check_size(size, room)
            step = max(SLICE, min(STRETCH, (STRETCH * ROW * len(entries)) // (size + 1)))
            await pause()
        there = [ABSENT if entry is None else entry for entry in entries]
        values, offsets, timestamps, headers = entry_columns.columns(there, wanted)
        return messages.ColumnsGot(
            rows=len(keys),
            found=arrow_layout.bitmap(entries) if None in entries else None,
            partitions=arrow_layout.int32s(where) if only is None else None,
            values=values,
            offsets=offsets,
            timestamps=timestamps,
            headers=headers,
        )


def _keys(request: messages.GetColumns) -> list[bytes]:
    try:
        keys = arrow_layout.parts(request.offsets, request.keys)
    except ValueError as error:
        raise InvalidRequest(f"`offsets` and `keys` are not a column: {error}", field="offsets") from None
    if len(keys) > MOST_KEYS:
        raise InvalidRequest(f"{len(keys)} keys; at most {MOST_KEYS} may be asked for at once", field="keys")
    return keys


@serves(messages.ReadLog, needs=needs.topic(Op.READ))
def read_log(
    session: SessionPort, request: messages.ReadLog
) -> messages.LogRead | Coroutine[Any, Any, messages.LogRead]:
    topic = _topic(session, request)
    partition = topic.led(request.partition)
    _check_range(partition, request)
    if session.ready:
        room = min(request.max_bytes, MAX_BYTES, session.read_bytes)
        try:
            return _log_read(request, partition.read_now(request.offset, room, limit=request.end))
        except BlockingIOError:
            pass
    return while_readable(session, topic, lambda: _read_log_later(session, partition, request))


async def _read_log_later(
    session: SessionPort, partition: PartitionPort, request: messages.ReadLog
) -> messages.LogRead:
    most = min(request.max_bytes, MAX_BYTES, session.read_bytes)
    async with session.reading(most), session.answering(most) as room:
        return _log_read(request, await partition.read(request.offset, max(room, 1), limit=request.end))


def _log_read(request: messages.ReadLog, span: Span) -> messages.LogRead:
    return messages.LogRead(span.next_offset if span.data else request.end, span.data)


def _topic(session: SessionPort, request: messages.OpenSnapshot | messages.ReadLog) -> TopicPort:
    """The topic of that name. Raises UnknownTopic when there is none, or when the request gives another topic's id."""
    if request.topic_id is None:
        return session.access.topic(request.topic, Op.READ)
    found = session.access.find_topic(request.topic, Op.READ)
    if found is None or request.topic_id != text_id(found.id):
        since = "" if found is None else "; another one of that name was made since"
        raise UnknownTopic(
            f"the topic '{request.topic}' with the id {request.topic_id:.40} was deleted{since}", topic=request.topic
        )
    return found


def _check_range(partition: PartitionPort, request: messages.ReadLog) -> None:
    """Raises OffsetOutOfRange unless all offsets asked for can be read: a shorter answer would look complete."""
    if partition.gone is not None:
        raise partition.gone
    if request.offset > request.end:
        raise InvalidRequest(f"offset {request.offset} is beyond the end asked for, {request.end}", field="offset")
    start, end = partition.start_offset, partition.last_stable_offset
    if request.end > end and not partition.is_sure:
        raise partition.unsure()  # a new leader does not know yet how far the one before it has committed
    if request.offset < start or request.end > end:
        raise OffsetOutOfRange(
            f"{request.topic}-{request.partition}: offsets {request.offset} to {request.end} were asked for, {start} "
            f"to {end} can be read",
            start=start,
            end=end,
            topic=request.topic,
            partition=request.partition,
        )
