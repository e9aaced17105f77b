"""Clients that work on a broker until it dies, and note their requests and its answers.

Each actor runs in a thread with a connection of its own, as long as the broker lives; it may go on with a broker that
was restarted. An actor hides nothing: it sends a request only once, unless the test is about an idempotent producer's
retries.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from random import Random
from typing import Any, NamedTuple

from krappy.errors import OffsetMismatch, OffsetOutOfRange, ShuttingDown, UnknownTopic
from krappy.partitioner import partition_for
from krappy.records import batch
from krappy.types import ABSENT
from krappy.wire import messages as m
from krappy.wire.messages import Request
from tests.crash.ledger import Event, Lane, PartitionLedger, headers_for
from tests.peer import Gone, Peer, unfold


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TopicSpec(NamedTuple):
    """A topic that lives as long as the data folder."""

    name: str
    config: dict[str, Any]
    partitions: int = 1
    keys: int = 20  # how many different keys its events have
    tombstones: float = 0.0  # the share of tombstones among its events
    keyless: float = 0.0  # the share of events without a key


class Book:
    """All that the clients know of a data folder's topics; it also numbers the lanes."""

    def __init__(self, moment: Callable[[], int] = lambda: 0) -> None:
        """`moment`: a clock, for tests that ask later what was known at a moment."""
        self.moment = moment
        self.partitions: dict[tuple[str, int], PartitionLedger] = {}
        self.specs: dict[str, TopicSpec] = {}
        self.open_lanes: set[int] = set()  # of producers that will send unacknowledged events again
        self._lock = threading.Lock()
        self._lanes = 0

    def add(self, spec: TopicSpec) -> None:
        self.specs[spec.name] = spec
        policy = spec.config.get("cleanup.policy", "delete")
        for partition in range(spec.partitions):
            self.partitions[spec.name, partition] = PartitionLedger(
                f"{spec.name}-{partition}",
                compact="compact" in policy,
                forgets="compact" in policy and spec.config.get("delete.retention.ms", 86_400_000) < 60_000,
                expires="delete" in policy and "retention.bytes" in spec.config,
            )

    def lane(self, ledger: PartitionLedger) -> Lane:
        with self._lock:
            self._lanes += 1
            return ledger.lane(self._lanes)


