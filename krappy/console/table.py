"""A topic as a table: the latest values of one key, of many, of all; and the raw events of a key."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from krappy.console import cursors
from krappy.console.api import Call, Routes
from krappy.console.elsewhere import ElsewherePartition, EventSource, led_here, sources
from krappy.console.events import Offset, Partition, ValueBytes
from krappy.console.shown import Given, HeaderRow, KeyEncoding, Shown, ShownAs, Viewer, bytes_of, query_bytes
from krappy.console.slices import in_slices
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.entries.entry import is_tombstone, key_of_bin, pack_entry, unpack_entry
from krappy.errors import InvalidRequest, NotLeader, OffsetOutOfRange, RecordTooLarge
from krappy.partitioner import home_of
from krappy.ports import GatewayPort, PartitionPort, ScanPort, TopicPort
from krappy.types import Entry

routes = Routes("table")
MAX_PAGE = 2 << 20  # bytes of the entries of one page, as they are stored
MAX_KEYS = 1000
SLICE = 8  # keys looked up in one turn
AWAY = 100  # keys that other brokers are asked for at once

EntryState = Literal["value", "deleted", "absent"]


class EntryShown(msgspec.Struct):
    """What the table holds for a key: its value, or that it was deleted at `offset`, or nothing (`absent`)."""

    key: Shown | None
    state: EntryState
    partition: int
    offset: int | None = None
    timestamp: int | None = None
    value: Shown | None = None
    headers: list[HeaderRow] = []


class Entries(msgspec.Struct):
    entries: list[EntryShown]


class TablePage(msgspec.Struct):
    """Entries in the order of their keys. `cursor`: of the next page; null at the end.

    `offsets`: by partition, the page includes every event before this offset; `watch`: a cursor of a watch that goes on
    from there. Each page shows the table as it is when the page is read. A key that is there all the time comes exactly
    once, even if its value changes meanwhile.
    """

    entries: list[EntryShown]
    cursor: str | None
    offsets: dict[str, int]
    watch: str


class HistoryPage(msgspec.Struct):
    """The raw events of one key, the oldest first. `next`: the offset of the next page; null at the end of the log."""

    partition: int
    entries: list[EntryShown]
    next: int | None


class EntryQuery(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    key_encoding: KeyEncoding = "text"
    partition: Annotated[Partition | None, Meta(description="default: by the key's hash")] = None
    min_offset: Annotated[Offset | None, Meta(description="waits until the table includes this event")] = None
    keys: ShownAs = "auto"
    values: ShownAs = "auto"


class Lookup(msgspec.Struct, forbid_unknown_fields=True):
    keys: Annotated[list[Given | str], Meta(min_length=1, max_length=MAX_KEYS)]
    partition: Partition | None = None
    keys_as: ShownAs = "auto"
    values_as: ShownAs = "auto"
    value_bytes: ValueBytes = 65536


class ScanQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Either a prefix, or a range from `start` (included) to `end` (not included); neither: every key."""

    prefix: str | None = None
    start: str | None = None
    end: str | None = None
    key_encoding: KeyEncoding = "text"
    partition: Annotated[list[Partition], Meta(description="only these; default: all")] = []
    tombstones: Annotated[bool, Meta(description="deleted keys too")] = False
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    keys: ShownAs = "auto"
    values: ShownAs = "auto"
    value_bytes: ValueBytes = 65536


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    key_encoding: KeyEncoding = "text"
    partition: Annotated[Partition | None, Meta(description="default: by the key")] = None
    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    keys: ShownAs = "auto"
    values: ShownAs = "auto"
    value_bytes: ValueBytes = 65536


