"""The data path with unmodified clients: confluent-kafka (librdkafka), kafka-python. More of them are in
tests/compat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.process import BrokerProcess

confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
python = pytest.importorskip("kafka", reason="kafka-python is not installed")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_there_and_back(broker: BrokerProcess, acks: str, codec: str) -> None:
    topic = f"rd-{acks}-{codec}"
    failed: list[object] = []
    producer = confluent.Producer(
        {"bootstrap.servers": broker.kafka, "acks": acks, "compression.type": codec, "linger.ms": 5}
    )
    for number in range(2000):
        producer.produce(
            topic,
            b"value %d" % number,
            b"key %d" % (number % 7),
            headers={"h": b"%d" % number},
            timestamp=1_700_000_000_000 + number,
            on_delivery=lambda error, message: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failed
    # While a fetch waits for more events, it would get no other answer on that connection.
    settings = {"group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = confluent.Consumer({"bootstrap.servers": broker.kafka, **settings})
    try:
        consumer.assign([confluent.TopicPartition(topic, 0, 0)])
        got: list[Any] = []
        while len(got) < 2000:
            messages = consumer.consume(2000, 20)
            assert messages, f"{len(got)} of 2000 came"
            assert not any(message.error() for message in messages)
            got += messages
        assert [message.offset() for message in got] == list(range(2000))
        assert got[77].value() == b"value 77"
        assert got[77].key() == b"key 0"
        assert got[77].headers() == [("h", b"77")]
        assert got[77].timestamp() == (confluent.TIMESTAMP_CREATE_TIME, 1_700_000_000_077)
        (found,) = consumer.offsets_for_times([confluent.TopicPartition(topic, 0, 1_700_000_001_234)], timeout=20)
        assert found.offset == 1234
        assert consumer.get_watermark_offsets(confluent.TopicPartition(topic, 0), timeout=20) == (0, 2000)
    finally:
        consumer.close()


def test_kafka_python_there_and_back(broker: BrokerProcess) -> None:
    producer = python.KafkaProducer(bootstrap_servers=broker.kafka, acks="all", enable_idempotence=False, linger_ms=5)
    sent = [producer.send("kp", b"value %d" % number, b"key") for number in range(500)]
    producer.flush(30)
    assert [future.get(30).offset for future in sent] == list(range(500))
    producer.close()
    consumer = python.KafkaConsumer(
        bootstrap_servers=broker.kafka, enable_auto_commit=False, consumer_timeout_ms=20_000
    )
    partition = python.TopicPartition("kp", 0)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 100)
        values = [next(consumer).value for _ in range(400)]
        assert values == [b"value %d" % number for number in range(100, 500)]
        assert consumer.end_offsets([partition]) == {partition: 500}
        assert consumer.beginning_offsets([partition]) == {partition: 0}
    finally:
        consumer.close()
