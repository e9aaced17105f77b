"""A live view of a topic's events, for a person who looks on. It never slows a producer down: it takes a small part of
the event loop's time (`pacer.Pacer`), and reads on only when the reader has taken what it sent. If more events come
than it may show, it skips some and says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from krappy.console import cursors
from krappy.console.api import Call, Routes
from krappy.console.elsewhere import (
    MAX_MERGED,
    ElsewherePartition,
    EventSource,
    refresh,
    soon,
    sources,
)
from krappy.console.events import EventShown, Partition, ValueBytes, show
from krappy.console.pacer import PacedStopwatch
from krappy.console.reading import READ, Seen, event_at, forward
from krappy.console.shown import KeyEncoding, ShownAs, Viewer, query_bytes
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import NotLeader, ShuttingDown
from krappy.ports import TopicPort
from krappy.records import batch as batches
from krappy.records.batch import Columns

routes = Routes("live")
INTERVAL = 0.1  # seconds between two looks for new events
AWAY_INTERVAL = 0.5  # the same, if leaders must be asked
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


class TailPlace(msgspec.Struct):
    """By partition, the offset from which the view goes on."""

    offsets: dict[str, int]


def resumed(call: Call, topic: TopicPort, after: str | None) -> dict[int, int] | None:
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
    """`grows`: partitions that are added to the topic are tailed, too. Those that other brokers lead are looked at now
    and then."""

    def __init__(
        self,
        call: Call,
        topic: TopicPort,
        partitions: list[EventSource],
        query: TailQuery,
        *,
        grows: bool,
    ) -> None:
        self._call = call
        self._broker = call.broker
        self._gateway = call.gateway
        self._topic = topic
        self._grows = grows
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
        held = resumed(call, topic, query.after)
        if held is None:
            held = {each.index: each.last_stable_offset for each in partitions}
        self._positions = {each.index: held.get(each.index, each.start_offset) for each in partitions}

    def _stands(self) -> bool:
        return not self._broker.stopped and all(each.gone is None for each in self._partitions)

    async def run(self, send: Any) -> None:
        await send("start", self._place(), self._cursor())
        for each in self._partitions:
            # Behind the end: the log was cut, or is an older copy. (The leader elsewhere tells an end that may be old.)
            if (at := self._positions[each.index]) > each.start_offset and not isinstance(each, ElsewherePartition):
                await each.offset_for("offset", at)
        while True:
            await self._wait()
            if self._broker.stopped:
                raise ShuttingDown("the broker is shutting down")
            await self._grow()
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
        await soon(partial(refresh, self._gateway, self._topic.name, self._partitions))

    def _place(self) -> TailPlace:
        return TailPlace({str(index): offset for index, offset in self._positions.items()})

    def _cursor(self) -> str:
        return cursors.write_offsets(self._topic, self._positions)

    @property
    def _added(self) -> range:
        """The partitions that were added since."""
        return range(len(self._partitions), min(MAX_MERGED, self._topic.count) if self._grows else 0)

    async def _grow(self) -> None:
        with suppress(NotLeader):  # nobody leads one yet: it is looked for again
            for partition in await sources(self._call, self._topic, self._added) if self._added else ():
                self._partitions.append(partition)
                self._positions.setdefault(partition.index, partition.start_offset)

    def _is_news(self) -> bool:
        return bool(self._added) or any(map(self._has_news, self._partitions))

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
        with PacedStopwatch(self._pacer, partial(_waited, partition)):
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
        self._positions[partition.index] = sieve.missed_from if sieve.missed else at
        await self._send(shown, send)
        self._positions[partition.index] = at  # not before: a reader that is cut off here was not told what it misses
        if sieve.missed:
            told = Skipped(partition.index, sieve.missed_from, sieve.missed_to, sieve.missed, "rate")
            await send("skipped", told, self._cursor(), self._stands)

    def _may_hold(self, compressed: bool, view: memoryview) -> bool:
        """Whether a batch may have events that pass the filter: its bytes are searched before it is decoded."""
        if compressed or not self._needles:
            return True
        data = bytes(view)
        return all(needle in data for needle in self._needles)

    async def _skip(self, partition: EventSource, start: int, end: int, reason: str, send: Any) -> int:
        self._positions[partition.index] = end
        await send("skipped", Skipped(partition.index, start, end, end - start, reason), self._cursor(), self._stands)
        return end

    async def _send(self, shown: list[EventShown], send: Any) -> None:
        if shown:
            self._allowed = max(0.0, self._allowed - len(shown))
            await send("events", Events(shown), self._cursor(), self._stands)


def _waited(partition: EventSource) -> float:
    return partition.waited if isinstance(partition, ElsewherePartition) else 0.0


def _is_far(partition: EventSource, at: int, stable: int) -> bool:
    try:
        return partition.available(at, 2 * FAR_BEHIND, stable) >= FAR_BEHIND
    except BlockingIOError:  # so far behind that not even the index is in memory
        return True


@routes.get(
    "/topics/{topic}/tail", needs=needs.topic(Op.READ), summary="Events as they come (server-sent events)", live=True
)
async def tail(call: Call, topic: str, query: TailQuery) -> TailView:
    found = call.access.topic(topic, Op.READ)
    partitions = await sources(call, found, query.partition)
    return TailView(call, found, partitions, query, grows=not query.partition)