def show_entry(viewer: Viewer, partition: int, key: bytes, entry: bytes | None) -> EntryShown:
    """A packed entry as the API shows it; None: the key is absent."""
    if entry is None:
        return EntryShown(viewer.key(key), "absent", partition)
    offset, timestamp, value, headers = unpack_entry(entry)
    state: EntryState = "deleted" if is_tombstone(entry) else "value"
    shown = viewer.value(value)
    return EntryShown(viewer.key(key), state, partition, offset, timestamp, shown, viewer.headers(headers))


def show_known(viewer: Viewer, partition: int, key: bytes, entry: Entry | None) -> EntryShown:
    """An entry that another broker gave. `partition`: the key's, if it is absent."""
    return show_entry(
        viewer, partition if entry is None else entry.partition, key, None if entry is None else packed(entry)
    )


def packed(entry: Entry) -> bytes:
    return pack_entry(entry.offset, entry.timestamp, entry.value, entry.headers)


def _index(topic: TopicPort, key: bytes, index: int | None) -> int:
    """The partition that is asked for a key: `index`, or the one that murmur2 gives it."""
    if index is not None:
        return index
    return home_of(key, topic.count)


def _place(topic: TopicPort, key: bytes, index: int | None) -> PartitionPort:
    return topic.led(_index(topic, key, index))


@routes.get("/topics/{topic}/table/entry", needs=needs.topic(Op.READ), summary="The latest value of a key")
async def get_entry(call: Call, topic: str, query: EntryQuery) -> EntryShown:
    key = query_bytes(query.key, query.key_encoding, "key")
    found = call.access.topic(topic, Op.READ)
    viewer = call.viewer(query.keys, query.values)
    index = _index(found, key, query.partition)
    if call.gateway is not None and _asked(found, {index}, query.partition) is None:
        if query.min_offset is not None:
            _check_offset(found, (await sources(call, found, [index]))[0], query.min_offset)
        entry = await call.gateway.get(topic, key, query.partition, query.min_offset)
        return show_known(viewer, index, key, entry)
    partition = found.led(index)
    if query.min_offset is not None:
        _check_offset(found, partition, query.min_offset)
        await call.broker.wait_for_views([partition], {partition.index: query.min_offset})
    scattered, count = query.partition is None and found.scattered, found.count
    views = await call.broker.wait_for_views(found.all_led() if scattered else [partition])
    _check_still(found, count, query.partition, scattered)
    if scattered:
        (index,), (entry_bytes,) = await found.newest([key], views.after(call.pause))
        return show_entry(viewer, index, key, entry_bytes)
    return show_entry(viewer, index, key, partition.look_up(key))


def _asked(topic: TopicPort, indexes: set[int], index: int | None) -> list[PartitionPort] | None:
    """The partitions that keys are looked up in: those with these indexes, or all while the topic has strays and no
    partition `index` is named; None: this broker does not lead all of them. Raises UnknownPartition."""
    return led_here(topic, range(topic.count) if index is None and topic.scattered else indexes)


def _check_still(topic: TopicPort, count: int, index: int | None, scattered: bool) -> None:
    """Raises NotLeader if keys may stand elsewhere than they did before views were waited for: partitions were added,
    or the first stray was written."""
    if index is None and (topic.count != count or (topic.scattered and not scattered)):
        raise NotLeader(f"'{topic.name}' has other partitions than it had a moment ago; try again", topic=topic.name)


def _check_offset(topic: TopicPort, partition: EventSource, min_offset: int) -> None:
    """Raises OffsetOutOfRange for an offset that nobody has written yet."""
    if min_offset >= partition.high_watermark:
        raise OffsetOutOfRange(
            f"{topic.name}-{partition.index} has no event at offset {min_offset} to wait for: it ends at "
            f"{partition.high_watermark}",
            start=partition.start_offset,
            end=partition.high_watermark,
        )


