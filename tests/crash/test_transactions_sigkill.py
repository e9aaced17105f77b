"""The broker is killed during transactions of an unmodified Kafka client.

Workers consume, transform and produce. Each transaction takes some events of the input, writes records for each of them
to two topics, and commits the offsets of the input with them. Some transactions are aborted on purpose. Whenever the
broker dies, its topics must have only whole transactions. An acknowledged transaction is there. An aborted one is not.
Of any other transaction, all records are there or none. This holds for a read_committed consumer, for a native reader,
and in the tables. And each input event is taken exactly once."""

from __future__ import annotations

import os
import threading
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from krappy.blocking import Client, connect
from krappy.cli import checkup
from tests.long import LONG
from tests.process import PATIENCE, BrokerProcess, Launcher, free_address, wait_until

CYCLES = 60 if LONG else 4
WORKERS = 2
INPUTS = 3_000  # events in each worker's partition of the input
OUTPUTS = {"left": 1, "right": 3}  # how many partitions each topic has
FAST = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10, "log_level": 0}
Written = tuple[str, str, str]  # topic, key, value


class Worker:
    """One transactional producer with one partition of the input."""

    def __init__(self, address: str, number: int, random: Random) -> None:
        self.address = address
        self.number = number
        self.random = random
        self.planned: dict[str, set[Written]] = {}  # by transaction, its records
        self.outcome: dict[str, bool] = {}  # by transaction, the acknowledged outcome: committed (True) or aborted
        self.failures: list[BaseException] = []
        self._numbers = count()
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[self._stop], daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tells the worker to stop. It may go on for a while: librdkafka's send_offsets_to_transaction forgets its
        timeout when it has lost the broker (its issues 5456 and 5511). The next producer with its transactional id
        fences it."""
        self._stop.set()
        self._thread.join(1)

    def producer(self, seconds: float) -> Producer:
        """A new producer with the worker's transactional id. An open transaction is aborted when this returns."""
        found = Producer({"bootstrap.servers": self.address, "transactional.id": f"worker-{self.number}", **FAST})
        found.init_transactions(seconds)
        return found

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    self._work(stop)
                except KafkaException:
                    continue  # the broker has died: the check finds out the transaction's outcome
        except BaseException as error:
            self.failures.append(error)

    def _work(self, stop: threading.Event) -> None:
        producer = self.producer(3)
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "workers", "enable.auto.commit": False, **FAST}
        )
        try:
            while not stop.is_set():
                self._transaction(producer, consumer)
        finally:
            consumer.close()

    def _transaction(self, producer: Producer, consumer: Consumer) -> None:
        at = consumer.committed([TopicPartition("input", self.number)], 3)[0]
        consumer.assign([TopicPartition("input", self.number, max(0, at.offset))])
        taken = [m for m in consumer.consume(self.random.randint(1, 4), 1.0) if m.error() is None]
        if not taken:
            return
        name = f"{self.number}-{next(self._numbers)}"
        commit = self.random.random() < 0.75
        written = self.planned[name] = set()
        producer.begin_transaction()
        for message in taken:
            for topic in OUTPUTS:
                key, value = f"{self.number}:{message.offset()}", f"{name} {message.offset()}"
                producer.produce(topic, value, key)
                written.add((topic, key, value))
        if self.random.random() < 0.5 or not commit:
            producer.flush(3)
        ends = [TopicPartition("input", self.number, (taken[-1].offset() or 0) + 1)]
        producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), 3)
        (producer.commit_transaction if commit else producer.abort_transaction)(3)
        self.outcome[name] = commit


