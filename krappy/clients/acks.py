"""The acks of a group's member, which are noted at once and sent together.

An ack is sent with others after LINGER, before the member's next poll, and when it leaves. It is sent again after a
lost connection, under the member's new name: the broker accepts a late ack for events that no other member got in the
meantime. An ack for an event that another member has by now does nothing, since that member acknowledges it. Each names
the leader epoch of its events: after an unclean election other events may have their offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from krappy.clients import events
from krappy.clients.backoff import Backoff
from krappy.clients.events import EventBatch
from krappy.clients.link import Link
from krappy.errors import ConnectionLost, KrappyError, LeaseLost, NotCoordinator, RequestTimeout, UnknownHandle
from krappy.types import Event
from krappy.wire import messages

LINGER = 0.005  # seconds for which an ack waits for others
MOST = 1000  # runs of events in one request
Acknowledged = Event | EventBatch | Iterable[Event]
Place = tuple[str, int, int]  # topic, partition, leader epoch
_PLACE, _OFFSET = itemgetter(0, 1, 8), itemgetter(2)  # of an event
Run = tuple[str, int, int, int]  # topic, partition, first offset, last offset: both inclusive
EpochRun = tuple[Run, int]  # and the leader epoch of these events; -1: it is not known


class Acks:
    """`registered`: registers the consumer if necessary, until a deadline, and returns (its handle, the generation of
    the connection on which it is registered). `outdated`: told when that broker does not know the registration any
    more."""

    def __init__(
        self, link: Link, registered: Callable[[float], Awaitable[tuple[int, int]]], outdated: Callable[[], None]
    ) -> None:
        self._link = link
        self._outdated = outdated
        self.names_epochs = False  # whether the broker takes leader epochs in an Ack
        self._runtime = link.runtime
        self._registered = registered
        # Offsets that were noted, and not sent yet. Not the events: they would live on, and Python's garbage collector
        # would go through them. A list is never replaced: another thread may be about to note in it.
        self._offsets: dict[Place, list[int]] = {}
        self._last: tuple[Place, list[int]] = (("", 0, 0), [])  # the place that was noted last
        self._runs: list[EpochRun] = []  # noted, for batches and for several events at once
        self._left: dict[int, list[EpochRun]] = {}  # parts of at most MOST runs, to be sent; they are numbered as noted
        self._under_way: dict[int, list[EpochRun]] = {}  # parts that were sent, and are not confirmed yet
        self._numbers = itertools.count()
        self._moved = self._runtime.signal()  # set when something under way is answered
        self._refused: KrappyError | None = None  # why acks were given up
        self._trouble: KrappyError | None = None  # the last answer, if it is an error after which it is tried again
        self._wanted = self._runtime.signal()
        self._woken = False
        self._begun = self._closed = False

    def move(self, link: Link) -> None:
        """From now on acks go over this link: another broker coordinates the group."""
        with self._runtime.lock:
            self._link.told_of_closing.discard(self._end)
            self._link = link
            if self._begun and not self._closed:
                link.told_of_closing.add(self._end)

    def note(self, acknowledged: Acknowledged) -> None:
        """Raises the error for which earlier acks were given up, and ConnectionLost when nothing is sent any more."""
        if self._refused is not None:
            self.check()
        if isinstance(acknowledged, Event):
            place, offsets = self._last
            if _PLACE(acknowledged) != place:
                offsets = self._at(_PLACE(acknowledged))
            offsets.append(acknowledged.offset)
        else:
            with self._runtime.lock:
                self._runs += runs(acknowledged)
        if self._closed or self._link.closed:
            raise ConnectionLost(self._link.trouble if self._link.closed else "this consumer is closed")
        if not self._woken:
            self._wake()

    def _at(self, place: Place) -> list[int]:
        with self._runtime.lock:
            offsets = self._offsets.setdefault(place, [])
            self._last = place, offsets
        return offsets

    def check(self) -> None:
        """Raises, once, the error for which acks were given up: their events will be delivered again."""
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _wake(self) -> None:
        with self._runtime.lock:
            self._wanted.set()
            if not self._begun and not self._closed:
                self._link.told_of_closing.add(self._end)
                self._runtime.spawn(self._run, "krappy acks")
                self._begun = True
            self._woken = True  # last: after an interrupt the next ack does all of this again

    async def _run(self) -> None:
        while not self._closed:
            await self._wanted.wait()
            await self._runtime.sleep(LINGER)
            with self._runtime.lock:
                if self._wanted.is_set():  # else a second task, begun after an interrupt of `_wake`, waits for it
                    self._wanted = self._runtime.signal()
                self._woken = False
            try:
                await self.finish(self._runtime.now() + self._link.timeout)
            except KrappyError as error:
                with self._runtime.lock:
                    if not self._closed:
                        for offsets in self._offsets.values():
                            offsets.clear()
                        self._runs, self._left, self._under_way = [], {}, {}
                        self._refused = self._refused or error

    def close(self) -> None:
        """Ends the task that sends: what was noted by now can still be sent, and no more is noted."""
        with self._runtime.lock:
            self._end()
            self._link.told_of_closing.discard(self._end)

    def _end(self) -> None:
        with self._runtime.lock:
            self._closed = True
            self._wanted.set()
            self._moved.set()

    async def finish(self, deadline: float) -> None:
        """Returns when everything noted by now is durable, or was given up (`check` tells why). Raises ConnectionLost,
        what the broker said last, RequestTimeout, and why the consumer can't be registered."""
        backoff = Backoff(lambda: 1.0)
        with self._runtime.lock:
            self._divide()
            end = next(self._numbers)  # the program may go on to note acks: the parts from here on are not waited for
        while True:
            with self._runtime.lock:
                if self._moved.is_set():
                    self._moved = self._runtime.signal()
                moved = self._moved
                under_way, left = (min(parts, default=end) < end for parts in (self._under_way, self._left))
            if not under_way and not left:
                return
            if self._closed or self._link.closed:
                raise ConnectionLost(self._link.trouble)
            seconds = deadline - self._runtime.now()
            if seconds <= 0:
                text = f"no answer to Ack in {self._link.timeout:g} s"
                raise self._trouble or RequestTimeout(text, address=str(self._link.address))
            if under_way:
                await moved.wait(seconds)
                continue
            if self._trouble is not None:
                await self._runtime.sleep(min(backoff.pause(), seconds))
            registered = await self._registered(deadline)
            self.send(*registered, max(0.0, deadline - self._runtime.now()))

    def _divide(self) -> None:
        """Divides what was noted into parts. Call it with the lock."""
        for place, offsets in self._offsets.items():
            count = len(offsets)
            if count:
                self._runs += _runs(place, offsets[:count])
                del offsets[:count]
        while self._runs:
            self._left[next(self._numbers)] = self._runs[:MOST]
            del self._runs[:MOST]

    def send(self, handle: int, generation: int, patience: float) -> None:
        """Sends what was noted. What can't be sent now, within `patience` seconds for each request, stays noted."""
        with self._runtime.lock:
            self._divide()
            numbers = sorted(self._left)
        for number in numbers:
            if not self._post(number, handle, generation, patience):
                return

    def _post(self, number: int, handle: int, generation: int, patience: float) -> bool:
        """Sends one part. Returns False when it could not be sent."""

        def answered(result: Any) -> None:
            with self._runtime.lock:
                part = self._under_way.pop(number, None)
                if part is None:
                    return
                again = isinstance(result, ConnectionLost | UnknownHandle | NotCoordinator)
                if isinstance(result, NotCoordinator):
                    self._outdated()
                refused = isinstance(result, KrappyError) and not isinstance(result, LeaseLost)
                self._trouble = result if refused and result.retriable and not again else None
                if again or self._trouble is not None:
                    self._left[number] = part
                elif refused:
                    self._refused = result
                self._moved.set()

        try:
            with self._runtime.lock:
                if number not in self._left:  # another thread was faster
                    return True
                part = self._under_way[number] = self._left[number]
                del self._left[number]
            request = ack_of(handle, part, self.names_epochs)
            self._link.post(request, messages.Acked, answered, generation, patience)
        except BaseException as error:  # also a signal's: then the part is sent again
            answered(ConnectionLost(str(error)))
            if not isinstance(error, ConnectionLost | RequestTimeout):
                raise
            return False
        return True


