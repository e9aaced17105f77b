"""Get, MultiGet, Scan, Watch and History: a topic as a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from krappy.core.security import needs
from krappy.core.security.operations import Grant, Op, Resource
from krappy.errors import (
    InvalidRequest,
    KrappyError,
    NotLeader,
    Overloaded,
    RecordTooLarge,
    ShuttingDown,
    UnknownHandle,
)
from krappy.handlers.handles import FOR_EACH_PARTITION, ScanCursor
from krappy.handlers.registry import serves
from krappy.partitioner import check_length, home_of
from krappy.ports import PartitionPort, SessionPort, StreamPort, TopicPort
from krappy.types import text_id
from krappy.wire import messages

NIL = b"\xc0"
NOWHERE = -1  # in place of a partition: none
SLICE = 8  # keys looked up at once, unless their entries are large
QUICK = 80 * SLICE  # keys looked up in one turn
LARGE = 1 << 20  # bytes of entries that are looked up before their size is checked
HASHING = 8  # hashing a byte of a key takes as long as so many bytes of an entry
VALUE = 1 << 20  # bytes that an event has at most, unless its topic allows more
MAX_PAGE_BYTES = 8 << 20
MAX_ANSWER = 16 << 20  # bytes of entries in one answer

A = TypeVar("A", bound=messages.Answer)
Pause = Callable[[], Awaitable[None]]


@serves(messages.Get, needs=needs.topic(Op.READ))
def get(session: SessionPort, request: messages.Get) -> messages.Got | Coroutine[Any, Any, messages.Got]:
    topic = session.access.topic(request.topic, Op.READ)
    if request.among is not None:
        check_among(topic, request.among)
    index = request.partition
    if index is None:
        if topic.count == 1:
            index = 0
        elif topic.scattered:
            check_length(request.key, topic.count)
            return while_readable(session, topic, lambda: _get_newest(session, topic, request))
        else:
            index = home_of(request.key, topic.count)
    least = request.min_offset
    partition = topic.led(index) if least is None else topic.replica(index)
    if (least is not None or partition.is_sure) and partition.view_ready(least):
        return messages.Got(partition.index, [partition.look_up(request.key) or NIL])
    moved = moved_since_now(topic)
    return while_readable(session, topic, lambda: _get_later(session, topic, partition, request, moved))


async def while_readable(session: SessionPort, topic: TopicPort, work: Callable[[], Awaitable[A]]) -> A:
    """What `work` gives, which may wait. Raises AuthorizationFailed once the topic may not be read any more."""
    with session.standing_on(grants_of(topic)):
        return await work()


def check_among(topic: TopicPort, among: int | None) -> None:
    """Raises NotLeader for a client that knows another number of the topic's partitions (PROTOCOL.md)."""
    if among not in (None, topic.count):
        text = f"'{topic.name}' has {topic.count} partitions, and not {among}"
        raise NotLeader(text, topic=topic.name, partition=NOWHERE, partitions=topic.count)


def moved_since_now(topic: TopicPort) -> Callable[[], bool]:
    """A function that tells whether a key may stand in other partitions than those where it is looked for now. To be
    asked after a wait for views: only during that wait this broker may learn of partitions that were added."""
    count, scattered = topic.count, topic.scattered
    return lambda: topic.count != count or (topic.scattered and not scattered)


async def _get_again(session: SessionPort, request: messages.Get) -> messages.Got:
    again = get(session, request)
    return again if isinstance(again, messages.Got) else await again


async def _get_later(
    session: SessionPort, topic: TopicPort, partition: PartitionPort, request: messages.Get, moved: Callable[[], bool]
) -> messages.Got:
    least = None if request.min_offset is None else {partition.index: request.min_offset}
    views = await session.broker.wait_for_views([partition], least)
    async with session.reading(VALUE):
        await session.writable()
        await views.wait()
        if not moved() or (request.partition is not None and request.among is None):
            if least is not None:
                topic.replica(partition.index)  # still
            return messages.Got(partition.index, [partition.look_up(request.key) or NIL])
    return await _get_again(session, request)


