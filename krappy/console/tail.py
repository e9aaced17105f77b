"""Live views of a topic: its events (tail), and its table (watch).

A tail is for a person who looks on. It never slows a producer down: it takes a small part of the event loop's time
(`live.Pacer`), and reads on only when the reader has taken what it sent. If more events come than it may show, it skips
some and says so. A watch skips nothing; if it lags behind, it says by how much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from krappy.console import cursors
from krappy.console.api import Call, Routes
from krappy.console.elsewhere import MAX_MERGED, ElsewherePartition, EventSource, led_here, refresh, sources
from krappy.console.events import EventShown, Partition, ValueBytes, show
from krappy.console.pacer import PacedStopwatch
from krappy.console.reading import READ, Seen, event_at, forward
from krappy.console.shown import KeyEncoding, ShownAs, Viewer, query_bytes
from krappy.console.table import EntryShown, show_entry, show_known
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.entries.entry import key_of_bin
from krappy.errors import ShuttingDown
from krappy.ports import PartitionPort, TopicPort
from krappy.records import batch as batches
from krappy.records.batch import Columns
from krappy.types import Entry

routes = Routes("live")
INTERVAL = 0.1  # seconds between two looks for new events
AWAY_INTERVAL = 0.5  # the same, if leaders must be asked
LAG_INTERVAL = 2.0  # seconds between two looks at how far a watch is behind other brokers
FAR_BEHIND = 16 << 20  # a filter that is so many bytes of log behind goes on at the log's end
STEP = 1 << 20  # bytes of log that a filter reads before it sends what it has found
SHOWN = 256 << 10  # bytes of events sent at once


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    partition: Annotated[list[Partition], Meta(description="only these; default: all")] = []
    key: Annotated[str | None, Meta(description="only events with exactly this key")] = None
    key_encoding: KeyEncoding = "text"
    text: Annotated[str | None, Meta(description="only events with this in the key, value or a header's value")] = None
    after: Annotated[str | None, Meta(description="cursor of a page or a tail to go on from; default: now")] = None
    rate: Annotated[int, Meta(ge=1, le=1000, description="at most this many events a second")] = 100
    keys: ShownAs = "auto"
    values: ShownAs = "auto"
    value_bytes: ValueBytes = 4096


class WatchQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Either a prefix, or a range from `start` (included) to `end` (not included); neither: every key."""

    partition: Annotated[list[Partition], Meta(description="only these; default: all")] = []
    prefix: str | None = None
    start: str | None = None
    end: str | None = None
    key_encoding: KeyEncoding = "text"
    tombstones: Annotated[bool, Meta(description="in the snapshot, deleted keys too")] = False
    after: Annotated[
        str | None, Meta(description="cursor of a watch to go on from: no snapshot, only changes from there on")
    ] = None
    snapshot: Annotated[bool, Meta(description="false: only changes from now on")] = True
    keys: ShownAs = "auto"
    values: ShownAs = "auto"
    value_bytes: ValueBytes = 4096


class Events(msgspec.Struct):
    events: list[EventShown]


class Skipped(msgspec.Struct):
    """Events of a partition, from offset `start` to before `end`, that are not shown (`events`: how many, about).
    `reason`: rate (more came than may be shown), behind (the filter is too slow), gone (retention deleted them)."""

    partition: int
    start: int
    end: int
    events: int
    reason: str


class Changes(msgspec.Struct):
    """`next`: every event of the partition before this offset is included. `lag`: how many events are not, yet."""

    partition: int
    next: int
    lag: int
    entries: list[EntryShown]


class TailPlace(msgspec.Struct):
    """By partition, the offset from which the view goes on."""

    offsets: dict[str, int]


def _resumed(call: Call, topic: TopicPort, after: str | None) -> dict[int, int] | None:
    """The offsets to go on from, by partition: a browser that lost its connection gives them as Last-Event-ID, others
    as `after`. None: neither is given."""
    cursor = call.request.headers.get("last-event-id") or after
    return None if not cursor else cursors.read_offsets(cursor, topic)


