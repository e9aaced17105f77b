"""A well-behaved client that works beside hostile ones, and fails the test when it is disturbed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from krappy.records import batch
from krappy.wire import messages as m
from tests.peer import Peer, unfold
from tests.process import PATIENCE, BrokerProcess, wait_until

TOPIC = "neighbour"
KEYS = 50


class Neighbour:
    """In each round it publishes an event, looks it up and reads it back; in some rounds it also sends a large batch.
    It checks every answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0
        self.slowest = 0.0  # seconds of the slowest round, to be printed
        self.failure: BaseException | None = None
        self._thread.start()

    def __call__(self, rounds: int) -> None:
        """Returns when it has done `rounds` more rounds, which shows that the broker still serves it. Fails if it was
        disturbed."""
        before = self.rounds
        wait_until(
            lambda: self.rounds >= before + rounds or self.failure is not None or not self._thread.is_alive(),
            f"{rounds} more rounds of a well-behaved client (it did {self.rounds - before})",
        )
        if self.failure is not None:
            raise AssertionError("a well-behaved client was disturbed") from self.failure

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a well-behaved client got no answer"
        if self.failure is not None:
            raise AssertionError("a well-behaved client was disturbed") from self.failure

    def _run(self) -> None:
        try:
            with Peer(self._address) as peer:
                producer = peer.producer(TOPIC).handle
                consumer = peer.ask(m.ConsumerRegistration([TOPIC], start="latest"), m.ConsumerRegistered).handle
                while not self._stop.is_set():
                    begun = time.monotonic()
                    self._round(peer, producer, consumer)
                    self.slowest = max(self.slowest, time.monotonic() - begun)
                    self.rounds += 1
        except BaseException as error:
            self.failure = error

    def _round(self, peer: Peer, producer: int, consumer: int) -> None:
        number = self.rounds
        key, value = b"n%d" % (number % KEYS), b"%d" % number
        stored = peer.ask(m.Message(producer, value, key), m.MessageStored)
        entry = peer.get(TOPIC, key)
        assert entry is not None, "the table does not have what was just written"
        assert entry[0] == stored.offset
        assert entry[2] == value
        sent = 1
        if number % 5 == 0:  # a frame that the broker gathers in a buffer of its own
            values = [b"x" * 1000] * 200
            data = batch.encode([b"large"] * len(values), values, timestamps=1)
            assert peer.ask(m.Batch(producer, 0, data), m.BatchStored).offset == stored.offset + 1
            sent += len(values)
        got = 0
        while got < sent:
            parts = peer.ask(m.Poll(consumer, max_wait=10_000), m.Polled).parts
            assert parts, "a waiting poll was answered with nothing"
            for _, _, first, _, data in parts:
                got += len(unfold(data, first)[0])
        assert got == sent
        if number % 7 == 0:
            assert len(peer.scan(TOPIC, prefix=b"n")) == min(number + 1, KEYS)
        peer.ask(m.Ping(), m.Pong)


@contextmanager
def neighbour(broker: BrokerProcess) -> Iterator[Neighbour]:
    """A neighbour that works while the `with` runs. Its topic is made anew."""
    with Peer(broker.address) as peer:
        if TOPIC in peer.topics():
            peer.ask(m.DeleteTopic(TOPIC), m.TopicDeleted)
        peer.ask(m.CreateTopic(TOPIC, 1, {"segment.bytes": 1 << 20, "retention.bytes": 4 << 20}), m.TopicCreated)
    beside = Neighbour(broker.address)
    try:
        beside(3)
        yield beside
    finally:
        beside.close()


@contextmanager
def undisturbed(broker: BrokerProcess, rounds: int = 5) -> Iterator[Neighbour]:
    """A neighbour that must still be served at the end, for `rounds` more rounds. After it, no more sockets may be open
    than before."""
    before = broker.sockets
    with neighbour(broker) as client:
        yield client
        client(rounds)
    wait_until(lambda: broker.sockets <= before, f"no more than {before} sockets open: {broker.fds()}")
