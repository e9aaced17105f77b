"""confluent-kafka: librdkafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Raw

from tests.compat.clients.base import (
    PATIENCE,
    Codec,
    Headers,
    Isolation,
    Member,
    Message,
    Protocol848,
    Refused,
    Sending,
)

GIVEN_UP = 20_000  # milliseconds


def _message(raw: Raw) -> Message:
    headers: Headers = tuple((name, value) for name, value in raw.headers() or ())
    return Message(
        raw.key(),
        raw.value(),
        headers,
        raw.timestamp()[1],
        raw.partition() or 0,
        raw.offset(),
    )


def refused(error: KafkaError) -> Refused:
    return Refused(f"{error.name()}: {error.str()}")


class _Member:
    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self._consumer = Consumer(config)
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        found = []
        for raw in self._consumer.consume(500, 0.2):
            error = raw.error()
            if error is not None and not error.retriable():
                raise refused(error)
            if error is None:
                found.append(_message(raw))
        return found

    def assignment(self) -> set[tuple[str, int]]:
        return {(item.topic, item.partition) for item in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    name = "confluent-kafka"
    codecs: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    timestamps = headers_per_message = transactions = static_members = protocol848 = True

    def produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        config: dict[str, Any] = {
            "bootstrap.servers": address,
            "acks": sending.acks,
            "compression.type": sending.codec,
            "enable.idempotence": sending.idempotent or sending.transactional_id is not None,
            "message.max.bytes": sending.max_bytes,
            "message.timeout.ms": GIVEN_UP,
            "linger.ms": 5,
        }
        if sending.transactional_id is not None:
            config |= {"transactional.id": sending.transactional_id, "transaction.timeout.ms": GIVEN_UP}
        producer = Producer(config)
        try:
            return self._send(producer, topic, messages, sending)
        except KafkaException as error:
            raise refused(error.args[0]) from None

    def _send(self, producer: Producer, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        if sending.transactional_id is not None:
            producer.init_transactions(PATIENCE)
            producer.begin_transaction()
        offsets: list[int | None] = [None] * len(messages)
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, raw: Raw, at: int) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets[at] = raw.offset()

        for number, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                on_delivery=lambda error, raw, at=number: told(error, raw, at),
                timestamp=message.timestamp or 0,
                headers=list(message.headers),
            )
        assert producer.flush(PATIENCE) == 0, "messages are left that are neither written nor refused"
        if errors:
            raise refused(errors[0])
        if sending.abort:
            producer.abort_transaction(PATIENCE)
        elif sending.transactional_id is not None:
            producer.commit_transaction(PATIENCE)
        return [] if sending.acks == "0" else [offset for offset in offsets if offset is not None]

    def consume(self, address: str, topic: str, count: int, isolation: Isolation = "read_uncommitted") -> list[Message]:
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )
        try:
            partitions = consumer.list_topics(topic, PATIENCE).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            found: list[Message] = []
            end = time.monotonic() + PATIENCE
            while len(found) < count:
                assert time.monotonic() < end, f"{self.name} was given {len(found)} of {count} messages"
                for raw in consumer.consume(count - len(found), 0.2):
                    if (error := raw.error()) is not None:
                        raise refused(error)
                    found.append(_message(raw))
            return found
        finally:
            consumer.close()

    def member(
        self, address: str, topic: str, group: str, *, instance: str | None = None, protocol: Protocol848 = "classic"
    ) -> Member:
        config: dict[str, Any] = {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
        if protocol == "classic":
            config |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
        if instance is not None:
            config["group.instance.id"] = instance
        return _Member(config, topic)

    def close(self) -> None:
        pass
