"""A watch that survives its connections: a table as it is, then every change to it, without gaps or duplicates.

After a lost connection it goes on from the offsets that have arrived, if the topic is the same. If the topic was
deleted, or another one has its name, the watch ends with UnknownTopic.

It consists of parts. While the cluster has one broker there is one part, of all partitions. Of several brokers each
leader has a part, of the partitions that it leads. When a part ends, because its connection was lost or a partition has
another leader now, its partitions are without a part until their leaders are known; then they go on where they were, in
new parts. The changes of parts whose snapshot is complete wait until those of all are: then the snapshot ends.

While the topic may have strays, an event of one part may be older than what another part has told of its key: see
newest_changes.py.

Each part has its own connection, which is not read while the caller is behind. Then the broker holds back, so no buffer
grows without bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from krappy.clients.backoff import Backoff
from krappy.clients.link import Link
from krappy.clients.newest_changes import judged
from krappy.clients.refusals import pause_before
from krappy.clients.router import Router
from krappy.clients.scattering import check_in_place
from krappy.clients.tables import KeyRangeChoice, entries
from krappy.clients.values import Address
from krappy.clients.watch_progress import Piece, Progress, SnapshotEnd
from krappy.errors import (
    ConnectionLost,
    KrappyError,
    NotLeader,
    ShuttingDown,
    UnknownPartition,
    UnknownTopic,
)
from krappy.types import Entry
from krappy.wire import messages

ROOM = 8  # so many answers of a part may wait for the caller; then its connection is not read until it has taken some
CONNECTING = 5.0  # seconds that a leader has to accept a part's connection
LOOKING = 0.2  # seconds between two looks for the leaders of some partitions, while others are watched
REFRESH = 60.0  # seconds between two checks for new partitions; a single broker does that itself


class WatchPart:
    """The watch of some partitions at one broker (`request.partitions` None: all). `arrived`: answers that the caller
    has not taken."""

    def __init__(
        self,
        link: Link,
        request: messages.Watch,
        tombstones: bool,
        pieces: Mapping[int, Piece],
        news: Callable[[], None],
    ) -> None:
        self.link = link
        self.request = request
        self.progress = Progress(tombstones, pieces)
        self.arrived: deque[messages.Watched | KrappyError] = deque()
        self.asked = False  # the broker was asked, and has not ended the stream
        self._news = news
        self._asks = 0

    def ask(self, generation: int) -> None:
        """Raises ConnectionLost."""
        self.progress.restart()
        live = self.progress.live
        if live is not None:
            self.request.offsets = list(live.items())
            self.request.epochs = list(self.progress.epochs.items()) or None
        self.request.tombstones = self.progress.tombstones
        with self.link.runtime.lock:
            self._asks += 1
            self.arrived.clear()
            self.link.resume()  # it may have stopped reading when those had arrived
        self.link.post(self.request, messages.Watched, partial(self._answered, self._asks), generation)
        self.asked = True

    def _answered(self, ask: int, result: Any) -> None:
        with self.link.runtime.lock:
            if ask != self._asks:
                return  # of a call that was interrupted, after which it was asked again
            if isinstance(result, messages.Watched) and not result.more:  # a broker that stops closes it
                result = ShuttingDown("the broker has ended the watch")
            self.arrived.append(result)
            if len(self.arrived) >= ROOM:
                self.link.pause()
            self._news()

    def pieces(self, partitions: Sequence[int]) -> dict[int, Piece]:
        return {each: self.progress.piece(each) for each in partitions}


class Watching:
    """`open_link` makes a connection to the first of some addresses that answers; of the client's if there are none."""

    def __init__(
        self,
        router: Router,
        open_link: Callable[[Sequence[Address]], Link],
        topic: str,
        chosen: KeyRangeChoice,
        partitions: Sequence[int] | None,
        tombstones: bool,
        offsets: Mapping[int, int] | None = None,
        refresh: float = REFRESH,
        progress: bool = False,
    ) -> None:
        """`offsets`: where it goes on, by partition, without a snapshot; only of several brokers. `refresh`: seconds
        between two checks for new partitions. `progress`: `more` returns also when only `offsets` have moved."""
        self._router = router
        self._begins = offsets
        self._runtime = router.runtime
        self._open_link = open_link
        self._topic, self._chosen, self._tombstones = topic, chosen, tombstones
        self._some = None if partitions is None else list(partitions)
        self.items: Iterator[Entry | SnapshotEnd] = iter(())  # to be handed out
        self._parts: list[WatchPart] = []
        self._without: dict[int, Piece] = {}  # partitions without a part
        self._spread = False  # there is a part for each leader, instead of one for all
        self._told = offsets is not None  # the end of the snapshot was handed out
        self._news = self._runtime.signal()
        self._backoff = Backoff()
        self._missed = 0.0  # since when some partitions have been without a part, while others were watched
        self._progress = progress
        self._each, self._refresh = refresh, 0.0  # seconds between two checks, and when the next is due
        self._closed = False
        self._topic_id: str | None = None  # None: not known yet
        self._scattered = False  # whether the topic may have strays; it stays so
        self._whole = partitions is None  # whether all partitions are watched that the topic had at the beginning

    def _tell(self) -> None:
        self._news.set()

    async def open(self) -> None:
        """Connects and asks, unless that is done. A cancelled caller may call it again. Raises ConnectionLost; the
        broker's errors come from `more`."""
        if self._closed:
            raise ConnectionLost("this watch is closed")
        if self._router.closed:
            raise ConnectionLost(self._router.trouble)
        if self._router.known.several and not self._spread:
            await self._divide()
        if self._spread:
            await self._place()
        else:
            await self._open_alone()

    async def _open_alone(self) -> None:
        if not self._parts:
            self._parts = [self._part(self._open_link(()), self._some, {})]
        [part] = self._parts
        part.link.begin()
        deadline = self._runtime.now() + self._router.timeout
        while not part.asked:
            generation = await part.link.ready(deadline)
            try:
                part.ask(generation)
            except ConnectionLost:
                if part.link.closed or self._runtime.now() >= deadline:
                    raise

    def _part(self, link: Link, partitions: list[int] | None, pieces: Mapping[int, Piece]) -> WatchPart:
        chosen = self._chosen
        request = messages.Watch(self._topic, chosen.prefix, chosen.start, chosen.end, partitions, self._tombstones)
        return WatchPart(link, request, self._tombstones, pieces, self._tell)

    @property
    def offsets(self) -> dict[int, int] | None:
        """By partition, the offset after the last event received; None while the snapshot is incomplete."""
        if not self._told:
            return None
        found = {partition: piece.live or 0 for partition, piece in self._without.items()}
        for part in self._parts:
            found |= part.progress.live or {}
        return dict(sorted(found.items()))

    async def more(self) -> None:
        """Waits for the next entries or the end of the snapshot, and puts them in `items`; opens the watch first if
        needed. Raises the broker's errors and ConnectionLost. It may be called again after an error, a cancellation or
        an interrupt: an answer is removed when its items are there, and without a call, because an interrupt could come
        with one."""
        while True:
            await self.open()
            with self._runtime.lock:
                if self._news.is_set():
                    self._news = self._runtime.signal()
                news = self._news
                part = self._next()
            if part is None:
                if any(each.link.closed for each in self._parts) or self._router.closed:
                    # Nothing comes any more, not even this error: so it is in a process that was forked off.
                    raise ConnectionLost(self._router.trouble)
                await news.wait(LOOKING if self._without else self._each if self._spread else None)
                continue
            with self._runtime.lock:
                arrived = part.arrived[0]
                if len(part.arrived) <= ROOM // 2:
                    part.link.resume()
            if self._closed:
                raise ConnectionLost("this watch is closed")
            if isinstance(arrived, messages.Watched):
                self._backoff.reset()
                self._check_topic(arrived.topic_id)
                instead = await self._judged(arrived)
                new = part.progress.take(arrived)
                if isinstance(new, SnapshotEnd):
                    self.items = iter(self._end_of_snapshot())
                else:
                    if instead:
                        new = [each for entry in new if (each := instead.get(entry.offset, entry)) is not None]
                    self.items = iter(new)
                del part.arrived[0]
                if (new or self._progress) and (self._told or not isinstance(new, SnapshotEnd)):
                    return
                continue
            del part.arrived[0]
            part.asked = False  # before the first wait, in which the caller may be cancelled
            await self._ended(part, arrived)

    async def _judged(self, arrived: messages.Watched) -> dict[int, Entry | None]:
        """By offset, what is handed out for each event of an answer (newest_changes.py); empty: the events."""
        self._scattered = self._scattered or arrived.scattered
        if not (self._scattered and self._spread and self._whole):
            return {}
        found = entries(arrived.partition, arrived.entries)
        return await judged(self._router, self._topic, found, self.offsets or {}, self._some)

    def _next(self) -> WatchPart | None:
        """A part whose answer is to be taken: before the end of the snapshot none with changes; then in turns."""
        for at, part in enumerate(self._parts):
            if part.arrived and (self._told or not _has_changes(part.arrived[0])):
                if self._told and len(self._parts) > 1:
                    self._parts = [*self._parts[:at], *self._parts[at + 1 :], part]
                return part
        return None

    def _end_of_snapshot(self) -> list[Entry | SnapshotEnd]:
        """The end of the snapshot, if the last part has come to it. It is given once, but again if an interrupt came
        with it."""
        if self._without or any(part.progress.live is None for part in self._parts):
            return []
        self._told = True
        return [SnapshotEnd(self.offsets or {})]

    def _check_topic(self, id: str | None) -> None:
        """Ends the watch and raises UnknownTopic when the name now belongs to another topic."""
        if id is not None and self._topic_id not in (None, id):
            self.close()
            raise UnknownTopic(f"the topic '{self._topic}' was deleted, and made anew")
        self._topic_id = id or self._topic_id

    async def _ended(self, part: WatchPart, error: KrappyError) -> None:
        """Prepares that a part's partitions are asked for again. Raises the error if that would be in vain."""
        self._router.note(error)
        if self._spread:
            if self._router.closed:
                raise error
            if isinstance(error, UnknownTopic | UnknownPartition):
                until = self._runtime.now() + self._router.timeout
                await self._router.look_again(self._topic, error, self._backoff, until)
            elif not error.retriable:
                raise error
            self._dissolve(part)
        elif not error.retriable or part.link.closed:
            raise error
        elif not (isinstance(error, NotLeader) and self._router.known.several):
            await self._runtime.sleep(pause_before(error, self._backoff))

    # --- several leaders ----------------------------------------------------------------------------------------

    # An interrupt may come between any two statements, and then the next call begins anew. So nothing is removed before
    # it stands where it goes, and what may have been done before is done again.

    def _dissolve(self, part: WatchPart) -> None:
        part.link.close()
        with self._runtime.lock:
            self._without |= part.pieces(part.request.partitions or ())
            self._parts = [each for each in self._parts if each is not part]

    def _tidy(self) -> None:
        """Finishes what an interrupted call has left half done: parts that ended, and parts that were just made."""
        for part in self._parts:
            if not part.asked:
                self._dissolve(part)
        with self._runtime.lock:
            for part in self._parts:
                for each in part.request.partitions or ():
                    self._without.pop(each, None)

    async def _divide(self) -> None:
        """From now on there is a part for each leader."""
        deadline = self._runtime.now() + self._router.timeout
        if self._begins is None:
            await check_in_place(self._router, self._topic, deadline)  # so it is known how many partitions there are
        else:  # without a snapshot, each event is judged
            await self._router.learning.refresh([self._topic], deadline)
        count = len((await self._router.learning.topic(self._topic, deadline)).partitions)
        every = list(range(count)) if self._some is None else self._some
        self._whole = len(set(every)) == count
        self._refresh = self._runtime.now() + self._each
        if not self._parts and not self._without:
            begins = self._begins
            self._without = {each: Piece() if begins is None else Piece(begins.get(each, 0)) for each in every}
        for part in list(self._parts):
            part.request.partitions = every
            self._dissolve(part)
        self._spread = True

    async def _place(self) -> None:
        """Makes parts for the partitions that have none. Raises why one still has none, after the client's timeout."""
        self._tidy()
        await self._look_for_partitions()
        until = self._runtime.now() + self._router.timeout
        while self._without:
            missing = await self._place_some()
            if missing is None:
                break
            if self._parts:
                self._missed = self._missed or self._runtime.now()
                until = self._missed + self._router.timeout
            await self._router.look_again(self._topic, missing, self._backoff, until)
            if self._parts:
                return
        self._missed = 0.0

    async def _place_some(self) -> KrappyError | None:
        """Makes parts for partitions whose leaders are known and answer. Returns why one could not be made."""
        missing: KrappyError | None = None
        wanted: dict[tuple[Address, int, bool], list[int]] = {}
        for index, piece in sorted(self._without.items()):
            await self._router.learning.topic(self._topic, self._runtime.now() + self._router.timeout)
            broker = self._router.known.leader(self._topic, index)
            if broker is None or broker.address is None:
                missing = NotLeader(f"{self._topic}-{index}: no broker leads it now")
            else:
                wanted.setdefault((broker.address, broker.id, piece.live is not None), []).append(index)
        for (address, id, _), some in wanted.items():
            link = self._open_link([address])
            self._router.watch(link, id)
            part = self._part(link, some, {each: self._without[each] for each in some})
            try:
                await link.open(CONNECTING)
                part.ask(link.generation)
            except BaseException as error:
                link.close()
                if not isinstance(error, ConnectionLost) or self._router.closed:
                    raise
                missing = error
            else:
                with self._runtime.lock:
                    self._parts.append(part)
                    for each in some:
                        del self._without[each]
                if self._closed:
                    link.close()
        return missing

    async def _look_for_partitions(self) -> None:
        """Takes up partitions that were added since: all their events are new."""
        now = self._runtime.now()
        if self._some is not None or not self._told or now < self._refresh:
            return
        self._refresh = now + self._each
        await self._router.learning.refresh([self._topic], now + self._router.timeout)
        found = self._router.known.topics.get(self._topic)
        there = self.offsets or {}
        for index in range(0 if found is None else len(found.partitions)):
            if index not in there:
                self._scattered = True
                self._without[index] = Piece(0)

    def abandon(self) -> None:
        """As `close`, for a finalizer (see `ClientRuntime.if_free`)."""
        self._closed = True
        for part in list(self._parts):
            part.link.abandon()
        self._news.set()

    def close(self) -> None:
        """Ends the watch, and its connections."""
        self._closed = True
        for part in list(self._parts):
            part.link.close()
        self._news.set()


def _has_changes(answer: messages.Watched | KrappyError) -> bool:
    return isinstance(answer, messages.Watched) and answer.event == "changes"
