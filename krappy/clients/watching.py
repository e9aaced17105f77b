"""A watch that survives its connection: a table as it is, then every change to it, without gaps or duplicates.

After a lost connection it goes on from the offsets that have arrived, if the topic is the same. If the topic was
deleted, or another one has its name, the watch ends with UnknownTopic. If the connection is lost before the snapshot is
complete, the watch takes a new snapshot and leaves out what was handed out and has not changed since: entries whose key
had its turn and whose offset is below the old snapshot's. It asks for the new snapshot with tombstones, because the
caller must see that a key which was handed out has been deleted since. While keys are scattered, the tombstone may come
from another partition than the key's value did.

A watch has its own connection, which is not read while the caller is behind. Then the broker holds back, so no buffer
grows without bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from krappy.clients.backoff import Backoff
from krappy.clients.link import Link
from krappy.clients.runtime import ClientSignal
from krappy.clients.tables import KeyRangeChoice, entries
from krappy.errors import ConnectionLost, KrappyError, ProtocolError, UnknownTopic
from krappy.types import Entry
from krappy.wire import messages

ROOM = 8  # so many answers may wait for the caller; then the connection is not read until it has taken some


class SnapshotEnd(NamedTuple):
    """The mark between a watch's snapshot and its changes. `offsets`: by partition, the snapshot includes all events
    before this offset."""

    offsets: dict[int, int]


class Progress:
    """Tracks what a watch has handed out, so that a repeated snapshot brings only what is new. No I/O.

    For each partition it keeps levels. A level (key, offset) says: every key up to this one was handed out as it was
    before that offset. A key of None stands for all keys. Levels ascend by key; the first one that reaches a key counts
    for it.
    """

    def __init__(self, tombstones: bool) -> None:
        self._tombstones = tombstones
        self.live: dict[int, int] | None = None  # by partition, the next offset; None while the snapshot is incomplete
        self._levels: dict[int, list[tuple[bytes | None, int]]] = {}
        self._turn: tuple[int, int] | None = None  # the partition whose entries come now, and its snapshot's offset
        self._again = False

    def restart(self) -> None:
        """To be called when the stream begins anew."""
        self._again = self.live is None and bool(self._levels)
        self._turn = None

    @property
    def tombstones(self) -> bool:
        """Whether to ask for tombstones: the caller wants them, or the snapshot is a repeated one."""
        return self._tombstones or self._again

    def take(self, watched: messages.Watched) -> list[Entry] | SnapshotEnd:
        """The new entries of an answer, or the end of the snapshot. Raises ProtocolError."""
        found = entries(watched.partition, watched.entries)
        if watched.event == "changes":
            if self.live is None:
                raise ProtocolError("changes before the end of a snapshot")
            self.live[watched.partition] = watched.next_offset
            return found
        if watched.event == "end_of_snapshot":
            self.live = dict(watched.offsets or ())
            return SnapshotEnd(dict(self.live))
        if watched.event != "snapshot":
            raise ProtocolError(f"a watch with an event {watched.event!r:.40}")
        return self._snapshot(watched.partition, watched.next_offset, found, watched.scattered)

    def _snapshot(self, partition: int, exact: int, found: list[Entry], scattered: bool) -> list[Entry]:
        if self._turn is not None and self._turn[0] != partition:
            before, offset = self._turn
            self._levels[before] = [(None, offset)]
        self._turn = partition, exact
        fresh = [entry for entry in found if self._is_new(entry, scattered)] if self._again else found
        if found:
            last = found[-1].key
            further = [each for each in self._levels.get(partition, ()) if each[0] is None or each[0] > last]
            self._levels[partition] = [(last, exact), *further]
        return fresh

    def _is_new(self, entry: Entry, scattered: bool) -> bool:
        offset = self._had_turn(entry.partition, entry.key)
        if offset is not None:
            return entry.offset >= offset
        if self._tombstones or entry.value is not None:
            return True
        return scattered and any(self._had_turn(other, entry.key) is not None for other in self._levels)

    def _had_turn(self, partition: int, key: bytes) -> int | None:
        """The offset of the snapshot that handed out this key's range in this partition; None: it had no turn yet."""
        return next((offset for upto, offset in self._levels.get(partition, ()) if upto is None or key <= upto), None)


