"""`krappy bench latency`: the time from publishing an event to a waiting consumer, at a steady rate.

One thread drives two connections: one publishes a Message whenever one is due, the other always has a poll waiting. An
event's latency is the time from when it was due until the consumer has decoded it. It includes sending, the broker's
append, its fdatasync if that is on, and its answer to the poll. If the bench itself is late, the delay counts too, so
that a stall counts for every event that it delayed (Tene, "How NOT to Measure Latency": coordinated omission).
"""

from __future__ import annotations

import selectors
import struct
import time
from typing import TYPE_CHECKING

from krappy.bench.brokers import leader_of
from krappy.bench.pipe import Pipe, close_pipes, open_pipes
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import own_topic
from krappy.cli.errors import Failure
from krappy.records import batch as record_batch
from krappy.wire.messages import ConsumerRegistration, Message, Poll, ProducerRegistration

if TYPE_CHECKING:
    from krappy.blocking import Client

FD_SETSIZE = 1024
STAMP = struct.Struct(">Q")  # the event's number, at the beginning of its value
GIVE_UP = 10.0  # seconds without an event
WARM_UP = 200  # events that are sent first and not counted


def latency(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """Publishes `count` events at `rate` per second, in each round."""
    with own_topic(client, settings) as topic:
        return [_round(leader_of(address, topic), topic, settings) for _ in range(settings.rounds)]


def _round(address: str, topic: str, settings: BenchSettings) -> Round:
    total = settings.count + WARM_UP
    publisher, consumer = pipes = open_pipes(address, 2)
    try:
        producing = publisher.ask(ProducerRegistration(topic))["handle"]
        consuming = consumer.ask(ConsumerRegistration([topic], start="latest"))["handle"]
        poll = Poll(consuming, max_wait=5_000)
        rest = bytes(max(0, settings.record_bytes - STAMP.size - 4))
        started = time.perf_counter()
        due = [started + number / settings.rate for number in range(total)]
        seen = [0.0] * total
        _exchange(publisher, consumer, poll, producing, rest, due, seen)
    finally:
        close_pipes(pipes)
    latencies = [after - before for after, before in zip(seen, due, strict=True)][WARM_UP:]
    return Round(settings.count, max(seen) - due[WARM_UP], settings.count * settings.record_bytes, latencies)


def _exchange(
    publisher: Pipe, consumer: Pipe, poll: Poll, handle: int, rest: bytes, due: list[float], seen: list[float]
) -> None:
    """Publishes each event at its time in `due`, and notes in `seen` when it came back."""
    now, issued, arrived = time.perf_counter, 0, 0
    last_arrival = now()
    for pipe in (publisher, consumer):
        pipe.socket.setblocking(False)
    # select(2) waits exactly to the microsecond, epoll(2) to the millisecond; but select takes no large descriptors.
    few = max(publisher.socket.fileno(), consumer.socket.fileno()) < FD_SETSIZE
    with selectors.SelectSelector() if few else selectors.DefaultSelector() as selector:
        selector.register(publisher.socket, selectors.EVENT_READ, publisher)
        selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        consumer.send(poll.frame(0))
        while arrived < len(due):
            moment = now()
            while issued < len(due) and due[issued] <= moment:
                publisher.send(Message(handle, STAMP.pack(issued) + rest, key=b"%04d" % (issued % 1000)).frame(issued))
                issued += 1
            if publisher.unsent:
                publisher.flush()
            wait = due[issued] - now() if issued < len(due) else 1.0
            for key, _ in selector.select(max(0.0, wait)):
                answers = key.data.answers()
                if key.data is not consumer:
                    continue
                for values in answers:
                    arrived += _arrivals(values["parts"], seen)
                    last_arrival = now()
                    consumer.send(poll.frame(0))
            if now() - last_arrival > GIVE_UP:
                raise Failure(f"no event came for {GIVE_UP:.0f} s: {arrived:,} of {issued:,} arrived")


def _arrivals(parts: list[tuple[str, int, int, int, bytes]], seen: list[float]) -> int:
    count = 0
    for _, _, first, _, records in parts:
        for _, view in record_batch.split(records):
            columns = record_batch.decode(view)
            moment = time.perf_counter()
            for offset, value in zip(columns.offsets, columns.values, strict=True):
                if offset >= first and value is not None:
                    seen[STAMP.unpack_from(value)[0]] = moment
                    count += 1
    return count
