"""A live view of a topic's table: as it is, and then its changes. It skips nothing; if it lags behind, it says by how
much.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from krappy.console import cursors
from krappy.console.api import Call, Routes
from krappy.console.elsewhere import AllLed, EventSource, led_here, refresh, sources
from krappy.console.events import Partition, ValueBytes
from krappy.console.pacer import PacedStopwatch
from krappy.console.shown import KeyEncoding, ShownAs, Viewer, query_bytes
from krappy.console.table import EntryShown, show_entry, show_known
from krappy.console.tail import TailPlace, resumed
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.entries.entry import key_of_bin
from krappy.errors import NotLeader, ViewDisabled
from krappy.ports import PartitionPort, TopicPort
from krappy.types import Entry

routes = Routes("live")
LAG_INTERVAL = 2.0  # seconds between two looks at how far a watch is behind other brokers


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


class Changes(msgspec.Struct):
    """`next`: every event of the partition before this offset is included. `lag`: how many events are not, yet."""

    partition: int
    next: int
    lag: int
    entries: list[EntryShown]


def _bounds(query: WatchQuery) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The prefix, the first key, and the key before which it ends."""
    prefix, start, end = (
        None if text is None else query_bytes(text, query.key_encoding, name)
        for name, text in (("prefix", query.prefix), ("start", query.start), ("end", query.end))
    )
    return prefix, start, end


class WatchView:
    """`grows_with`: all partitions of the topic, always current; those that are added are watched, too. When this
    broker does not lead them all any more, it goes on as a `WatchElsewhereView`."""

    def __init__(
        self,
        call: Call,
        topic: TopicPort,
        partitions: list[PartitionPort],
        query: WatchQuery,
        grows_with: Mapping[int, PartitionPort],
    ) -> None:
        self._call, self._query = call, query
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
        self._offsets = resumed(call, topic, query.after)
        if self._offsets is None and not query.snapshot:
            self._offsets = {each.index: each.last_stable_offset for each in partitions}
        if self._offsets is not None:
            self._offsets = {each.index: self._offsets.get(each.index, each.start_offset) for each in partitions}
        for each in partitions:
            each.view_ready(0)  # raises ViewDisabled

    def _stands(self) -> bool:
        return self._watch.stands

    async def run(self, send: Any) -> None:
        at: dict[int, int] = {}
        try:
            await self._run(send, at)
        except NotLeader:
            if self._call.gateway is None or not at:
                raise
            partitions = await sources(self._call, self._topic, self._query.partition)
            await WatchElsewhereView(self._call, self._topic, partitions, self._query, at).run(send)

    async def _run(self, send: Any, at: dict[int, int]) -> None:
        """`at`: by partition, what was sent so far; empty while the snapshot is incomplete."""
        at.update(self._offsets or {})
        began = 0.0

        async def room() -> None:
            nonlocal began
            await self._pacer.turn()
            began = trio.current_time()

        async def emit(event: str, partition: int, next_offset: int, items: list[bytes], offsets: Any = None) -> None:
            nonlocal began
            entries = [
                show_entry(self._viewer, partition, key_of_bin(items[at]), items[at + 1])
                for at in range(0, len(items), 2)
            ]
            if began:
                self._pacer.spent(trio.current_time() - began)
                began = 0.0  # the reader may take long for what is sent now
            after = {**at, **dict(offsets or ()), **({partition: next_offset} if event == "changes" else {})}
            if event == "end_of_snapshot":
                if await send(event, _place_of(after), cursors.write_offsets(self._topic, after), self._stands):
                    at.update(after)
                return
            source = self._partitions.get(partition) or self._grows_with[partition]  # raises NotLeader
            lag = max(0, source.last_stable_offset - next_offset)
            # A snapshot that is interrupted begins again, so its pages have no cursor.
            cursor = cursors.write_offsets(self._topic, after) if event == "changes" else None
            if await send(event, Changes(partition, next_offset, lag, entries), cursor, self._stands):
                at.update(after)

        if self._offsets is not None:
            await send("start", _place_of(at), cursors.write_offsets(self._topic, at))
        try:
            await self._watch.run(self._offsets, emit, room)
        finally:
            self._watch.close()


