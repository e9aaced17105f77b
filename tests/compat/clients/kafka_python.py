"""kafka-python: Kafka's protocol in Python, blocking."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by importlib.resources.read_text
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaError

from tests.compat.clients.base import PATIENCE, Codec, Isolation, Member, Message, Protocol848, Refused, Sending


def _message(raw: Any) -> Message:
    headers = tuple((name, value) for name, value in raw.headers)
    return Message(raw.key, raw.value, headers, raw.timestamp, raw.partition, raw.offset)


class _Member:
    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._consumer = KafkaConsumer(**config)
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        found = self._consumer.poll(timeout_ms=200)
        return [_message(raw) for batch in found.values() for raw in batch]

    def assignment(self) -> set[tuple[str, int]]:
        return {(item.topic, item.partition) for item in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPython:
    name = "kafka-python"
    codecs: tuple[Codec, ...] = ("none", "gzip", "lz4")  # the others need libraries of their own
    timestamps = headers_per_message = transactions = static_members = True
    protocol848 = False

    def produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        config: dict[str, Any] = {
            "bootstrap_servers": address,
            "acks": {"0": 0, "1": 1, "all": "all"}[sending.acks],
            "compression_type": None if sending.codec == "none" else sending.codec,
            "enable_idempotence": sending.idempotent or sending.transactional_id is not None,
            "max_request_size": sending.max_bytes,
            "linger_ms": 5,
        }
        if sending.transactional_id is not None:
            config["transactional_id"] = sending.transactional_id
        producer = KafkaProducer(**config)
        try:
            if sending.transactional_id is not None:
                producer.init_transactions()
                producer.begin_transaction()
            futures = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    list(message.headers),
                    message.partition,
                    message.timestamp,
                )
                for message in messages
            ]
            producer.flush(PATIENCE)
            offsets = [future.get(PATIENCE).offset for future in futures]
            if sending.abort:
                producer.abort_transaction()
            elif sending.transactional_id is not None:
                producer.commit_transaction()
            return [] if sending.acks == "0" else offsets
        except KafkaError as error:
            raise Refused(repr(error)) from None
        finally:
            producer.close(PATIENCE)

    def consume(self, address: str, topic: str, count: int, isolation: Isolation = "read_uncommitted") -> list[Message]:
        consumer = KafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level=isolation,
            fetch_max_wait_ms=100,
        )
        try:
            consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])
            consumer.seek_to_beginning()
            found: list[Message] = []
            end = time.monotonic() + PATIENCE
            while len(found) < count:
                assert time.monotonic() < end, f"{self.name} was given {len(found)} of {count} messages"
                for batch in consumer.poll(timeout_ms=200, max_records=count - len(found)).values():
                    found += [_message(raw) for raw in batch]
            return found
        finally:
            consumer.close()

    def member(
        self, address: str, topic: str, group: str, *, instance: str | None = None, protocol: Protocol848 = "classic"
    ) -> Member:
        assert protocol == "classic", "kafka-python has no KIP-848"
        config: dict[str, Any] = {
            "bootstrap_servers": address,
            "group_id": group,
            "group_instance_id": instance,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
            "fetch_max_wait_ms": 100,
        }
        return _Member(config, topic)

    def close(self) -> None:
        pass
