"""Clients that work while the broker comes and goes: what each was told is stored is compared with what is stored."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import trio
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as KafkaProducer

import krappy
from krappy import blocking
from krappy.types import Receipt
from tests.k8s.cluster.krappy import CLIENT_S, Krappy

WINDOW = 100  # events under way at once
KEYS = 50


class Client:
    """Works in a thread of its own until it is stopped. `failure`: the error after which it could not go on."""

    def __init__(self, broker: Krappy, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Lets it finish what is under way. Raises what went wrong."""
        self._stopped.set()
        self._thread.join(2 * CLIENT_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} did not come to an end"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def work(self) -> None: ...

    @property
    @abstractmethod
    def count(self) -> int:
        """How many events it has got through."""


class Publisher(Client):
    """Publishes numbers. `acknowledged`: the numbers that the broker has promised to keep."""

    def __init__(self, broker: Krappy, topic: str) -> None:
        super().__init__(broker, topic)
        self.acknowledged: list[int] = []
        self.sent = 0

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def next(self) -> tuple[int, bytes, bytes]:
        """The next number, with the value and key that carry it."""
        number, self.sent = self.sent, self.sent + 1
        return number, str(number).encode(), str(number % KEYS).encode()


class Blocking(Publisher):
    def work(self) -> None:
        room = threading.Semaphore(WINDOW)

        def send(producer: blocking.TopicProducer) -> None:
            number, value, key = self.next()

            def settle(done: Future[Receipt]) -> None:
                if done.exception() is None:
                    self.acknowledged.append(number)
                room.release()

            producer.send(value, key).add_done_callback(settle)

        with self.broker.client() as client, client.producer(self.topic) as producer:
            while not self._stopped.is_set():
                room.acquire()
                send(producer)


class Async(Publisher):
    def work(self) -> None:
        trio.run(self._publish)

    async def _publish(self) -> None:
        async with (
            krappy.connect(self.broker.native, timeout=CLIENT_S, **self.broker.login) as client,
            client.producer(self.topic) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(WINDOW):
                nursery.start_soon(self._one_by_one, producer)

    async def _one_by_one(self, producer: krappy.client.TopicProducer) -> None:
        while not self._stopped.is_set():
            number, value, key = self.next()
            await producer.send(value, key)
            self.acknowledged.append(number)


class Kafka(Publisher):
    """librdkafka, idempotent: it finds the broker through the Service and follows the address that it is told."""

    def work(self) -> None:
        settings = {
            "bootstrap.servers": self.broker.kafka,
            "enable.idempotence": True,
            "message.timeout.ms": int(CLIENT_S * 1000),
            **self.broker.kafka_login,
        }
        producer = KafkaProducer(settings)
        while not self._stopped.is_set():
            if len(producer) < WINDOW:
                number, value, key = self.next()
                producer.produce(self.topic, value, key, on_delivery=self._settle(number))
            producer.poll(0 if len(producer) < WINDOW else 0.1)
        assert producer.flush(CLIENT_S) == 0

    def _settle(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def settle(error: KafkaError | None, _: Message) -> None:
            assert error is None, error
            self.acknowledged.append(number)

        return settle


class Reader(Client):
    """A member of a group; `seen` counts how often each event came."""

    def __init__(self, broker: Krappy, topic: str) -> None:
        super().__init__(broker, topic)
        self.seen: Counter[tuple[str, int]] = Counter()

    @property
    def count(self) -> int:
        return len(self.seen)


class GroupReader(Reader):
    """A member of one of Krappy's shared groups, on a topic."""

    def work(self) -> None:
        with self.broker.client() as client, client.consumer(self.topic, group="load", lease_ms=10_000) as consumer:
            while not self._stopped.is_set():
                events = consumer.poll(1.0)
                self.seen.update((event.topic, int(event.value or b"")) for event in events)
                consumer.ack(events)


class KafkaReader(Reader):
    """A member of one of Kafka's groups, by librdkafka."""

    def work(self) -> None:
        settings = {"bootstrap.servers": self.broker.kafka, "group.id": "kafka-load", "auto.offset.reset": "earliest"}
        consumer = KafkaConsumer({**settings, **self.broker.kafka_login})
        consumer.subscribe([self.topic])
        try:
            while not self._stopped.is_set():
                for message in consumer.consume(1000, timeout=1.0):
                    error = message.error()
                    assert error is None or error.retriable(), error
                    if error is None:
                        self.seen[self.topic, int(message.value() or b"")] += 1
        finally:
            consumer.close()
