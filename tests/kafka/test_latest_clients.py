"""`TOPIC@latest` as real clients read it, which know nothing of it: they end with the table, over restarts too."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from krappy.partitioner import partition_for
from krappy.records import batch
from tests.kafka.raw import Raw, create
from tests.process import BrokerProcess

PARTITIONS = 3
Table = dict[tuple[int, bytes], tuple[int, bytes]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0, "durability": "os"}
    with BrokerProcess(tmp_path / "data", **settings) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()


class Writer:
    """Writes at random and remembers the latest event of each key: key -> (offset, value)."""

    def __init__(self, broker: BrokerProcess, topic: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker, self.topic = broker, topic
        self.table: Table = {}
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            future.result(30)

    def write(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.kafka, "compression.type": "lz4"})
        for number in range(count):
            key = b"k%d" % self.random.randrange(200)
            partition = partition_for(key, PARTITIONS)
            value = None if self.random.random() < 0.3 else b"%d" % number
            producer.produce(self.topic, value, key, partition=partition, on_delivery=self._written)
        assert producer.flush(30) == 0

    def _written(self, error: KafkaError | None, message: Any) -> None:
        assert error is None
        at = message.partition(), message.key()
        self.table.pop(at, None)
        if message.value() is not None:
            self.table[at] = message.offset(), message.value()


class Reader:
    """An application that keeps a table of the events that it was given."""

    def __init__(self, broker: BrokerProcess, topic: str, **more: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.kafka,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 1000,
        }
        self.consumer = Consumer(settings | {name.replace("_", "."): value for name, value in more.items()})
        self.topic = topic
        self.table: Table = {}
        self.rows: list[tuple[int, int]] = []

    def to_the_end(self) -> None:
        """Reads until it is at the end of each partition."""
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = self.consumer.poll(30)
            assert message is not None, f"{len(ended)} of {PARTITIONS} partitions have ended"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            ended.discard(message.partition())
            self.rows.append((message.partition(), message.offset()))
            at = message.partition(), message.key()
            self.table.pop(at, None)
            if message.value() is not None:
                self.table[at] = message.offset(), message.value()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_ends_with_the_table_over_restarts(broker: BrokerProcess, protocol: str) -> None:
    writer = Writer(broker, "t", 1)
    writer.write(2000)
    more = {"group.protocol": protocol}
    reader = Reader(broker, "t@latest", **more)
    reader.consumer.subscribe(["t@latest"])
    reader.to_the_end()
    assert reader.table == writer.table
    assert sorted(reader.rows) == sorted((at, offset) for (at, _), (offset, _) in writer.table.items()), "one for each"
    for at in range(PARTITIONS):
        offsets = [offset for partition, offset in reader.rows if partition == at]
        assert offsets == sorted(offsets)
    writer.write(500)
    reader.to_the_end()
    assert reader.table == writer.table
    reader.consumer.commit(asynchronous=False)
    held = reader.table
    reader.consumer.close()
    writer.write(500)
    assert broker.stop() == 0
    broker.start()
    writer.write(500)
    again = Reader(broker, "t@latest", **more)
    again.table = held
    again.consumer.subscribe(["t@latest"])
    again.to_the_end()
    assert again.table == writer.table
    assert len(again.rows) == 1000, "whoever comes back soon is given every event"
    again.consumer.close()


def test_the_tail_has_every_event(broker: BrokerProcess) -> None:
    writer = Writer(broker, "t", 2)
    writer.write(500)
    reader = Reader(broker, "t@latest")
    reader.consumer.assign([TopicPartition("t@latest", at, OFFSET_BEGINNING) for at in range(PARTITIONS)])
    reader.to_the_end()
    before = len(reader.rows)
    writer.write(1000)
    reader.to_the_end()
    assert len(reader.rows) - before == 1000
    assert reader.table == writer.table
    reader.consumer.close()


def test_everything_was_deleted(broker: BrokerProcess) -> None:
    create(broker, "t", PARTITIONS)
    with Raw(broker.kafka) as raw:
        raw.produce("t", batch.encode([b"k", b"k"], [b"1", None], timestamps=1), 1)
    reader = Reader(broker, "t@latest")
    reader.consumer.subscribe(["t@latest"])
    reader.to_the_end()
    assert not reader.rows
    reader.consumer.close()


def test_aiokafka(broker: BrokerProcess) -> None:
    import asyncio

    from aiokafka import AIOKafkaConsumer

    writer = Writer(broker, "t", 3)
    writer.write(1000)

    async def read(count: int) -> Table:
        consumer = AIOKafkaConsumer(
            "t@latest", bootstrap_servers=broker.kafka, group_id="g", auto_offset_reset="earliest"
        )
        await consumer.start()
        table: Table = {}
        try:
            async with asyncio.timeout(30):
                async for message in consumer:
                    table[message.partition, message.key] = message.offset, message.value
                    if len(table) == count:
                        return table
        finally:
            await consumer.stop()
        return table

    assert asyncio.run(read(len(writer.table))) == writer.table


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt install kcat)")
def test_kcat(broker: BrokerProcess) -> None:
    writer = Writer(broker, "t", 4)
    writer.write(1000)
    done = subprocess.run(
        ["kcat", "-b", broker.kafka, "-C", "-t", "t@latest", "-e", "-q", "-f", "%p %o %k %s\n"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    found: Table = {}
    for line in done.stdout.splitlines():
        partition, offset, key, value = line.split()
        assert (int(partition), key) not in found
        found[int(partition), key] = int(offset), value
    assert found == writer.table


def test_many_connections_share_what_they_need(broker: BrokerProcess) -> None:
    """Each of them reads a table of 20,000 keys from its start, in small pieces, all at the same time."""
    connections, keys = 200, 20_000
    create(broker, "t")
    with Raw(broker.kafka) as raw:
        for first in range(0, 5 * keys, 1000):
            some = [b"%d" % (number % keys) for number in range(first, first + 1000)]
            assert raw.produce("t", batch.encode(some, [b"v"] * 1000, timestamps=1))["error_code"] == 0
    readers = [Raw(broker.kafka) for _ in range(connections)]
    broker.reset_peak()
    before = broker.rss()

    def read(some: list[Raw]) -> None:
        places = dict.fromkeys(some, 0)
        while places:
            for each, at in list(places.items()):
                data = each.fetch("t@latest", at, partition_max_bytes=200_000)["records"]
                if not len(data):
                    counts[each] = counts.get(each, 0)
                    del places[each]
                    continue
                for header, _ in batch.split(data):
                    counts[each] = counts.get(each, 0) + header.count
                    places[each] = header.next_offset

    counts: dict[Raw, int] = {}
    threads = [threading.Thread(target=read, args=(readers[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(counts.values()) == {keys}
    assert len(counts) == connections
    assert broker.peak_rss() - before < 64 << 20
    for each in readers:
        each.close()
