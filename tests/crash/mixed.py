"""A mixed load of long-lived programs on one broker, which shows whether its memory settles (a part of `make soak`).

All at once there are native producers and readers, readers and watchers of a table, groups of both kinds whose members
come and go, a live tail of the console, transactions by librdkafka, compaction, retention and short segments. Their
pace does not use up the machine. After a warm-up the broker's memory must stay level.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from krappy import blocking
from tests.process import BrokerProcess, Launch

WARM_UP_S = 600.0  # the time in which memory may grow, unless the whole run is shorter than twice this time
GROWTH_MIB = 16.0  # after the warm-up memory may grow by so much, from the first third of the time to the last third
FDS = 16  # so many more descriptors may be open at the end: members of groups and watchers come and go
PACE_S = 0.05  # the pause between two actions of an actor
SMALL: dict[str, Any] = {"segment.bytes": 1 << 20, "retention.bytes": 8 << 20}
CLEANED: dict[str, Any] = {"cleanup.policy": "compact", "segment.bytes": 1 << 20, "min.cleanable.dirty.ratio": 0.3}
KEYS = 20_000


class Mixed:
    """Actors that run in threads of this process until `over` is set."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.over = threading.Event()
        self.done: dict[str, int] = {}  # how often each actor did its work
        self.failures: list[str] = []
        self._seed = seed

    def run(self, seconds: float, sample: Callable[[], None]) -> None:
        """Runs all actors for this time, and calls `sample` each second."""
        with blocking.connect(self.broker.address) as client:
            for topic in ("plain", "moved"):
                client.create_topic(topic, partitions=3, config=SMALL)
            client.create_topic("table", partitions=3, config=CLEANED)
            client.create_topic("transfers", partitions=3, config=SMALL)
        actors = (
            self.produce, self.produce_keyed, self.read, self.look_up, self.watch, self.tail, self.member,
            self.kafka_produce, self.kafka_member, self.transact, self.come_and_go,
        )  # fmt: skip
        threads = [
            threading.Thread(target=self._act, args=(actor, Random(f"{self._seed} {actor.__name__}")), daemon=True)
            for actor in actors
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.failures:
            sample()
            self.over.wait(1.0)
        self.over.set()
        for thread in threads:  # the watcher does not end: it waits for an event that never comes
            thread.join(2)

    def _act(self, actor: Callable[[Random], None], random: Random) -> None:
        while not self.over.is_set():
            try:
                actor(random)
            except Exception as error:
                if not self.over.is_set():
                    self.failures.append(f"{actor.__name__}: {type(error).__name__}: {error}")
                return

    def _turns(self, actor: str, pace: float = PACE_S) -> bool:
        """Counts a turn of this actor, and waits. Returns whether the actor is to take another turn."""
        self.done[actor] = self.done.get(actor, 0) + 1
        return not self.over.wait(pace)

    # --- native

    def produce(self, random: Random) -> None:
        with blocking.connect(self.broker.address) as client, client.producer("plain") as producer:
            while self._turns("produce"):
                count = random.randrange(1, 400)
                producer.send_many([(None, random.randbytes(random.randrange(300))) for _ in range(count)])

    def produce_keyed(self, random: Random) -> None:
        with blocking.connect(self.broker.address) as client, client.producer("table") as producer:
            while self._turns("produce_keyed"):
                rows: list[tuple[bytes, bytes | None]] = [
                    (b"k%d" % random.randrange(KEYS), random.randbytes(random.randrange(300)))
                    for _ in range(random.randrange(1, 300))
                ]
                producer.send_many(rows)

    def read(self, random: Random) -> None:
        with blocking.connect(self.broker.address) as client, client.consumer("plain", start="latest") as consumer:
            while self._turns("read", 0):
                consumer.poll(1.0)

    def look_up(self, random: Random) -> None:
        with blocking.connect(self.broker.address) as client:
            table = client.table("table")
            while self._turns("look_up"):
                table.get(b"k%d" % random.randrange(KEYS))
                table.get_many([b"k%d" % random.randrange(KEYS) for _ in range(random.randrange(1, 200))])
                if random.random() < 0.02:
                    for _ in table.scan(prefix=b"k%d" % random.randrange(10)):
                        pass

    def watch(self, random: Random) -> None:
        with blocking.connect(self.broker.address) as client:
            for _ in client.table("table").watch():
                if not self._turns("watch", 0) or random.random() < 0.0001:
                    return

    def member(self, random: Random) -> None:
        """A member of a native group that stays for a while."""
        with (
            blocking.connect(self.broker.address) as client,
            client.consumer("plain", group="native", start="latest") as consumer,
        ):
            for _ in range(random.randrange(10, 400)):
                for event in consumer.poll(0.5):
                    consumer.ack(event)
                if not self._turns("member", 0):
                    return

    def come_and_go(self, random: Random) -> None:
        """Short connections that do little."""
        while self._turns("come_and_go", 0.2):
            with blocking.connect(self.broker.address) as client:
                client.topics()
                client.groups()
                client.offsets("plain")

    # --- the console

    def tail(self, random: Random) -> None:
        url = f"http://{self.broker.http}/api/v1/topics/table/tail"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as stream:
            for _ in range(random.randrange(20, 2_000)):
                stream.readline()
                if not self._turns("tail", 0):
                    return

    # --- Kafka's protocol

    def kafka_produce(self, random: Random) -> None:
        producer = Producer({"bootstrap.servers": self.broker.kafka, "enable.idempotence": True, "linger.ms": 20})
        while self._turns("kafka_produce"):
            for _ in range(random.randrange(1, 400)):
                producer.produce("moved", random.randbytes(random.randrange(300)), b"%d" % random.randrange(KEYS))
            producer.poll(0)
        producer.flush(30)

    def kafka_member(self, random: Random) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.kafka, "group.id": "kafka", "auto.offset.reset": "latest"}
        )
        try:
            consumer.subscribe(["moved", "transfers"])
            for _ in range(random.randrange(20, 500)):
                consumer.consume(1000, 0.2)
                if not self._turns("kafka_member", 0):
                    return
        finally:
            consumer.close()

    def transact(self, random: Random) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": self.broker.kafka, "transactional.id": "soak"}
        producer = Producer(settings)
        producer.init_transactions(30)
        for _ in range(random.randrange(50, 500)):
            producer.begin_transaction()
            for _ in range(random.randrange(1, 50)):
                producer.produce("transfers", random.randbytes(random.randrange(300)), b"%d" % random.randrange(KEYS))
            offsets = [TopicPartition("moved", 0, random.randrange(1, 1000))]
            if random.random() < 0.5:
                metadata = Consumer({"bootstrap.servers": self.broker.kafka, "group.id": "sent"})
                producer.send_offsets_to_transaction(offsets, metadata.consumer_group_metadata(), 30)
                metadata.close()
            if random.random() < 0.2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            if not self._turns("transact"):
                return


