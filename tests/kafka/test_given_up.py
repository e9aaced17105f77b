"""When its transaction is aborted, librdkafka gives up events that it sent, and then gives other events the same
numbers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.proxy import proxy
from tests.kafka.raw import Raw
from tests.process import Launcher, broker_process, free_address, wait_until

confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

SLOW_RETRY = {"retry.backoff.ms": 3000, "retry.backoff.max.ms": 3000, "reconnect.backoff.ms": 10}


def test_no_committed_event_is_taken_for_one_that_was_given_up(tmp_path: Path, launcher: Launcher) -> None:
    told: list[tuple[bytes, Any]] = []
    with (
        proxy(free_address()) as way,
        broker_process(tmp_path / "data", launch=launcher, listen_kafka=way.to, advertised_listeners=way.address),
    ):
        producer = confluent.Producer({"bootstrap.servers": way.address, "transactional.id": "t", **SLOW_RETRY})

        def send(value: bytes) -> None:
            producer.produce(
                "topic", value, partition=0, on_delivery=lambda error, message: told.append((message.value(), error))
            )

        producer.init_transactions(30)
        producer.begin_transaction()
        send(b"aborted")
        producer.flush(30)
        way.deafen()
        send(b"given up")
        with Raw(way.to) as raw:
            wait_until(lambda: b"given up" in raw.values("topic"), "it is stored, and its answer is lost")
        way.cut()
        time.sleep(0.3)  # until the event waits in the client for its next try
        producer.abort_transaction(30)
        producer.begin_transaction()
        send(b"committed")
        with pytest.raises(confluent.KafkaException) as refused:
            producer.commit_transaction(30)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(30)
        producer.begin_transaction()
        send(b"committed")
        producer.commit_transaction(30)
        assert told[-1] == (b"committed", None)
        settings = {"group.id": "none", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = confluent.Consumer({"bootstrap.servers": way.address, **settings})
        try:
            consumer.assign([confluent.TopicPartition("topic", 0, 0)])
            [found] = consumer.consume(1, 30)
            assert found.value() == b"committed"
        finally:
            consumer.close()
