"""ConsumerRegistration, Poll, Seek and Offsets: reading a log from a position that the client's registration keeps.

Members of groups register and poll by the same messages; `groups` serves those.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Grant, Op, Resource
from krappy.errors import InvalidRequest, KrappyError, UnknownTopic
from krappy.handlers.handles import FOR_EACH_PARTITION, Reader
from krappy.handlers.native import groups
from krappy.handlers.native.starts import check_start
from krappy.handlers.native.table import chosen_partitions
from krappy.handlers.registry import serves
from krappy.handlers.waits import bounded_ms
from krappy.ports import MovingPort, PartitionPort, SessionPort
from krappy.types import Span, TopicPartition, text_id
from krappy.wire import messages

MAX_BYTES = 16 << 20  # of one answer; a single larger batch still comes whole


@serves(messages.ConsumerRegistration, needs=needs.topic(Op.READ, Op.WRITE, Op.CREATE) + needs.group(Op.READ))
async def register_consumer(
    session: SessionPort, request: messages.ConsumerRegistration
) -> messages.ConsumerRegistered:
    check_start(request.start, request.start_at)
    if not request.topics:
        raise InvalidRequest("a consumer names at least one topic", field="topics")
    topics = [session.access.topic(name, Op.READ) for name in request.topics]
    if request.group is not None:
        return await groups.register_member(session, request)
    partitions = {
        TopicPartition(topic.name, partition.index): partition
        for topic in topics
        for partition in chosen_partitions(topic, request.partitions)
    }
    for partition in partitions.values():
        if request.sure and not partition.is_sure:
            raise partition.unsure()
    ids = [(topic.name, text_id(topic.id)) for topic in topics]
    positions = {
        at: await partition.offset_for(request.start, request.start_at) for at, partition in partitions.items()
    }
    for name, index, offset in request.positions or ():
        at = TopicPartition(name, index)
        if at not in partitions:
            raise InvalidRequest(f"a position for {at}, which is not among the topics and partitions named")
        positions[at] = await partitions[at].offset_for("offset", offset)
    for name, index, epoch in request.epochs or ():
        at = TopicPartition(name, index)
        if at not in partitions:
            raise InvalidRequest(f"an epoch for {at}, which is not among the topics and partitions named")
        partitions[at].check_read(positions[at], epoch)
    return messages.ConsumerRegistered(
        handle=session.add(
            Reader(partitions, positions),
            [Grant(Resource.TOPIC, topic.name, Op.READ) for topic in topics],
            FOR_EACH_PARTITION * len(partitions),
        ),
        member=None,
        positions=[(at.topic, at.partition, offset) for at, offset in positions.items()],
        ends=[(at.topic, at.partition, partition.known_end()) for at, partition in partitions.items()],
        topic_ids=ids,
    )


@serves(messages.Poll, needs=needs.topic(Op.READ))
def poll(session: SessionPort, request: messages.Poll) -> messages.Polled | Coroutine[Any, Any, messages.Polled]:
    reader = session.registration(request.handle)
    if not isinstance(reader, Reader):
        return groups.poll(session, request)
    looked = False
    if session.ready:
        try:
            parts = _gather(reader, request, min(request.max_bytes, MAX_BYTES, session.read_bytes))
        except BlockingIOError:
            pass
        else:
            if parts or not request.max_wait:
                return messages.Polled(parts)
            looked = True
    return _poll_later(session, reader, request, looked)


async def _poll_later(session: SessionPort, reader: Reader, request: messages.Poll, looked: bool) -> messages.Polled:
    """`looked`: nothing was there just now."""
    seconds = bounded_ms(request.max_wait) / 1000
    parts = [] if looked else await _gather_from_disk(session, reader, request)
    if not parts and seconds:

        def ready() -> bool:
            return not _stands(session, reader, request) or any(
                partition.last_stable_offset > reader.positions[at] or partition.elsewhere is not None
                for at, partition in reader.partitions.items()
            )

        moving: list[MovingPort] = [*reader.partitions.values(), reader]
        await session.broker.wait_for_moves(moving, ready, seconds)
        if session.closed:  # so the reader is, too, but its client did not unregister it
            return messages.Polled([])
        _check_stands(session, reader, request)
        parts = await _gather_from_disk(session, reader, request)
    return messages.Polled(parts)


def _stands(session: SessionPort, reader: Reader, request: messages.Poll) -> bool:
    return session.revoked(request.handle) is None and not reader.closed


def _check_stands(session: SessionPort, reader: Reader, request: messages.Poll) -> None:
    """Raises AuthorizationFailed, UnknownHandle. A stop closes readers, too: then the poll brings no events."""
    if not _stands(session, reader, request) and not session.broker.stopped:
        raise groups.ended(session, request.handle)


Part = tuple[str, int, int, int, bytes]


def _gather(reader: Reader, request: messages.Poll, room: int) -> list[Part]:
    """Takes the events in memory, about `room` bytes at most, and moves the positions. The partitions take turns in
    being first.

    Raises BlockingIOError when it would have to wait for the disk, and a partition's KrappyError; but only while
    nothing was taken, because events of other partitions must not be lost. In that case the partition raises once it is
    its turn to be first.
    """
    parts: list[Part] = []
    records = request.max_records
    keys = list(reader.partitions)
    reader.rotation = (reader.rotation + 1) % len(keys) if keys else 0
    for at in keys[reader.rotation :] + keys[: reader.rotation]:
        partition, offset = reader.partitions[at], reader.positions[at]
        try:
            _check_here(partition)
            if partition.last_stable_offset <= offset:
                continue
            span = partition.read_now(offset, max(room, 1), max_records=records)
        except (BlockingIOError, KrappyError):
            if parts:
                break
            raise
        records -= _take(reader, at, partition, offset, span, parts)
        room -= len(span.data)
        if room <= 0 or records <= 0:
            break
    return parts


async def _gather_from_disk(session: SessionPort, reader: Reader, request: messages.Poll) -> list[Part]:
    most = min(request.max_bytes, MAX_BYTES, session.read_bytes)
    async with session.reading(most), session.answering(most) as room:
        _check_stands(session, reader, request)
        try:
            return _gather(reader, request, room)
        except BlockingIOError:
            pass
        parts: list[Part] = []
        for at, partition in reader.partitions.items():
            offset = reader.positions[at]
            if partition.last_stable_offset > offset:
                span = await partition.read(offset, max(room, 1), max_records=request.max_records)
                _check_stands(session, reader, request)
                if reader.positions[at] == offset:  # otherwise another poll of this handle took these events meanwhile
                    _take(reader, at, partition, offset, span, parts)
                break
        return parts


def _take(
    reader: Reader, at: TopicPartition, partition: PartitionPort, offset: int, span: Span, parts: list[Part]
) -> int:
    if not span.data:
        return 0
    parts.append((at.topic, at.partition, offset, partition.last_stable_offset, span.data))
    reader.positions[at] = span.next_offset
    reader.bytes += len(span.data)
    return span.records


def _check_here(partition: PartitionPort) -> None:
    if (elsewhere := partition.elsewhere) is not None:
        raise elsewhere


@serves(messages.Seek, needs=needs.topic(Op.READ))
async def seek(session: SessionPort, request: messages.Seek) -> messages.Sought:
    check_start(request.start, request.start_at)
    reader = session.find(request.handle, Reader)
    at = TopicPartition(request.topic, request.partition)
    if at not in reader.partitions:
        raise UnknownTopic(f"this consumer does not read {at}")
    _check_here(reader.partitions[at])
    offset = await reader.partitions[at].offset_for(request.start, request.start_at)
    reader.seek(at, offset)
    return messages.Sought(offset)


@serves(messages.Offsets, needs=needs.topic(Op.READ))
async def offsets(session: SessionPort, request: messages.Offsets) -> messages.OffsetsFound:
    check_start(request.start, request.start_at)
    topic = session.access.topic(request.topic, Op.READ)
    found = [(p.index, await p.offset_for(request.start, request.start_at)) for p in topic.all_led()]
    return messages.OffsetsFound(found)