class Watching:
    """The stream of one watch, over its own link."""

    def __init__(
        self,
        link: Link,
        topic: str,
        chosen: KeyRangeChoice,
        partitions: Sequence[int] | None,
        tombstones: bool,
        random: Callable[[], float],
    ) -> None:
        some = None if partitions is None else list(partitions)
        self._link = link
        self._request = messages.Watch(topic, chosen.prefix, chosen.start, chosen.end, some, tombstones)
        self._progress = Progress(tombstones)
        self.items: Iterator[Entry | SnapshotEnd] = iter(())  # to be handed out
        self._arrived: deque[messages.Watched | KrappyError] = deque()
        self._news: ClientSignal = link.runtime.signal()
        self._backoff = Backoff(random)
        self._closed = False
        self._connected = False
        self._asks = 0
        self._asked = False  # the broker was asked, and has not ended the stream
        self._topic_id: str | None = None  # None: not known yet

    async def open(self) -> None:
        """Connects and asks, unless that is done. A cancelled caller may call it again. Raises ConnectionLost; the
        broker's errors come from `take`."""
        if self._closed:
            raise ConnectionLost("this watch is closed")
        if not self._connected:
            await self._link.open()
            self._connected = True
        if not self._asked:
            await self._ask()

    @property
    def offsets(self) -> dict[int, int] | None:
        """By partition, the offset after the last event received; None while the snapshot is incomplete."""
        return None if self._progress.live is None else dict(self._progress.live)

    async def more(self) -> None:
        """Waits for the next entries or the end of the snapshot, and puts them in `items`; opens the watch first if
        needed. Raises the broker's errors and ConnectionLost. It may be called again after an error, a cancellation or
        an interrupt: an answer is removed when its items are there, and without a call, with which one could come."""
        while True:
            await self.open()
            while not self._arrived:
                if self._link.closed:  # nothing comes any more, not even that: in a process that was forked off
                    raise ConnectionLost(self._link.trouble)
                await self._news.wait()
                with self._link.runtime.lock:
                    if not self._arrived:
                        self._news = self._link.runtime.signal()
            with self._link.runtime.lock:
                arrived = self._arrived[0]
                if len(self._arrived) <= ROOM // 2:
                    self._link.resume()
            if self._closed:
                raise ConnectionLost("this watch is closed")
            if isinstance(arrived, messages.Watched):
                self._backoff.reset()
                self._check_topic(arrived.topic_id)
                new = self._progress.take(arrived) if arrived.more else []
                self.items = iter([new] if isinstance(new, SnapshotEnd) else new)
                del self._arrived[0]
                if new:
                    return
                continue
            del self._arrived[0]
            self._asked = False  # before the first wait, in which the caller may be cancelled
            if not arrived.retriable or self._link.closed:
                raise arrived
            await self._link.runtime.sleep(self._backoff.pause())

    def _check_topic(self, id: str | None) -> None:
        """Ends the watch and raises UnknownTopic when the name now belongs to another topic."""
        if id is not None and self._topic_id not in (None, id):
            self.close()
            raise UnknownTopic(f"the topic '{self._request.topic}' was deleted, and made anew")
        self._topic_id = id or self._topic_id

    async def _ask(self) -> None:
        self._progress.restart()
        live = self._progress.live
        if live is not None:
            self._request.offsets = list(live.items())
        self._request.tombstones = self._progress.tombstones
        deadline = self._link.runtime.now() + self._link.timeout
        while True:
            generation = await self._link.ready(deadline)
            with self._link.runtime.lock:
                self._asks += 1
                self._arrived.clear()
            try:
                reply = partial(self._answered, self._asks)
                self._link.post(self._request, messages.Watched, reply, generation)
                self._asked = True
                return
            except ConnectionLost:
                if self._link.closed or self._link.runtime.now() >= deadline:
                    raise

    def _answered(self, ask: int, result: Any) -> None:
        with self._link.runtime.lock:
            if ask != self._asks:
                return  # of a call that was interrupted, after which it was asked again
            self._arrived.append(result)
            if len(self._arrived) >= ROOM:
                self._link.pause()
            self._news.set()

    def close(self) -> None:
        """Ends the watch, and its connection."""
        self._closed = True
        self._link.close()
