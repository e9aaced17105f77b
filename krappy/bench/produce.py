"""`krappy bench produce`: how fast events are stored and acknowledged.

Timed: from passing the first event to the client until the last one is acknowledged. That includes encoding, sending,
the broker's append (with fdatasync if that is on) and the answer. Making the events is not timed.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from krappy.bench import load
from krappy.bench.brokers import leader_of
from krappy.bench.pipe import close_pipes, drive, open_pipes
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import own_topic
from krappy.wire.messages import Message, ProducerRegistration

if TYPE_CHECKING:
    from krappy.blocking import Client


def produce(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """Runs each round on a new topic, so that all start alike."""
    events = load.make(settings.count, settings.record_bytes, settings.keys)
    rounds = []
    for _ in range(settings.rounds):
        with own_topic(client, settings) as topic:
            rounds.append((_single if settings.single else batches)(address, topic, events, settings))
    return rounds


def batches(address: str, topic: str, events: load.Load, settings: BenchSettings) -> Round:
    """Sends by the client's fast path: columns, of which its producer makes record batches. One thread a connection."""
    from krappy import blocking

    shares = [[] for _ in range(settings.connections)]  # type: list[list[tuple[list[bytes], list[bytes]]]]
    for index, batch in enumerate(events.batches(settings.batch)):
        shares[index % settings.connections].append(batch)
    ready = threading.Barrier(settings.connections + 1)
    failures: list[BaseException] = []

    def work(share: list[tuple[list[bytes], list[bytes]]]) -> None:
        try:
            with (
                blocking.connect(address) as client,
                client.producer(topic, compression=settings.compression) as producer,
            ):
                ready.wait()
                for keys, values in share:
                    producer.post_columns(keys, values)
                producer.flush()
                ready.wait()
        except BaseException as error:
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=work, args=(share,), daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        start = time.perf_counter()
        ready.wait()
        seconds = time.perf_counter() - start
    except threading.BrokenBarrierError:
        raise failures[0] from None
    for thread in threads:
        thread.join()
    return Round(len(events), seconds, events.size)


def _single(address: str, topic: str, events: load.Load, settings: BenchSettings) -> Round:
    """Sends one Message for each event, `window` of them in flight on each connection."""
    pipes = open_pipes(leader_of(address, topic), settings.connections)
    try:
        handles = [pipe.ask(ProducerRegistration(topic))["handle"] for pipe in pipes]

        def framer(handle: int):  # type: ignore[no-untyped-def]
            return lambda id: Message(handle, events.values[id], events.keys[id]).frame(id)

        run = drive(pipes, [framer(handle) for handle in handles], len(events), settings.window)
    finally:
        close_pipes(pipes)
    return Round(len(events), run.seconds, events.size, run.latencies)
