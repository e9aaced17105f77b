"""A topic as a table: the latest values of one key, of many, of all; and the raw events of a key."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from krappy.console import cursors
from krappy.console.api import Call, Routes
from krappy.console.events import Offset, Partition, ValueBytes, chosen
from krappy.console.shown import Given, HeaderRow, KeyEncoding, Shown, ShownAs, Viewer, bytes_of, query_bytes
from krappy.console.slices import in_slices
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.entries.entry import is_tombstone, key_of_bin, unpack_entry
from krappy.errors import InvalidRequest, OffsetOutOfRange, RecordTooLarge
from krappy.partitioner import partition_for
from krappy.ports import PartitionPort, ScanPort, TopicPort

routes = Routes("table")
MAX_PAGE = 2 << 20  # bytes of the entries of one page, as they are stored
MAX_KEYS = 1000
SLICE = 8  # keys looked up in one turn

Status = Literal["value", "deleted", "absent"]


class EntryShown(msgspec.Struct):
    """What the table holds for a key: its value, or that it was deleted at `offset`, or nothing (`absent`)."""

    key: Shown | None
    status: Status
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
    status: Status = "deleted" if is_tombstone(entry) else "value"
    shown = viewer.value(value)
    return EntryShown(viewer.key(key), status, partition, offset, timestamp, shown, viewer.headers(headers))


def _place(topic: TopicPort, key: bytes, index: int | None) -> PartitionPort:
    if index is None:
        count = topic.count
        index = partition_for(key, count) if count > 1 else 0
    return topic.led(index)


@routes.get("/topics/{topic}/table/entry", needs=needs.topic(Op.READ), summary="The latest value of a key")
async def get_entry(call: Call, topic: str, query: EntryQuery) -> EntryShown:
    key = query_bytes(query.key, query.key_encoding, "key")
    found = call.access.topic(topic, Op.READ)
    partition = _place(found, key, query.partition)
    if query.min_offset is not None and query.min_offset >= partition.high_watermark:
        raise OffsetOutOfRange(
            f"{topic}-{partition.index} has no event at offset {query.min_offset} to wait for: it ends at "
            f"{partition.high_watermark}",
            start=partition.start_offset,
            end=partition.high_watermark,
        )
    await call.broker.wait_for_views([partition], query.min_offset)
    viewer = call.viewer(query.keys, query.values)
    if query.partition is None and found.scattered:
        views = await call.broker.wait_for_views(found.all_led())
        (index,), (entry,) = await found.newest([key], views.after(call.pause))
        return show_entry(viewer, index, key, entry)
    return show_entry(viewer, partition.index, key, partition.look_up(key))


@routes.post(
    "/topics/{topic}/table/lookup",
    needs=needs.topic(Op.READ),
    summary="The latest values of many keys, in the order of the keys",
)
async def look_up(call: Call, topic: str, body: Lookup) -> Entries:
    found = call.access.topic(topic, Op.READ)
    viewer = call.viewer(body.keys_as, body.values_as, body.value_bytes)
    keys = [bytes_of(given, "keys", packed=call.packed) or b"" for given in body.keys]
    partitions = [_place(found, key, body.partition) for key in keys]
    scattered = body.partition is None and found.scattered
    asked = found.all_led() if scattered else list({each.index: each for each in partitions}.values())
    pause = (await call.broker.wait_for_views(asked)).after(call.pause)
    entries: list[EntryShown] = []
    size = 0
    for number, (partition, key) in enumerate(zip(partitions, keys, strict=True), 1):
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


@routes.get(
    "/topics/{topic}/table",
    needs=needs.topic(Op.READ),
    summary="The table by key, a page at a time: all of it, a prefix or a range",
)
async def scan(call: Call, topic: str, query: ScanQuery) -> TablePage:
    its = call.access.topic(topic, Op.READ)
    partitions = sorted(chosen(its, query.partition), key=lambda each: each.index)
    if query.prefix is not None and (query.start is not None or query.end is not None):
        raise InvalidRequest("either a prefix or a range from start to end, not both", field="prefix")
    start = b"" if query.start is None else query_bytes(query.start, query.key_encoding, "start")
    end = None if query.end is None else query_bytes(query.end, query.key_encoding, "end")
    if query.prefix is not None:
        start = query_bytes(query.prefix, query.key_encoding, "prefix")
        end = after_prefix(start)
    after = None if query.cursor is None else cursors.read(query.cursor, tuple[bytes, int])
    await call.broker.wait_for_views(partitions)
    found: list[tuple[bytes, int, bytes]] = []
    offsets: dict[str, int] = {}
    cut: tuple[bytes, int] | None = None  # after this key and partition, not every entry has been read
    room = MAX_PAGE // len(partitions)
    whole = len(partitions) == its.count
    scans: list[ScanPort] = []
    for partition in partitions:  # all at one moment
        first = start
        if after is not None:
            # A key may stand in several partitions: those up to the cursor's have shown the cursor's key, others not.
            first = max(start, after[0] if partition.index > after[1] else after[0] + b"\x00")
        scans.append(call.broker.scan([partition], None, first, end, tombstones=query.tombstones, whole=whole))
    try:
        for partition, scanned in zip(partitions, scans, strict=True):
            page = await scanned.page(query.limit, room)
            offsets[str(partition.index)] = scanned.offsets[0][1]
            keys = [key_of_bin(key) for key in page.items[::2]]
            found += zip(keys, [partition.index] * len(keys), page.items[1::2], strict=True)
            if not page.last and keys:
                cut = min(cut or (keys[-1], partition.index), (keys[-1], partition.index))
            cut = _trim(found, query.limit, cut)
            await call.pause()
    finally:
        for scanned in scans:
            scanned.close()
    shown, more = found, cut is not None
    viewer = call.viewer(query.keys, query.values, query.value_bytes)
    entries = await in_slices(show_entry(viewer, index, key, entry) for key, index, entry in shown)
    watch = cursors.write_offsets(its, {int(index): offset for index, offset in offsets.items()})
    return TablePage(entries, cursors.write(shown[-1][:2]) if shown and more else None, offsets, watch)


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
    if index is None and found.scattered:
        views = await call.broker.wait_for_views(found.all_led())
        some = await found.holders(key, views.after(call.pause))
        if len(some) > 1:
            raise InvalidRequest(f"events of this key are in the partitions {some}: say which", field="partition")
        index = some[0] if some else None
    partition = _place(found, key, index)
    entries, following = await call.broker.history(partition, key, query.offset, query.limit, MAX_PAGE)
    viewer = call.viewer(query.keys, query.values, query.value_bytes)
    shown = await in_slices(show_entry(viewer, partition.index, key, entry) for entry in entries)
    return HistoryPage(partition.index, shown, following)