def mixed(folder: Path, launch: Launch, seconds: float, random: Random, log: Path | None = None) -> dict[str, object]:
    """Runs the load for this time; returns how the broker's memory and descriptors changed. `log`: a file that gets a
    line of JSON each second."""
    samples: list[tuple[float, float, int]] = []
    settings: dict[str, Any] = {"listen_http": "127.0.0.1:0", "retention_check_ms": 2000, "durability": "os"}
    settings |= {"view_memtable_bytes": 8 << 20, "view_cache_bytes": 8 << 20}
    began = time.monotonic()
    broker = BrokerProcess(folder / "data", launch=launch, **settings)
    broker.lifetime = seconds + 300
    with broker:

        def sample() -> None:
            passed = time.monotonic() - began
            samples.append((passed, broker.rss() / 2**20, sum(broker.fds().values())))
            if log is not None:
                with log.open("a") as file:
                    file.write(json.dumps({"seconds": round(passed, 1), "rss_mib": round(samples[-1][1], 1)}) + "\n")

        load = Mixed(broker, random.getrandbits(32))
        load.run(seconds, sample)
        errors = [] if load.failures else broker.events("internal_error")
        status = broker.stop()
    warm = min(WARM_UP_S, seconds / 2)
    settled = [each for each in samples if each[0] >= warm] or samples[-1:]
    third = max(1, len(settled) // 3)
    grown = middle([rss for _, rss, _ in settled[-third:]]) - middle([rss for _, rss, _ in settled[:third]])
    fds = middle([fds for *_, fds in settled[-third:]]) - middle([fds for *_, fds in settled[:third]])
    return {
        "part": "mixed",
        "seconds": round(seconds),
        "turns": load.done,
        "failures": load.failures,
        "rss_mib_first": round(samples[0][1], 1),
        "rss_mib_warm": round(settled[0][1], 1),
        "rss_mib_last": round(settled[-1][1], 1),
        "rss_mib_most": round(max(rss for _, rss, _ in samples), 1),
        "rss_mib_grown": round(grown, 1),
        "fds_grown": fds,
        "stopped_with": status,
        "ok": not load.failures and not errors and grown <= GROWTH_MIB and fds <= FDS and status == 0,
    }


def middle(of: list[float]) -> float:
    """The upper median."""
    return sorted(of)[len(of) // 2]