@routes.post(
    "/topics/{topic}/table/lookup",
    needs=needs.topic(Op.READ),
    summary="The latest values of many keys, in the order of the keys",
)
async def look_up(call: Call, topic: str, body: Lookup) -> Entries:
    found = call.access.topic(topic, Op.READ)
    viewer = call.viewer(body.keys_as, body.values_as, body.value_bytes)
    keys = [bytes_of(given, "keys", packed=call.packed) or b"" for given in body.keys]
    indexes = {_index(found, key, body.partition) for key in keys}
    if call.gateway is not None and _asked(found, indexes, body.partition) is None:
        return await _look_up_elsewhere(call, call.gateway, found, keys, body)
    partitions = [_place(found, key, body.partition) for key in keys]
    scattered, count = body.partition is None and found.scattered, found.count
    asked = found.all_led() if scattered else list({each.index: each for each in partitions}.values())
    pause = (await call.broker.wait_for_views(asked)).after(call.pause)
    entries: list[EntryShown] = []
    size = 0
    for number, (partition, key) in enumerate(zip(partitions, keys, strict=True), 1):
        _check_still(found, count, body.partition, scattered)
        index = partition.index
        if scattered:
            (index,), (entry,) = await found.newest([key], pause)
        else:
            entry = partition.look_up(key)
        size += len(entry or b"")
        if size > MAX_PAGE and len(entries) > 0:
            raise RecordTooLarge(f"the entries take more than {MAX_PAGE} bytes; ask for fewer keys at once")
        entries.append(show_entry(viewer, index, key, entry))
        if number % SLICE == 0:
            await pause()
    return Entries(entries)


async def _look_up_elsewhere(
    call: Call, gateway: GatewayPort, topic: TopicPort, keys: list[bytes], body: Lookup
) -> Entries:
    viewer = call.viewer(body.keys_as, body.values_as, body.value_bytes)
    entries: list[EntryShown] = []
    size = 0
    for first in range(0, len(keys), AWAY):
        some = keys[first : first + AWAY]
        for key, entry in zip(some, await gateway.get_many(topic.name, some, body.partition), strict=True):
            size += 0 if entry is None else len(entry.value or b"")
            if size > MAX_PAGE and len(entries) > 0:
                raise RecordTooLarge(f"the entries take more than {MAX_PAGE} bytes; ask for fewer keys at once")
            entries.append(show_known(viewer, _index(topic, key, body.partition), key, entry))
        await call.pause()
    return Entries(entries)


@routes.get(
    "/topics/{topic}/table",
    needs=needs.topic(Op.READ),
    summary="The table by key, a page at a time: all of it, a prefix or a range",
)
async def scan(call: Call, topic: str, query: ScanQuery) -> TablePage:
    its = call.access.topic(topic, Op.READ)
    partitions = sorted(await sources(call, its, query.partition), key=lambda each: each.index)
    if query.prefix is not None and (query.start is not None or query.end is not None):
        raise InvalidRequest("either a prefix or a range from start to end, not both", field="prefix")
    start = b"" if query.start is None else query_bytes(query.start, query.key_encoding, "start")
    end = None if query.end is None else query_bytes(query.end, query.key_encoding, "end")
    if query.prefix is not None:
        start = query_bytes(query.prefix, query.key_encoding, "prefix")
        end = after_prefix(start)
    after: tuple[bytes, int] | None = None if query.cursor is None else cursors.read(query.cursor, tuple[bytes, int])
    here = {each.index: each for each in led_here(its, [each.index for each in partitions if _is_here(each)]) or ()}
    await call.broker.wait_for_views(list(here.values()))
    found: list[tuple[bytes, int, bytes]] = []
    offsets: dict[str, int] = {}
    cut: tuple[bytes, int] | None = None  # after this key and partition, not every entry has been read
    room = MAX_PAGE // len(partitions)
    whole = len(partitions) == its.count
    scans: dict[int, ScanPort] = {}

    def first(index: int) -> bytes:
        if after is None:
            return start
        # A key may stand in several partitions: those up to the cursor's have shown the cursor's key, the others have
        # not.
        return max(start, after[0] if index > after[1] else after[0] + b"\x00")

    for index, partition in here.items():  # all at one moment
        bounds = (None, first(index), end)
        scans[index] = call.broker.scan([partition], *bounds, tombstones=query.tombstones, whole=whole)
    try:
        for index in (each.index for each in partitions):
            if index in scans:
                page = await scans[index].page(query.limit, room)
                offsets[str(index)], last = scans[index].offsets[0][1], page.last
                keys, rows = [key_of_bin(key) for key in page.items[::2]], page.items[1::2]
            else:
                assert call.gateway is not None
                some, offsets[str(index)], last = await call.gateway.scan(
                    *(its.name, index, first(index), end), tombstones=query.tombstones, limit=query.limit, room=room
                )
                keys, rows = [each.key for each in some], [packed(each) for each in some]
            found += zip(keys, [index] * len(keys), rows, strict=True)
            if not last and keys:
                cut = min(cut or (keys[-1], index), (keys[-1], index))
            cut = _trim(found, query.limit, cut)
            await call.pause()
    finally:
        for scanned in scans.values():
            scanned.close()
    shown, more = found, cut is not None
    viewer = call.viewer(query.keys, query.values, query.value_bytes)
    entries = await in_slices(show_entry(viewer, index, key, entry) for key, index, entry in shown)
    watch = cursors.write_offsets(its, {int(index): offset for index, offset in offsets.items()})
    return TablePage(entries, cursors.write(shown[-1][:2]) if shown and more else None, offsets, watch)