async def _get_newest(session: SessionPort, topic: TopicPort, request: messages.Get) -> messages.Got:
    moved = moved_since_now(topic)
    views = await session.broker.wait_for_views(topic.all_led())
    if request.min_offset is not None:
        partition = _partition(topic, request.key, None)
        await session.broker.wait_for_views([partition], {partition.index: request.min_offset})
    async with session.reading(VALUE):
        await session.writable()
        await views.wait()
        if not moved():
            (where,), (found,) = await topic.newest([request.key], views.after(session.pause))
            return messages.Got(where, [found or NIL])
    return await _get_again(session, request)


@serves(messages.MultiGet, needs=needs.topic(Op.READ))
def multi_get(
    session: SessionPort, request: messages.MultiGet
) -> messages.MultiGot | Coroutine[Any, Any, messages.MultiGot]:
    topic = session.access.topic(request.topic, Op.READ)
    check_among(topic, request.among)
    keys = request.keys
    if request.min_offsets is None and (request.partition is not None or topic.count == 1):
        partition = topic.led(request.partition or 0)
        if len(keys) <= QUICK and partition.is_sure and partition.view_ready(None):
            entries: list[bytes] = []
            size = 0
            while len(entries) < len(keys):
                found = [entry or NIL for entry in partition.look_up_some(keys[len(entries) : len(entries) + SLICE])]
                entries += found
                size += sum(map(len, found))
                check_size(size, MAX_ANSWER)
            return messages.MultiGot([partition.index] * len(keys) if partition.index else None, entries)
    once = partial(_multi_get_once, session, topic, request)
    return while_readable(session, topic, lambda: until_still(once))


async def until_still(once: Callable[[], Awaitable[A | None]]) -> A:
    """What `once` gives. It is called again as often as it gives None: a key may stand in other partitions
    meanwhile."""
    while True:
        found = await once()
        if found is not None:
            return found


async def _multi_get_once(
    session: SessionPort, topic: TopicPort, request: messages.MultiGet
) -> messages.MultiGot | None:
    """None: partitions were added meanwhile, or the first stray was written."""
    check_among(topic, request.among)
    keys, moved = request.keys, moved_since_now(topic)
    only = 0 if topic.count == 1 else request.partition
    least = _least(topic, request)
    at = topic.led if least is None else topic.replica
    if only is not None:
        partitions = [at(only)]
    elif least is None:
        partitions = list(await partitions_of(session, topic, lambda: keys))
    else:
        partitions = await _own_partitions(session, topic, keys, at)
    views = await session.broker.wait_for_views(partitions, least)
    pause = views.after(session.pause)
    indexes: list[int] = []
    entries: list[bytes] = []
    size, looked = 0, QUICK
    async with session.reading(MAX_ANSWER), session.answering(MAX_ANSWER) as room:
        await views.wait()
        while len(entries) < len(keys):
            if moved():
                return None
            some = keys[len(entries) : len(entries) + SLICE]
            where, there = await look_up_spread(topic, some, only, pause, at)
            found = [entry or NIL for entry in there]
            indexes += where
            entries += found
            size += sum(map(len, found))
            check_size(size, room)
            looked += len(found)
            if looked >= QUICK:
                looked = 0
                await pause()
    return messages.MultiGot(indexes, entries)


def _least(topic: TopicPort, request: messages.MultiGet | messages.Scan) -> Mapping[int, int] | None:
    """By partition, the offset that an answer must include; None: all that is committed, which leaders know."""
    return None if request.min_offsets is None or topic.scattered else dict(request.min_offsets)


async def partitions_of(
    session: SessionPort, topic: TopicPort, keys: Callable[[], list[bytes]]
) -> Sequence[PartitionPort]:
    """The partitions to look these keys up in: all of the topic; or only the keys' own, when other brokers lead some
    and the topic has no strays. Raises NotLeader."""
    try:
        return topic.all_led()
    except NotLeader:
        if topic.scattered:
            raise
    return await _own_partitions(session, topic, keys(), topic.led)


async def _own_partitions(
    session: SessionPort, topic: TopicPort, keys: list[bytes], at: Callable[[int], PartitionPort]
) -> list[PartitionPort]:
    """The partitions that murmur2 gives the keys. Raises NotLeader."""
    found: set[int] = set()
    hashed = 0
    for number, key in enumerate(keys, 1):
        found.add(home_of(key, topic.count))
        hashed += len(key)
        if number % QUICK == 0 or hashed >= LARGE // HASHING:
            hashed = 0
            await session.pause()
    return [at(index) for index in sorted(found)]


