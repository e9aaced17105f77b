"""Producers that outlive the broker: what they have in hand is written once, in order, whatever happens to it."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.admin import Admin
from tests.compat.clients.base import PATIENCE, Message
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.servers import Server

READER = Confluent()
HALF = 300
LONG_S = 5 * PATIENCE  # Kafka takes a quarter of a minute to come back from each SIGKILL
Between = Callable[[], None]


def by_confluent(address: str, topic: str, between: Between) -> None:
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1})
    for number in range(2 * HALF):
        producer.produce(topic, b"%d" % number, b"k", on_delivery=told)
        producer.poll(0)
        if number == HALF:
            between()
    assert producer.flush(PATIENCE) == 0
    assert not failed


def by_kafka_python(address: str, topic: str, between: Between) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=1)
    try:
        futures = []
        for number in range(2 * HALF):
            futures.append(producer.send(topic, b"%d" % number, b"k"))
            if number == HALF:
                between()
        producer.flush(PATIENCE)
        for future in futures:
            future.get(PATIENCE)
    finally:
        producer.close(PATIENCE)


def by_aiokafka(address: str, topic: str, between: Between) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=1)
        await producer.start()
        try:
            futures = []
            for number in range(2 * HALF):
                futures.append(await producer.send(topic, b"%d" % number, b"k"))
                if number == HALF:
                    await asyncio.to_thread(between)
            await asyncio.wait_for(asyncio.gather(*futures), PATIENCE)
        finally:
            await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("produce", [by_confluent, by_kafka_python, by_aiokafka])
def test_an_idempotent_producer_goes_on_after_a_restart(
    produce: Callable[[str, str, Between], None], how: str, running: Server, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def restart() -> None:
        getattr(running, how)()
        running.start()

    produce(running.address, topic, restart)
    found = READER.consume(running.address, topic, 2 * HALF)
    assert [int(m.value or b"") for m in found] == list(range(2 * HALF))
    assert [m.offset for m in found] == list(range(2 * HALF))


@dataclass
class Lane:
    """One idempotent producer's messages to one partition; `offsets`: what was acknowledged, by number."""

    partition: int
    sent: int = 0
    offsets: dict[int, int] = field(default_factory=dict)


class Load:
    """A producer that writes until it is told to stop, and remembers what was acknowledged."""

    def __init__(self, address: str, topic: str, partition: int, seed: int) -> None:
        self.lane = Lane(partition)
        self._topic = topic
        self._random = Random(seed)
        self._stop = threading.Event()
        self._errors: list[Any] = []
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": int(LONG_S * 1000),
                "reconnect.backoff.max.ms": 100,
                "compression.type": self._random.choice(["none", "lz4"]),
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _told(self, error: Any, raw: Any) -> None:
        if error is not None:
            self._errors.append(error)
        else:
            self.lane.offsets[int(raw.value().split()[0])] = raw.offset()

    def _run(self) -> None:
        lane = self.lane
        while not self._stop.is_set():
            for _ in range(self._random.randrange(1, 40)):
                value = b"%d %s" % (lane.sent, b"x" * self._random.randrange(300))
                self._producer.produce(self._topic, value, b"k", lane.partition, on_delivery=self._told)
                lane.sent += 1
            while len(self._producer) > 2000 and not self._stop.is_set():
                self._producer.poll(0.05)
            self._producer.poll(0.002)
        assert self._producer.flush(LONG_S) == 0

    def join(self) -> Lane:
        """Ends the producer, once all is written. Raises AssertionError if something was refused."""
        self._stop.set()
        self._thread.join(2 * LONG_S)
        assert not self._errors, self._errors[0]
        assert len(self.lane.offsets) == self.lane.sent, "something was neither written nor refused"
        return self.lane


def read(address: str, topic: str, partition: int, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "x", "isolation.level": "read_uncommitted"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    end = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} events are there"
        for raw in consumer.consume(count, 0.2):
            assert raw.error() is None, raw.error()
            found.append(Message(raw.key(), raw.value(), (), None, partition, raw.offset()))
    consumer.close()
    return found


def test_no_sigkill_loses_or_doubles_what_is_acknowledged(running: Server, admin: Admin, new_topic: NewTopic) -> None:
    """Each producer must find its events once each, in order, at the offsets that it was told."""
    seed = Random().getrandbits(32)
    random = Random(seed)
    topic = new_topic(partitions=2, segment_bytes=1 << 20)
    loads = [Load(running.address, topic, number % 2, random.getrandbits(32)) for number in range(2)]
    try:
        for _ in range(6):
            time.sleep(random.uniform(0.05, 0.5))
            running.kill()
            running.start()
    finally:
        lanes = [load.join() for load in loads]
    for lane in lanes:
        found = read(running.address, topic, lane.partition, lane.sent)
        assert [int((m.value or b"").split()[0]) for m in found] == list(range(lane.sent)), f"seed {seed}"
        assert [m.offset for m in found] == [lane.offsets[number] for number in range(lane.sent)], f"seed {seed}"
    assert sum(lane.sent for lane in lanes) > 200, "hardly anything was tried"
