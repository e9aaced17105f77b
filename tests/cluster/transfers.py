"""A program that moves money, with librdkafka. It reads orders, and writes both sides of each order into a table of
accounts. Each transaction has these writes and the group's positions in the orders."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.cluster.brokers import ClusterProcesses
from tests.cluster.consumers import close, ends

ORDERS, ACCOUNTS, GROUP = "orders", "accounts", "movers"
PARTITIONS = 6
AT_ONCE = 5  # so many orders are in one transaction
PATIENT = 3  # the mover gives up after asking for the group's position in vain so many times
# librdkafka 2.16 goes on waiting for a group's coordinator that has left the cluster: the coordinator is still in its
# cache, and send_offsets_to_transaction ignores its timeout (issues 5456, 5511). With these settings librdkafka asks
# again: its cache ages, and the end of a connection makes it look.
AGING = {"metadata.max.age.ms": 3000, "connections.max.idle.ms": 5000}


def place_orders(cluster: ClusterProcesses, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce(ORDERS, json.dumps([number, 1 + number % 7]), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


class Mover:
    """`with Mover(bootstrap, "id") as mover`: it moves money until the end of the block. `done`: how many commits were
    acknowledged. `reading`: more settings of its consumer. `settings`: more settings of its producer."""

    def __init__(
        self, bootstrap: str, name: str, reading: Mapping[str, Any] = MappingProxyType({}), **settings: Any
    ) -> None:
        self._bootstrap, self._name, self._reading, self._settings = bootstrap, name, reading, settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done = 0
        self.left = 0  # consumers that did not close
        self.failed: list[str] = []

    def __enter__(self) -> Mover:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the mover, and waits for its end. Raises AssertionError if it does not end."""
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the mover hangs"

    def _run(self) -> None:
        while not self._stop.is_set():
            consumer = Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": GROUP,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    **self._reading,
                }
            )
            try:
                self._session(consumer)
            except KafkaException as error:
                self.failed.append(str(error))
                time.sleep(0.2)
            finally:
                self.left += not close(consumer)

    def _session(self, consumer: Consumer) -> None:
        """Moves money until it is stopped. Raises KafkaException; then a new consumer and a new producer are needed."""
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": self._name, "linger.ms": 0, **AGING}
        producer = Producer({**settings, "transaction.timeout.ms": 20_000, **self._settings})
        self._again(lambda: producer.init_transactions(30))
        self._rewind(consumer)
        while not self._stop.is_set():
            messages = [each for each in consumer.consume(AT_ONCE, 0.2) if each.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            try:
                for each in messages:
                    number, amount = json.loads(each.value())
                    for partition, sign in ((number % PARTITIONS, -1), ((number + 1) % PARTITIONS, 1)):
                        producer.produce(ACCOUNTS, json.dumps([number, sign * amount]), partition=partition)
                at = consumer.position([TopicPartition(ORDERS, index) for index in range(PARTITIONS)])
                read = [each for each in at if each.offset >= 0]
                self._again(
                    lambda read=read: producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata(), 30)
                )
                self._again(lambda: producer.commit_transaction(30))
                self.done += 1
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._again(lambda: producer.abort_transaction(30))
                self._rewind(consumer)

    def _again(self, call: Any) -> None:
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._stop.is_set():
                    raise

    def _rewind(self, consumer: Consumer) -> None:
        """Lets the consumer go on behind the orders of the last committed transaction. Raises KafkaException if this
        position can't be learned for a while; perhaps the consumer stands still for ever (consumers.py)."""
        tries = 0
        while True:
            try:
                found = consumer.committed([TopicPartition(ORDERS, index) for index in range(PARTITIONS)], 10)
                if all(each.error is None for each in found):
                    break
            except KafkaException:
                tries += 1
                if tries == PATIENT or self._stop.is_set():
                    raise
            time.sleep(0.1)
        for each in found:
            each.offset = max(0, each.offset)
        consumer.assign(found)


def read_moves(address: str, topic: str = ACCOUNTS) -> Counter[tuple[int, int]]:
    """(order, amount) -> how often a reader of committed events sees it, up to the present ends of the partitions."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "r", "isolation.level": "read_committed"})
    found: Counter[tuple[int, int]] = Counter()
    parts = [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    stops = {each.partition: ends(consumer, topic, each.partition)[1] for each in parts}
    consumer.assign(parts)
    end = time.monotonic() + 60
    while True:
        for message in consumer.consume(500, 0.02):
            assert message.error() is None, message.error()
            number, amount = json.loads(message.value())
            found[number, amount] += 1
        at = {each.partition: each.offset for each in consumer.position(parts)}
        if all(at[index] >= stops[index] or not stops[index] for index in stops):
            break
        assert time.monotonic() < end, f"the reader is at {at} of {stops}"
    consumer.close()
    return found