async def look_up_spread(
    topic: TopicPort,
    keys: list[bytes],
    only: int | None,
    pause: Pause,
    at: Callable[[int], PartitionPort],
) -> tuple[list[int], list[bytes | None]]:
    """(the partitions, the entries) of the first of these keys, in their order: of all keys, unless their entries are
    large. An entry is None when the key is absent. `only`: the one partition to look in. `at`: finds a partition: the
    topic's `led` or `replica`."""
    found: list[bytes | None] = []
    if only is not None:
        found = at(only).look_up_some(keys)
        return [only] * len(found), found
    if topic.scattered:
        for key in keys:
            check_length(key, topic.count)
        return await topic.newest(keys, pause)
    size = 0
    where: list[int] = []
    for key in keys:
        index = home_of(key, topic.count)
        entry = at(index).look_up(key)
        where.append(index)
        found.append(entry)
        size += len(entry or b"") + HASHING * len(key)
        if size >= LARGE:
            break
    return where, found


def check_size(size: int, room: int, what: str = "entries") -> None:
    """Checks the bytes of an answer, which is sent as a whole. Raises RecordTooLarge when no answer may be so large,
    Overloaded when memory is short now (`room`)."""
    if size > MAX_ANSWER:
        raise RecordTooLarge(f"the {what} take more than {MAX_ANSWER} bytes; ask for fewer at once", limit=MAX_ANSWER)
    if size > room:
        raise Overloaded(f"the broker is short of memory now; ask for fewer {what} at once, or again later")


@serves(messages.Scan, needs=needs.topic(Op.READ))
async def scan(session: SessionPort, request: messages.Scan) -> messages.Scanned:
    try:
        return await _page(session, request)
    except UnknownHandle:
        if session.closed:  # the broker stops: it still answers what was asked before
            raise ShuttingDown("the connection ends, and its scans with it") from None
        raise


async def _page(session: SessionPort, request: messages.Scan) -> messages.Scanned:
    if request.cursor is not None:
        cursor = request.cursor
        try:
            scan = session.find(cursor, ScanCursor).scan
        except UnknownHandle as unknown:
            closed = "it ended, or nobody asked for its next page in time"
            raise UnknownHandle(f"{unknown.text}: if it was a scan, {closed}", handle=cursor) from None
    else:
        if request.topic is None:
            raise InvalidRequest("the first page of a scan names its topic", field="topic")
        topic = session.access.topic(request.topic, Op.READ)
        partitions = await ready_partitions(session, topic, request)
        scan = session.broker.scan(
            partitions,
            *(request.prefix, request.start, request.end),
            tombstones=request.tombstones,
            whole=len(partitions) == topic.count,
        )
        cursor = session.add(ScanCursor(scan), grants_of(topic), _kept(request, partitions))
        scan.ended = partial(session.forget, cursor)
    most = min(request.max_bytes, MAX_PAGE_BYTES, session.read_bytes)
    try:
        async with session.reading(most):
            await session.writable()
            await session.pause()  # a page takes some time
            if (denied := session.revoked(cursor)) is not None:
                raise denied
            page = await scan.page(request.max_entries, min(most, session.answer_bytes))
    except KrappyError:
        if request.cursor is None:
            session.forget(cursor)  # the client does not know of it
        raise
    return messages.Scanned(
        partition=page.partition, cursor=None if page.last else cursor, offsets=scan.offsets, entries=page.items
    )


def grants_of(topic: TopicPort) -> list[Grant]:
    return [Grant(Resource.TOPIC, topic.name, Op.READ)]


def _kept(request: messages.Scan | messages.Watch, partitions: list[PartitionPort]) -> int:
    """About how many bytes a scan or a watch keeps."""
    return bounds_size(request) + FOR_EACH_PARTITION * len(partitions)


def bounds_size(request: messages.Scan | messages.Watch | messages.OpenSnapshot) -> int:
    return sum(len(bound or b"") for bound in (request.prefix, request.start, request.end))