class Sieve:
    """Keeps the events that pass a filter, at most `allowed`; it counts further ones (`missed`). It is `full` when it
    holds as many bytes as are sent at once."""

    def __init__(self, index: int, key: bytes | None, text: bytes | None, allowed: int) -> None:
        self._index = index
        self._key = key
        self._text = text
        self._allowed = allowed
        self._room = SHOWN
        self.found: list[Seen] = []
        self.missed = self.missed_from = self.missed_to = 0

    @property
    def full(self) -> bool:
        return self._room <= 0 and len(self.found) < self._allowed

    def take(self, offset: int, columns: Columns) -> int | None:
        """Takes the events of a batch from `offset` on. Returns the offset to go on from if it is full, else None."""
        for row in range(bisect_left(columns.offsets, offset), len(columns.offsets)):
            if self._key is None or columns.keys[row] == self._key:
                event = event_at(self._index, columns, row)
                if self._wants(event):
                    if self.full:
                        return event.offset
                    self._keep(event)
        return None

    def _keep(self, event: Seen) -> None:
        if len(self.found) < self._allowed:
            self.found.append(event)
            self._room -= event.size
            return
        self.missed_from = self.missed_from if self.missed else event.offset
        self.missed_to = event.offset + 1
        self.missed += 1

    def _wants(self, event: Seen) -> bool:
        text = self._text
        if text is None:
            return True
        parts: Iterable[bytes | None] = (event.key, event.value, *(value for _, value in event.headers))
        return any(part is not None and text in part for part in parts)


class TailView:
    """`grows_with`: all partitions of the topic, always current; partitions that are added are tailed, too. Those that
    other brokers lead are looked at now and then."""

    def __init__(
        self,
        call: Call,
        topic: TopicPort,
        partitions: list[EventSource],
        query: TailQuery,
        grows_with: Mapping[int, PartitionPort],
    ) -> None:
        self._broker = call.broker
        self._gateway = call.gateway
        self._topic = topic
        self._grows_with = grows_with
        self._pacer = call.pacer
        self._partitions = partitions
        self._rate = query.rate
        self._allowed = float(query.rate)
        self._since = trio.current_time()
        self._viewer: Viewer = Viewer(binary=call.binary, keys=query.keys, values=query.values, limit=query.value_bytes)
        self._key = None if query.key is None else query_bytes(query.key, query.key_encoding, "key")
        self._text = query.text.encode() if query.text else None
        self._needles = [each for each in (self._key, self._text) if each]
        self._filtered = self._key is not None or self._text is not None
        held = _resumed(call, topic, query.after)
        if held is None:
            held = {each.index: each.last_stable_offset for each in partitions}
        self._positions = {each.index: held.get(each.index, each.start_offset) for each in partitions}

    async def run(self, send: Any) -> None:
        await send("start", self._place(), self._cursor())
        while True:
            await self._wait()
            if self._broker.stopped:
                raise ShuttingDown("the broker is shutting down")
            self._grow()
            self._refill()
            active = [each for each in self._partitions if self._has_news(each)]
            for left, partition in zip(range(len(active), 0, -1), active, strict=True):
                if partition.gone is not None:
                    raise partition.gone
                await self._pacer.turn()
                await self._look(partition, max(1, int(self._allowed / left)), send)
            await trio.sleep(INTERVAL)

    async def _wait(self) -> None:
        """Returns when there may be news."""
        here = [each for each in self._partitions if not isinstance(each, ElsewherePartition)]
        away = len(here) < len(self._partitions)
        moving: Sequence[Any] = here
        seconds = AWAY_INTERVAL if away else 3600.0
        await self._broker.wait_for_moves(moving, self._is_news, seconds, topics=True)
        await refresh(self._gateway, self._topic.name, self._partitions)

    def _place(self) -> TailPlace:
        return TailPlace({str(index): offset for index, offset in self._positions.items()})

    def _cursor(self) -> str:
        return cursors.write_offsets(self._topic, self._positions)

    def _grow(self) -> None:
        for partition in list(self._grows_with.values())[len(self._partitions) : MAX_MERGED]:
            self._partitions.append(partition)
            self._positions.setdefault(partition.index, partition.start_offset)

    def _is_news(self) -> bool:
        grown = len(self._partitions) < min(MAX_MERGED, len(self._grows_with))
        return grown or any(map(self._has_news, self._partitions))

    def _has_news(self, partition: EventSource) -> bool:
        return partition.gone is not None or partition.last_stable_offset > self._positions[partition.index]

    def _refill(self) -> None:
        now = trio.current_time()
        self._allowed = min(float(self._rate), self._allowed + (now - self._since) * self._rate)
        self._since = now

    async def _look(self, partition: EventSource, allowed: int, send: Any) -> None:
        at, stable = self._positions[partition.index], partition.last_stable_offset
        if at < partition.start_offset:
            at = await self._skip(partition, at, partition.start_offset, "gone", send)
        if self._filtered:
            if _is_far(partition, at, stable):
                at = await self._skip(partition, at, stable, "behind", send)
            await self._sift(partition, at, stable, allowed, send)
            return
        if stable - at > allowed:
            at = await self._skip(partition, at, stable - allowed, "rate", send)
        with PacedStopwatch(self._pacer):
            stretch = await forward(partition, at, allowed, SHOWN)
            shown = [show(event, self._viewer) for event in stretch.events]
        self._positions[partition.index] = stretch.end
        await self._send(shown, send)

    async def _sift(self, partition: EventSource, at: int, stable: int, allowed: int, send: Any) -> None:
        """Sends those of the next events that pass the filter."""
        looked = 0
        sieve = Sieve(partition.index, self._key, self._text, allowed)
        while at < stable and looked < STEP and not sieve.full:
            data = (await partition.read(at, READ, limit=stable)).data
            if not data:
                at = stable
                break
            looked += len(data)
            for header, view in batches.split(data):
                with PacedStopwatch(self._pacer):
                    if not header.is_control and header.next_offset > at and self._may_hold(header.compressed, view):
                        full_at = await partition.look_at(view, partial(sieve.take, at))
                        if full_at is not None:
                            at = full_at
                            break
                at = max(at, header.next_offset)
                await self._pacer.turn()
        with PacedStopwatch(self._pacer):
            shown = [show(event, self._viewer) for event in sieve.found]
        self._positions[partition.index] = at
        await self._send(shown, send)
        if sieve.missed:
            told = Skipped(partition.index, sieve.missed_from, sieve.missed_to, sieve.missed, "rate")
            await send("skipped", told, self._cursor())

    def _may_hold(self, compressed: bool, view: memoryview) -> bool:
        """Whether a batch may have events that pass the filter: its bytes are searched before it is decoded."""
        if compressed or not self._needles:
            return True
        data = bytes(view)
        return all(needle in data for needle in self._needles)

    async def _skip(self, partition: EventSource, start: int, end: int, reason: str, send: Any) -> int:
        self._positions[partition.index] = end
        await send("skipped", Skipped(partition.index, start, end, end - start, reason), self._cursor())
        return end

    async def _send(self, shown: list[EventShown], send: Any) -> None:
        if shown:
            self._allowed = max(0.0, self._allowed - len(shown))
            await send("events", Events(shown), self._cursor())


