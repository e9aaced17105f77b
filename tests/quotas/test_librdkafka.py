"""librdkafka's producer and consumer, unmodified, keep to their rates."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from krappy.server import throttled
from krappy.testing.running import RunningBroker
from tests.long import LONG
from tests.quotas.quotas import Quotas

KB = 1000
VALUE = bytes(2 * KB)
SECONDS = 30.0 if LONG else 3.0
ck: Any = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


def test_a_producer_keeps_to_its_rate(broker: RunningBroker, quotas: Quotas) -> None:
    """The producer keeps to its rate once the burst that it may send at first is used up."""
    rate = 400 * KB
    quotas.set({"client-id": "fast-writer"}, producer_byte_rate=float(rate))
    stats: list[dict[str, Any]] = []
    acked: list[float] = []
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.kafka_address,
            "client.id": "fast-writer",
            "linger.ms": 5,
            "batch.size": 20 * KB,
            "max.in.flight": 1,
            "statistics.interval.ms": 500,
            "stats_cb": lambda text: stats.append(json.loads(text)),
        }
    )

    def took(error: Any, _: Any) -> None:
        if error is None:  # an error means that it was purged at the end
            acked.append(time.monotonic())

    began = time.monotonic()
    while time.monotonic() < began + 1.5 + SECONDS:
        if len(producer) < 500:
            producer.produce("rated", VALUE, on_delivery=took)
        producer.poll(0 if len(producer) < 500 else 0.01)
    producer.purge()
    producer.flush(10)
    done = sum(len(VALUE) for at in acked if began + 1.5 <= at < began + 1.5 + SECONDS)
    assert done == pytest.approx(rate * SECONDS, rel=0.1)
    told = [node["throttle"]["max"] for each in stats for node in each["brokers"].values() if node["throttle"]["cnt"]]
    assert any(told), "it was not told of it"


@pytest.mark.parametrize("idempotent", [True, False])
def test_producers_that_are_refused_write_all(
    broker: RunningBroker, quotas: Quotas, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    """Six producers share a quota. They have so much to write that not every write gets its turn soon, and some are
    refused. No producer reports an error."""
    monkeypatch.setattr(throttled, "HELD", 0.2)
    rate, topic, each = 200 * KB, f"refused-{idempotent}", 20
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=float(rate))
    errors: list[Any] = []
    settings = {"bootstrap.servers": broker.kafka_address, "enable.idempotence": idempotent, "batch.size": 10 * KB}
    producers = [ck.Producer({**settings, "client.id": f"sharer-{number}", "max.in.flight": 1}) for number in range(6)]
    began = time.monotonic()
    for number in range(each):
        for writer, producer in enumerate(producers):
            value = b"%d-%d-" % (writer, number) + bytes(5 * KB)
            producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    for producer in producers:
        assert producer.flush(60) == 0
    assert errors == [None] * 6 * each
    assert time.monotonic() - began > 6 * each * 5 * KB / rate - 1.5
    with broker.connect() as client, client.consumer(topic, end="now") as consumer:
        found = [tuple(map(int, (event.value or b"").split(b"-")[:2])) for event in consumer]
    for writer in range(6):
        assert [number for by, number in found if by == writer] == list(range(each))


def test_a_consumer_keeps_to_its_rate(broker: RunningBroker, quotas: Quotas) -> None:
    rate = 400 * KB
    producer = ck.Producer({"bootstrap.servers": broker.kafka_address, "linger.ms": 5, "batch.size": 20 * KB})
    for _ in range(int(rate * (SECONDS + 3)) // len(VALUE)):
        producer.produce("eaten", VALUE)
    assert producer.flush(20) == 0
    quotas.set({"client-id": "fast-reader"}, consumer_byte_rate=float(rate))
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.kafka_address,
            "client.id": "fast-reader",
            "group.id": "fast-readers",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 100 * KB,
        }
    )
    consumer.assign([ck.TopicPartition("eaten", 0, 0)])
    got: list[tuple[float, int]] = []
    while not got or time.monotonic() < got[0][0] + 1.5 + SECONDS:
        got += [(time.monotonic(), len(each.value())) for each in consumer.consume(500, 0.05) if each.error() is None]
    consumer.close()
    first = got[0][0] + 1.5
    done = sum(size for at, size in got if first <= at < first + SECONDS)
    assert done == pytest.approx(rate * SECONDS, rel=0.1)


def test_an_admin_client_creates_topics_at_its_rate(broker: RunningBroker, quotas: Quotas) -> None:
    """The versions of its requests know no refusal by a quota, so it is made to wait (KIP-599). At 1 partition a
    second, 11 partitions may be made at once."""
    admin_module: Any = pytest.importorskip("confluent_kafka.admin")
    quotas.set({"client-id": "topic-maker"}, controller_mutation_rate=1.0)
    admin = admin_module.AdminClient({"bootstrap.servers": broker.kafka_address, "client.id": "topic-maker"})
    for future in admin.create_topics([admin_module.NewTopic(f"by-admin-{n}", 7) for n in range(2)]).values():
        future.result(20)
    before = time.monotonic()
    for future in admin.create_topics([admin_module.NewTopic("by-admin-later", 1)]).values():
        future.result(20)
    assert time.monotonic() - before > 0.5