def read_committed(address: str, topic: str, partitions: int) -> list[Written]:
    """All records of a topic that a read_committed consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **FAST,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[Written] = []
    ended: set[int] = set()
    until = time.monotonic() + PATIENCE
    while len(ended) < partitions:
        assert time.monotonic() < until, f"no end of {topic}"
        for message in consumer.consume(1_000, 0.05):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
                continue
            found.append((topic, text(message.key()), text(message.value())))
    consumer.close()
    return found


def text(data: Any) -> str:
    return bytes(data).decode()


class Check:
    """Compares the broker's topics with the workers' transactions, once every transaction is decided."""

    def __init__(self, address: str, native: str, workers: list[Worker]) -> None:
        self.address = address
        self.workers = workers
        for worker in workers:
            worker.producer(PATIENCE)  # aborts a transaction that the last producer left open
        seen = [row for topic, partitions in OUTPUTS.items() for row in read_committed(address, topic, partitions)]
        with connect(native) as client:
            self.same_to_native_readers(client, seen)
        self.whole_transactions(seen)

    def same_to_native_readers(self, client: Client, seen: list[Written]) -> None:
        events: list[Written] = []
        for topic in OUTPUTS:
            with client.consumer(topic, start="earliest", end="now") as consumer:
                events += [(topic, text(event.key), text(event.value)) for event in consumer]
            table = {(topic, text(entry.key), text(entry.value)) for entry in client.table(topic).scan()}
            assert table == {row for row in seen if row[0] == topic}, f"the table of {topic} differs from its log"
        assert sorted(events) == sorted(seen)

    def whole_transactions(self, seen: list[Written]) -> None:
        there: dict[str, set[Written]] = {}
        for row in seen:
            there.setdefault(row[2].split()[0], set()).add(row)
        assert len(seen) == len(set(seen)), "a record came twice"
        for worker in self.workers:
            for name, written in worker.planned.items():
                found = there.pop(name, set())
                outcome = worker.outcome.get(name)
                if outcome is None:
                    worker.outcome[name] = bool(found)  # later checks demand the same outcome
                elif outcome != bool(found):
                    raise AssertionError(f"{name} was {'committed' if outcome else 'aborted'}; found {found}")
                assert found in (written, set()), f"{name} is half there: {found} of {written}"
            self.exactly_once(worker, seen)
        assert not there, f"nobody has written {there}"

    def exactly_once(self, worker: Worker, seen: list[Written]) -> None:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "workers", **FAST})
        committed = max(0, consumer.committed([TopicPartition("input", worker.number)], PATIENCE)[0].offset)
        consumer.close()
        for topic in OUTPUTS:
            mine = [row[1] for row in seen if row[0] == topic and row[1].startswith(f"{worker.number}:")]
            assert sorted(mine) == sorted(f"{worker.number}:{offset}" for offset in range(committed))


def committed(workers: list[Worker]) -> int:
    return sum(list(worker.outcome.values()).count(True) for worker in workers)


def test_no_transaction_is_half_visible_after_a_kill(launch: Launcher, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or Random().getrandbits(32))
    random = Random(seed)
    print(f"seed {seed}")  # noqa: T201
    address = free_address()
    workers = [Worker(address, number, Random(random.getrandbits(64))) for number in range(WORKERS)]
    settings = {"listen_kafka": address, "retention_check_ms": 50}
    with BrokerProcess(tmp_path / "data", launch=launch, **settings) as broker:  # type: ignore[arg-type]
        with connect(broker.address) as client:
            client.create_topic("input", partitions=WORKERS)
            client.create_topic("left", partitions=1, config={"segment.bytes": 20_000})
            compact: dict[str, str | int | float] = {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": 0.01,
                "segment.bytes": 5_000,
            }
            client.create_topic("right", partitions=3, config={**compact})
        filler = Producer({"bootstrap.servers": address})
        for number in range(WORKERS):
            for _ in range(INPUTS):
                filler.produce("input", b"x", partition=number)
        assert filler.flush(PATIENCE) == 0
        for cycle in range(CYCLES):
            for worker in workers:
                worker.start()
            time.sleep(random.uniform(0.4, 1.6))  # a new producer takes half a second to begin
            if cycle == CYCLES - 1:  # a slow machine gets more time
                wait_until(lambda: committed(workers) > CYCLES, "more transactions are committed than there were kills")
            broker.kill()
            while random.random() < 0.3:  # killed while it recovers
                broker.begin()
                time.sleep(random.uniform(0, 0.2))
                broker.kill()
            broker.start()
            if random.random() < 0.5:
                time.sleep(random.uniform(0, 0.3))  # the workers go on
            for worker in workers:
                worker.stop()
            Check(address, broker.address, workers)
        assert not broker.events("internal_error"), broker.last_words()
        assert broker.stop() == 0
    found = checkup.check(tmp_path / "data", repair=False, tell=lambda *_: None)
    assert found.sound, found
    outcomes = [outcome for worker in workers for outcome in worker.outcome.values()]
    print(f"{committed(workers)} committed, {outcomes.count(False)} aborted")  # noqa: T201
    assert not [error for worker in workers for error in worker.failures]
    assert committed(workers) > CYCLES, "hardly anything was tried"