def _is_far(partition: EventSource, at: int, stable: int) -> bool:
    try:
        return partition.available(at, 2 * FAR_BEHIND, stable) >= FAR_BEHIND
    except BlockingIOError:  # so far behind that not even the index is in memory
        return True


def _bounds(query: WatchQuery) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The prefix, the first key, and the key before which it ends."""
    prefix, start, end = (
        None if text is None else query_bytes(text, query.key_encoding, name)
        for name, text in (("prefix", query.prefix), ("start", query.start), ("end", query.end))
    )
    return prefix, start, end


class WatchView:
    """`grows_with`: as in TailView."""

    def __init__(
        self,
        call: Call,
        topic: TopicPort,
        partitions: list[PartitionPort],
        query: WatchQuery,
        grows_with: Mapping[int, PartitionPort],
    ) -> None:
        self._pacer = call.pacer
        self._partitions = {each.index: each for each in partitions}
        self._grows_with = grows_with
        self._viewer = Viewer(binary=call.binary, keys=query.keys, values=query.values, limit=query.value_bytes)
        prefix, start, end = _bounds(query)
        self._watch = call.broker.watch(
            partitions,
            *(prefix, start, end),
            tombstones=query.tombstones,
            grows_with=grows_with,
            whole=len(partitions) == topic.count,
        )
        self._topic = topic
        self._offsets = _resumed(call, topic, query.after)
        if self._offsets is None and not query.snapshot:
            self._offsets = {each.index: each.last_stable_offset for each in partitions}
        if self._offsets is not None:
            self._offsets = {each.index: self._offsets.get(each.index, each.start_offset) for each in partitions}
        for each in partitions:
            each.view_ready(0)  # raises ViewDisabled

    async def run(self, send: Any) -> None:
        at = dict(self._offsets or {})
        began = 0.0

        async def room() -> None:
            nonlocal began
            await self._pacer.turn()
            began = trio.current_time()

        async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
            entries = [
                show_entry(self._viewer, partition, key_of_bin(items[at]), items[at + 1])
                for at in range(0, len(items), 2)
            ]
            if began:
                self._pacer.spent(trio.current_time() - began)
            if event == "end_of_snapshot":
                at.update(dict(offsets))
                place = TailPlace({str(index): offset for index, offset in at.items()})
                await send("end_of_snapshot", place, cursors.write_offsets(self._topic, at))
                return
            if event == "changes":
                at[partition] = next_offset
            source = self._partitions.get(partition) or self._grows_with[partition]
            lag = max(0, source.last_stable_offset - next_offset)
            # A snapshot that is interrupted begins again, so its pages have no cursor.
            cursor = cursors.write_offsets(self._topic, at) if event == "changes" else None
            await send(event, Changes(partition, next_offset, lag, entries), cursor)

        if self._offsets is not None:
            place = TailPlace({str(index): offset for index, offset in at.items()})
            await send("start", place, cursors.write_offsets(self._topic, at))
        try:
            await self._watch.run(self._offsets, emit, room)
        finally:
            self._watch.close()


class WatchElsewhereView:
    """A watch of partitions that other brokers lead, too: this broker asks their leaders. What it sends is that of
    `WatchView`; pages of the snapshot tell no offsets (`next` is 0)."""

    def __init__(self, call: Call, topic: TopicPort, partitions: list[EventSource], query: WatchQuery) -> None:
        assert call.gateway is not None
        self._gateway, self._topic, self._partitions = call.gateway, topic, partitions
        self._pacer = call.pacer
        self._viewer = Viewer(binary=call.binary, keys=query.keys, values=query.values, limit=query.value_bytes)
        prefix, start, end = _bounds(query)
        offsets = _resumed(call, topic, query.after)
        if offsets is None and not query.snapshot:
            offsets = {each.index: each.last_stable_offset for each in partitions}
        if offsets is not None:
            offsets = {each.index: offsets.get(each.index, each.start_offset) for each in partitions}
        self._offsets = offsets
        indexes = [each.index for each in partitions]
        self._watch = self._gateway.watch(
            *(topic.name, prefix, start, end, indexes), tombstones=query.tombstones, offsets=offsets
        )
        self._looked = -LAG_INTERVAL

    async def run(self, send: Any) -> None:
        try:
            live = self._offsets is not None
            if self._offsets is not None:
                await send("start", _place_of(self._offsets), cursors.write_offsets(self._topic, self._offsets))
            while True:
                items = await self._watch.more()
                await self._pacer.turn()
                with PacedStopwatch(self._pacer):
                    ended = [each for each in items if not isinstance(each, Entry)]
                    found: dict[int, list[EntryShown]] = {}
                    for each in items:
                        if isinstance(each, Entry):
                            shown = show_known(self._viewer, each.partition, each.key, each)
                            found.setdefault(each.partition, []).append(shown)
                at = dict(self._watch.offsets or {})
                if found and live:
                    await self._look(at)
                for index, entries in found.items():
                    await self._send(send, index, entries, at if live else None)
                if ended:
                    live = True
                    await send("end_of_snapshot", _place_of(at), cursors.write_offsets(self._topic, at))
        finally:
            self._watch.close()

    async def _look(self, at: Mapping[int, int]) -> None:
        """Asks the leaders how far the logs are, but not often."""
        if trio.current_time() - self._looked >= LAG_INTERVAL:
            self._looked = trio.current_time()
            await refresh(self._gateway, self._topic.name, self._partitions)

    async def _send(self, send: Any, index: int, entries: list[EntryShown], at: Mapping[int, int] | None) -> None:
        if at is None:
            await send("snapshot", Changes(index, 0, 0, entries), None)
            return
        [source] = [each for each in self._partitions if each.index == index]
        lag = max(0, source.last_stable_offset - at[index])
        await send("changes", Changes(index, at[index], lag, entries), cursors.write_offsets(self._topic, at))


def _place_of(offsets: Mapping[int, int]) -> TailPlace:
    return TailPlace({str(index): offset for index, offset in offsets.items()})


@routes.get(
    "/topics/{topic}/tail", needs=needs.topic(Op.READ), summary="Events as they come (server-sent events)", live=True
)
async def tail(call: Call, topic: str, query: TailQuery) -> TailView:
    found = call.access.topic(topic, Op.READ)
    partitions = await sources(call, found, query.partition)
    grows = not query.partition and not any(isinstance(each, ElsewherePartition) for each in partitions)
    return TailView(call, found, partitions, query, found.local if grows else {})


@routes.get(
    "/topics/{topic}/watch",
    needs=needs.topic(Op.READ),
    summary="The table, then its changes as they come (server-sent events)",
    live=True,
)
async def watch(call: Call, topic: str, query: WatchQuery) -> WatchView | WatchElsewhereView:
    found = call.access.topic(topic, Op.READ)
    partitions = await sources(call, found, query.partition)
    here = led_here(found, [each.index for each in partitions])
    if here is None:
        return WatchElsewhereView(call, found, partitions, query)
    return WatchView(call, found, here, query, {} if query.partition else found.local)