class WatchElsewhereView:
    """A watch of partitions that other brokers lead, too: this broker asks their leaders. It sends what
    `WatchView` sends, but pages of its snapshot tell no offsets (`next` is 0)."""

    def __init__(
        self,
        call: Call,
        topic: TopicPort,
        partitions: list[EventSource],
        query: WatchQuery,
        after: Mapping[int, int] | None = None,
    ) -> None:
        """`after`: it goes on from these offsets, in the same answer."""
        assert call.gateway is not None
        self._call, self._gateway, self._topic, self._partitions = call, call.gateway, topic, partitions
        self._pacer = call.pacer
        self._viewer = Viewer(binary=call.binary, keys=query.keys, values=query.values, limit=query.value_bytes)
        prefix, start, end = _bounds(query)
        self._begun = after is not None
        offsets = resumed(call, topic, query.after) if after is None else after
        if offsets is None and not query.snapshot:
            offsets = {each.index: each.last_stable_offset for each in partitions}
        if offsets is not None:
            offsets = {each.index: offsets.get(each.index, each.start_offset) for each in partitions}
        self._offsets = offsets
        indexes = [each.index for each in partitions] if query.partition else None
        self._watch = self._gateway.watch(
            *(topic.name, prefix, start, end, indexes), tombstones=query.tombstones, offsets=offsets
        )
        self._looked = -LAG_INTERVAL

    async def run(self, send: Any) -> None:
        try:
            live, at = self._offsets is not None, dict(self._offsets or {})
            if self._offsets is not None and not self._begun:
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
                at, before = dict(self._watch.offsets or {}), at
                if live and at != before:
                    await self._look()
                for index, entries in found.items():
                    await self._send(send, index, entries, at if live else None)
                for index in [index for index in at if live and not found and at[index] > before.get(index, 0)]:
                    await self._send(send, index, [], at)
                if ended:
                    live = True
                    await send("end_of_snapshot", _place_of(at), cursors.write_offsets(self._topic, at))
        finally:
            self._watch.close()

    async def _look(self) -> None:
        """Asks the leaders how far the logs are, but not often."""
        if trio.current_time() - self._looked >= LAG_INTERVAL:
            self._looked = trio.current_time()
            with suppress(NotLeader):
                await refresh(self._gateway, self._topic.name, self._partitions)

    async def _send(self, send: Any, index: int, entries: list[EntryShown], at: Mapping[int, int] | None) -> None:
        if at is None:
            await send("snapshot", Changes(index, 0, 0, entries), None)
            return
        lag = max(0, (await self._source(index)).last_stable_offset - at[index])
        await send("changes", Changes(index, at[index], lag, entries), cursors.write_offsets(self._topic, at))

    async def _source(self, index: int) -> EventSource:
        for each in self._partitions:
            if each.index == index:
                return each
        self._partitions += await sources(self._call, self._topic, [index])  # it was added
        return self._partitions[-1]


def _place_of(offsets: Mapping[int, int]) -> TailPlace:
    return TailPlace({str(index): offset for index, offset in offsets.items()})


@routes.get(
    "/topics/{topic}/watch",
    needs=needs.topic(Op.READ),
    summary="The table, then its changes as they come (server-sent events)",
    live=True,
)
async def watch(call: Call, topic: str, query: WatchQuery) -> WatchView | WatchElsewhereView:
    found = call.access.topic(topic, Op.READ)
    if not found.config.view:
        raise ViewDisabled(f"the topic '{topic}' keeps no view: it has view.enable=false")
    partitions = await sources(call, found, query.partition)
    here = led_here(found, [each.index for each in partitions])
    if here is None:
        return WatchElsewhereView(call, found, partitions, query)
    every: Mapping[int, PartitionPort] = found.local if call.gateway is None else AllLed(found)
    return WatchView(call, found, here, query, {} if query.partition else every)