@serves(messages.Watch, needs=needs.topic(Op.READ), streams=True)
async def watch(session: SessionPort, request: messages.Watch, stream: StreamPort) -> messages.Watched:
    topic = session.access.topic(request.topic, Op.READ)
    partitions = chosen_partitions(topic, request.partitions)
    if not partitions:
        raise InvalidRequest("`partitions` is empty: name some, or leave it out to watch all", field="partitions")
    watch = session.broker.watch(
        partitions,
        *(request.prefix, request.start, request.end),
        tombstones=request.tombstones,
        grows_with=topic.local if request.partitions is None else {},
        whole=len(partitions) == topic.count,
    )
    offsets: dict[int, int] | None = None
    if request.offsets is not None:
        offsets = dict(request.offsets)
        watched = {partition.index for partition in partitions}
        wrong = offsets.keys() - watched
        if request.partitions is not None:
            wrong |= watched - offsets.keys()  # a watch of all partitions may lack those that are new
        if wrong:
            raise InvalidRequest(f"`offsets` must name each watched partition, and no other; wrong: {sorted(wrong)}")
        watch.epochs = {index: epoch for index, epoch in request.epochs or () if index in offsets}
    grants = grants_of(topic)
    handle = session.add(watch, grants, _kept(request, partitions))
    topic_id: str | None = text_id(topic.id)

    def stands() -> bool:
        return watch.stands and session.registered(handle) and session.revoked(handle) is None

    async def emit(
        event: str,
        partition: int,
        next_offset: int,
        items: list[bytes],
        exact: list[tuple[int, int]] | None = None,
    ) -> None:
        nonlocal topic_id
        told, topic_id = topic_id, None
        known = watch.epochs
        epochs = [(index, known[index]) for index in (known if exact else (partition,)) if index in known] or None
        part = messages.Watched(
            event, handle, partition, next_offset, True, exact, items, watch.scattered, told, epochs
        )
        with session.standing_on(grants):
            await stream.send(part, stands)

    try:
        for index, offset in request.offsets[:1] if request.offsets else ():
            await emit("changes", index, offset, [])  # at once: its topic id shows the client that it is the same topic
        await watch.run(offsets, emit, lambda: session.affordable(stands))
        if (denied := session.revoked(handle)) is not None:
            raise denied
    finally:
        session.forget(handle)
    return messages.Watched("changes", handle, 0, 0, False, None, [])


@serves(messages.History, needs=needs.topic(Op.READ))
async def history(session: SessionPort, request: messages.History) -> messages.HistoryFound:
    topic = session.access.topic(request.topic, Op.READ)
    if request.partition is None and topic.scattered:
        check_length(request.key, topic.count)
        partition = await _only_holder(session, topic, request.key)
    else:
        partition = _partition(topic, request.key, request.partition)
    most = min(request.max_bytes, MAX_PAGE_BYTES, session.read_bytes)
    with session.standing_on(grants_of(topic)):
        async with session.reading(most), session.answering(most) as room:
            entries, following = await session.broker.history(
                partition, request.key, request.offset, request.max_records, room
            )
    return messages.HistoryFound(partition.index, following, entries)


async def _only_holder(session: SessionPort, topic: TopicPort, key: bytes) -> PartitionPort:
    """The partition with all events of a key. Raises InvalidRequest when several partitions have some."""
    views = await session.broker.wait_for_views(topic.all_led())
    some = await topic.holders(key, views.after(session.pause))
    if len(some) > 1:
        raise InvalidRequest(f"events of this key are in the partitions {some}: say which", field="partition")
    return _partition(topic, key, some[0] if some else None)


def _partition(topic: TopicPort, key: bytes, index: int | None) -> PartitionPort:
    return topic.led(home_of(key, topic.count) if index is None else index)


async def ready_partitions(
    session: SessionPort, topic: TopicPort, request: messages.Scan | messages.OpenSnapshot
) -> list[PartitionPort]:
    """The partitions that are asked for, after a wait for their views. Raises NotLeader, also as `check_among` does."""
    while True:
        moved = moved_since_now(topic)
        least = _least(topic, request) if isinstance(request, messages.Scan) else None
        at = topic.led if least is None else topic.replica
        await session.broker.wait_for_views(chosen_partitions(topic, request.partitions, at), least)
        if not moved():
            check_among(topic, request.among)
            return chosen_partitions(topic, request.partitions, at)  # still


def chosen_partitions(
    topic: TopicPort, indexes: list[int] | None, at: Callable[[int], PartitionPort] | None = None
) -> list[PartitionPort]:
    """The partitions of these indexes; None: all. `at`: finds a partition; None: `topic.led`. Raises NotLeader."""
    return list(map(at or topic.led, range(topic.count) if indexes is None else indexes))