def runs(acknowledged: Acknowledged) -> list[EpochRun]:
    """The events as runs of offsets without a gap."""
    if isinstance(acknowledged, EventBatch):
        batch = acknowledged
        return [((batch.topic, batch.partition, *span), batch.leader_epoch) for span in batch.spans()]
    if isinstance(acknowledged, Event):
        event = acknowledged
        return [((event.topic, event.partition, event.offset, event.offset), event.leader_epoch)]
    offsets: dict[Place, list[int]] = {}
    for place, some in groupby(acknowledged, _PLACE):
        offsets.setdefault(place, []).extend(map(_OFFSET, some))
    return [run for place, each in sorted(offsets.items()) for run in _runs(place, each)]


def _runs(place: Place, offsets: list[int]) -> list[EpochRun]:
    topic, partition, epoch = place
    return [((topic, partition, *span), epoch) for span in events.spans(sorted(set(offsets)))]


def ack_of(handle: int, some: Iterable[EpochRun], names_epochs: bool) -> messages.Ack:
    """An Ack of these runs. Without `names_epochs` it has no such field: brokers of earlier versions do not know it."""
    ranges, epochs = [], []
    for run, epoch in some:
        ranges.append(run)
        epochs.append(epoch)
    request = messages.Ack(handle, ranges, epochs)
    if not names_epochs:
        del request.epochs
    return request