class Actor:
    """One client. `work` goes on until the connection ends. `settle` takes answers for which `work` did not wait."""

    def __init__(self, book: Book, random: Random) -> None:
        self.book = book
        self.random = random
        self.failure: BaseException | None = None
        self.acknowledged = 0
        self._thread: threading.Thread | None = None

    def start(self, address: str) -> None:
        self._thread = threading.Thread(target=self._run, args=[address], daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until it ends, after the broker has. Raises its error."""
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{type(self).__name__} did not notice that its broker is gone"
        if self.failure is not None:
            raise self.failure

    def _run(self, address: str) -> None:
        try:
            with Peer(address) as peer:
                try:
                    self.work(peer)
                except (Gone, ShuttingDown):
                    while True:  # reads the answers that were sent before the end
                        self.settle(*peer.receive())
        except Gone:
            pass
        except BaseException as error:
            self.failure = error

    def work(self, peer: Peer) -> None:
        raise NotImplementedError

    def settle(self, id: int, answer: object) -> None:
        """Takes an answer for which `work` did not wait. By default it does nothing."""


def _body(random: Random) -> bytes:
    return random.randbytes(random.choice([0, 5, 20, 100, 400]))


class Singles(Actor):
    """Sends Message after Message, many of them in flight at once."""

    def __init__(self, book: Book, random: Random, spec: TopicSpec) -> None:
        super().__init__(book, random)
        self.spec = spec
        self._waiting: dict[int, Event] = {}

    def work(self, peer: Peer) -> None:
        random, spec = self.random, self.spec
        self._waiting.clear()
        handle = peer.producer(spec.name).handle
        lanes = [self.book.lane(self.book.partitions[spec.name, index]) for index in range(spec.partitions)]
        window = random.choice([1, 10, 100])
        while True:
            requests = []
            events = []
            for _ in range(random.randint(1, 20)):
                partition = random.randrange(spec.partitions)
                event = self._event(lanes[partition])
                events.append(event)
                requests.append(
                    m.Message(
                        handle,
                        event.value,
                        event.key,
                        event.timestamp,
                        [(name, value) for name, value in headers_for(event)] or None,
                        partition,
                    )
                )
            first = peer._last + 1
            self._waiting.update(zip(range(first, first + len(events)), events, strict=True))
            peer.send(*requests)
            while len(self._waiting) > window:
                self.settle(*peer.receive())

    def _event(self, lane: Lane) -> Event:
        random, spec = self.random, self.spec
        key = None if random.random() < spec.keyless else b"k%d" % random.randrange(spec.keys)
        deletes = key is not None and random.random() < spec.tombstones
        return lane.event(key, None if deletes else _body(random), now_ms())

    def settle(self, id: int, answer: object) -> None:
        event = self._waiting.pop(id, None)
        if event is None:
            return
        if isinstance(answer, m.MessageStored):
            event.stored(answer.offset, self.book.moment())
            self.acknowledged += 1
            assert answer.timestamp == event.timestamp
        else:
            assert isinstance(answer, ShuttingDown), f"a Message was refused: {answer!r}"
            event.refused = answer.name


class _Flight(NamedTuple):
    partition: int
    data: bytes
    events: list[Event]


class Batches(Actor):
    """An idempotent producer: it sends unacknowledged batches again, also after a restart, byte for byte."""

    def __init__(self, book: Book, random: Random, spec: TopicSpec) -> None:
        super().__init__(book, random)
        self.spec = spec
        self.id, self.epoch = -1, -1
        self.lanes = [book.lane(book.partitions[spec.name, index]) for index in range(spec.partitions)]
        book.open_lanes.update(lane.number for lane in self.lanes)
        self._sequences = [0] * spec.partitions
        self._pending: list[deque[_Flight]] = [deque() for _ in range(spec.partitions)]
        self._ids: dict[int, _Flight] = {}

    def work(self, peer: Peer) -> None:
        random, spec = self.random, self.spec
        self._ids.clear()
        registered = peer.producer(spec.name, idempotent=True, producer_id=self.id, producer_epoch=self.epoch)
        assert self.id in (-1, registered.producer_id), "the producer id was not kept"
        self.id, self.epoch = registered.producer_id, registered.producer_epoch
        handle = registered.handle
        for flights in self._pending:
            for flight in flights:
                self._send(peer, handle, flight)
        while True:
            partition = random.randrange(spec.partitions)
            while len(self._pending[partition]) >= 5:
                self.settle(*peer.receive())
            flight = self._batch(partition)
            self._pending[partition].append(flight)
            self._send(peer, handle, flight)
            if random.random() < 0.1:  # the same batch again, as if an answer was lost
                self._send(peer, handle, random.choice(self._pending[partition]))

    def _batch(self, partition: int) -> _Flight:
        random, spec, lane = self.random, self.spec, self.lanes[partition]
        events = []
        for _ in range(random.choice([1, 3, 30])):
            key = None if random.random() < spec.keyless else b"k%d" % random.randrange(spec.keys)
            deletes = key is not None and random.random() < spec.tombstones
            events.append(lane.event(key, None if deletes else _body(random), now_ms()))
        data = batch.encode(
            [event.key for event in events],
            [event.value for event in events],
            timestamps=[event.timestamp for event in events],
            headers=[headers_for(event) for event in events],
            codec=random.choice([0, 0, 1, 2, 3, 4]),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences[partition],
        )
        self._sequences[partition] += len(events)
        return _Flight(partition, data, events)

    def _send(self, peer: Peer, handle: int, flight: _Flight) -> None:
        self._ids[peer._last + 1] = flight
        peer.send(m.Batch(handle, flight.partition, flight.data))

    def settle(self, id: int, answer: object) -> None:
        flight = self._ids.pop(id, None)
        if flight is None:
            return
        if isinstance(answer, ShuttingDown):
            return  # still pending
        assert isinstance(answer, m.BatchStored), f"a Batch was refused: {answer!r}"
        moment = self.book.moment()
        for index, event in enumerate(flight.events):
            assert event.offset in (None, answer.offset + index), (
                f"a batch was acknowledged at {event.offset}, and sent again at {answer.offset + index}"
            )
            event.stored(answer.offset + index, moment)
        self.acknowledged += len(flight.events)
        pending = self._pending[flight.partition]
        if flight in pending:
            pending.remove(flight)


class Conditional(Actor):
    """Reads a key, and writes it on condition that it has not changed; others do the same with the same keys."""

    def __init__(self, book: Book, random: Random, spec: TopicSpec) -> None:
        super().__init__(book, random)
        self.spec = spec

    def work(self, peer: Peer) -> None:
        random, spec = self.random, self.spec
        handle = peer.producer(spec.name).handle
        lanes = [self.book.lane(self.book.partitions[spec.name, index]) for index in range(spec.partitions)]
        written: dict[bytes, int] = {}
        while True:
            key = b"c%d" % random.randrange(spec.keys)
            partition = partition_for(key, spec.partitions)
            entry = peer.get(spec.name, key, random.choice([None, partition]))
            assert key not in written or (entry and entry[0] >= written[key]), f"{key!r} went back to {entry}"
            expected = entry[0] if entry else ABSENT
            if entry and entry[2] is None and random.random() < 0.5:
                expected = ABSENT  # a deleted key counts as absent, too
            lane = lanes[partition]
            event = lane.event(key, None if random.random() < 0.2 else _body(random), now_ms())
            event.expected = expected
            try:
                if random.random() < 0.5:
                    headers = [(name, value) for name, value in headers_for(event)] or None
                    offset = peer.ask(
                        m.Message(handle, event.value, key, event.timestamp, headers, None, expected), m.MessageStored
                    ).offset
                else:
                    data = batch.encode([key], [event.value], timestamps=event.timestamp, headers=[headers_for(event)])
                    offset = peer.ask(m.Batch(handle, partition, data, [(0, expected)]), m.BatchStored).offset
            except OffsetMismatch as error:
                event.refused = error.name
                if error.current == expected:
                    raise AssertionError(f"refused though {key!r} is at {expected}") from None
            except ShuttingDown as error:
                event.refused = error.name
                raise
            else:
                written[key] = offset
                event.stored(offset, self.book.moment())
                self.acknowledged += 1


class Tailer(Actor):
    """Reads committed events as they come. They must still be there after a crash."""

    def __init__(self, book: Book, random: Random, spec: TopicSpec) -> None:
        super().__init__(book, random)
        self.spec = spec

    def work(self, peer: Peer) -> None:
        spec = self.spec
        while True:
            consumer = peer.ask(m.ConsumerRegistration([spec.name], start="latest"), m.ConsumerRegistered)
            try:
                while True:
                    polled = peer.ask(m.Poll(consumer.handle, self.random.choice([1, 500]), max_wait=100), m.Polled)
                    moment = self.book.moment()
                    for _, partition, first, _, data in polled.parts:
                        self.book.partitions[spec.name, partition].saw(unfold(data, first)[0], moment)
            except OffsetOutOfRange:
                assert self.book.partitions[spec.name, 0].expires, "events went away without retention"


class _Incarnation(NamedTuple):
    """One life of a name that is created and deleted again and again."""

    ledgers: list[PartitionLedger]


class _Change(NamedTuple):
    """A change of a name. `made` None: it was deleted. `asked`, `answered`: moments by the book's clock."""

    name: str
    made: _Incarnation | None
    asked: int
    answered: int


class Topics(Actor):
    """Creates and deletes topics, and publishes a little to each."""

    def __init__(self, book: Book, random: Random, prefix: str) -> None:
        super().__init__(book, random)
        self.names = [f"{prefix}{number}" for number in range(4)]
        self.there: dict[str, _Incarnation] = {}
        self._pending: tuple[str, _Incarnation | None] | None = None  # the name and outcome of an unanswered request
        self._changes: list[_Change] = []

    def work(self, peer: Peer) -> None:
        random = self.random
        while True:
            name = random.choice(self.names)
            held = self.there.get(name)
            if held is None:
                ledgers = [PartitionLedger(f"{name}-{index}") for index in range(random.randint(1, 3))]
                request = m.CreateTopic(name, len(ledgers), {"segment.bytes": 500})
                self._change(peer, name, _Incarnation(ledgers), request, m.TopicCreated)
            elif random.random() < 0.4:
                self._change(peer, name, None, m.DeleteTopic(name), m.TopicDeleted)
            else:
                self._publish(peer, name, held)
            self.acknowledged += 1

    def _change(self, peer: Peer, name: str, made: _Incarnation | None, request: Request, kind: type[object]) -> None:
        self._pending = (name, made)
        asked = self.book.moment()
        self._changes.append(_Change(name, made, asked, sys.maxsize))
        peer.ask(request, kind)
        self._changes[-1] = _Change(name, made, asked, self.book.moment())
        self._pending = None
        if made is None:
            del self.there[name]
        else:
            self.there[name] = made

    def as_of(self, moment: int) -> Topics:
        """A copy with what was known at that moment, to be checked."""
        known = copy(self)
        known.there, known._pending = {}, None
        for name, made, asked, answered in self._changes:
            then = made and _Incarnation([ledger.as_of(moment) for ledger in made.ledgers])
            if answered > moment:
                known._pending = (name, then) if asked <= moment else None
                break
            if then is None:
                del known.there[name]
            else:
                known.there[name] = then
        return known

    def _publish(self, peer: Peer, name: str, held: _Incarnation) -> None:
        handle = peer.producer(name).handle
        lanes = [self.book.lane(ledger) for ledger in held.ledgers]
        for _ in range(self.random.randint(1, 8)):
            partition = self.random.randrange(len(lanes))
            event = lanes[partition].event(b"t%d" % self.random.randrange(5), _body(self.random), now_ms())
            request = m.Message(handle, event.value, event.key, event.timestamp, None, partition)
            event.stored(peer.ask(request, m.MessageStored).offset, self.book.moment())
        peer.ask(m.Unregister(handle), m.Unregistered)

    def check(self, peer: Peer) -> None:
        """Checks after a restart that each name exists, or not, as before, and has only events that were sent to its
        present topic."""
        actual = peer.topics()
        for name in self.names:
            exists = name in actual
            if self._pending is not None and self._pending[0] == name:
                after = self._pending[1]
                self._pending = None
                if exists != (name in self.there):
                    if after is None:
                        del self.there[name]
                    else:
                        self.there[name] = after
            assert exists == (name in self.there), f"topic {name}: {exists=}, acknowledged was the other"
            if exists:
                held = self.there[name]
                assert len(actual[name]["partitions"]) == len(held.ledgers), f"{name}: {actual[name]}"
                for index, ledger in enumerate(held.ledgers):
                    log, start, end = peer.read_log(name, index)
                    ledger.check(log, start, end)
                    ledger.settle(log, set())
            else:
                try:
                    peer.describe(name)
                except UnknownTopic:
                    continue
                raise AssertionError(f"{name} is not listed, and yet there")