def _is_here(partition: EventSource) -> bool:
    return not isinstance(partition, ElsewherePartition)


def _trim(found: list[tuple[bytes, int, bytes]], limit: int, cut: tuple[bytes, int] | None) -> tuple[bytes, int] | None:
    """Sorts `found`, and leaves only the entries of one page; returns the new `cut`. It is called for each partition,
    so that not all of their entries, which may be large, are held at once."""
    found.sort()
    size = 0
    for place, (key, index, entry) in enumerate(found):
        size += len(entry)
        if cut is not None and (key, index) > cut:
            del found[place:]
            return cut
        if place == limit or (size > MAX_PAGE and place > 0):
            del found[place:]
            return found[-1][:2]
    return cut


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key after all keys with this prefix; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


@routes.get("/topics/{topic}/table/history", needs=needs.topic(Op.READ), summary="The raw events of a key")
async def get_history(call: Call, topic: str, query: HistoryQuery) -> HistoryPage:
    key = query_bytes(query.key, query.key_encoding, "key")
    found = call.access.topic(topic, Op.READ)
    index = query.partition
    viewer = call.viewer(query.keys, query.values, query.value_bytes)
    if call.gateway is not None and _asked(found, {_index(found, key, index)}, index) is None:
        if index is None and found.scattered:
            index = _only(await call.gateway.holders(topic, key))
        index = _index(found, key, index)
        some, following = await call.gateway.history(topic, key, index, query.offset)
        if len(some) > query.limit:
            some, following = some[: query.limit], some[query.limit].offset
        shown = await in_slices(show_entry(viewer, index, key, packed(each)) for each in some)
        return HistoryPage(index, shown, following)
    if index is None and found.scattered:
        views = await call.broker.wait_for_views(found.all_led())
        index = _only(await found.holders(key, views.after(call.pause)))
    partition = _place(found, key, index)
    entries, following = await call.broker.history(partition, key, query.offset, query.limit, MAX_PAGE)
    shown = await in_slices(show_entry(viewer, partition.index, key, entry) for entry in entries)
    return HistoryPage(partition.index, shown, following)


def _only(holders: list[int]) -> int | None:
    """The one partition that has events of a key, if any has. Raises InvalidRequest if several have."""
    if len(holders) > 1:
        raise InvalidRequest(f"events of this key are in the partitions {holders}: say which", field="partition")
    return holders[0] if holders else None
