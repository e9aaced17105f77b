"""Keys that librdkafka's default partitioner has placed, and keys from before partitions were added, are found."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from krappy.testing.running import run_broker
from krappy.types import Record

KEYS = [f"k{number}" for number in range(1_000)]


def test_keys_of_librdkafka_are_found(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data", durability="os") as broker, broker.connect() as client:
        client.create_topic("t", 4)
        producer = Producer({"bootstrap.servers": broker.kafka_address})
        for key in KEYS:
            producer.produce("t", key=key.encode(), value=b"v")
        assert producer.flush(60) == 0
        table = client.table("t")
        assert client.describe("t").scattered
        assert sum(entry is not None for entry in table.get_many(KEYS)) == 1_000  # without: 248
        assert len(list(table.scan())) == 1_000


def test_keys_from_before_partitions_were_added_are_found(tmp_path: Path) -> None:
    with run_broker(tmp_path / "data", durability="os") as broker, broker.connect() as client:
        client.create_topic("t", 2)
        with client.producer("t") as producer:
            producer.send_many([Record(b"v", key.encode()) for key in KEYS])
        assert not client.describe("t").scattered
        client.alter_topic("t", partitions=4)
        table = client.table("t")
        assert sum(entry is not None for entry in table.get_many(KEYS)) == 1_000  # without: 497
        with client.producer("t") as producer:
            for key in KEYS:
                producer.send(None, key=key)
        assert [entry for entry in table.get_many(KEYS) if entry is None or not entry.deleted] == []
        assert list(table.scan()) == []
