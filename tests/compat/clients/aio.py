"""aiokafka: Kafka's protocol in Python, on asyncio. One event loop, in a thread of its own, serves all clients of a
test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.compat.clients.base import PATIENCE, Codec, Isolation, Member, Message, Protocol848, Refused, Sending

T = TypeVar("T")


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, PATIENCE), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


def _message(raw: Any) -> Message:
    return Message(raw.key, raw.value, tuple(raw.headers), raw.timestamp, raw.partition, raw.offset)


class _Member:
    def __init__(self, loop: _Loop, topic: str, config: dict[str, Any]) -> None:
        self._loop = loop
        self._consumer: Any = None
        loop.run(self._start(topic, config))

    async def _start(self, topic: str, config: dict[str, Any]) -> None:
        self._consumer = AIOKafkaConsumer(**config)
        self._consumer.subscribe([topic])
        await self._consumer.start()

    def poll(self) -> list[Message]:
        found = self._loop.run(self._consumer.getmany(timeout_ms=200))
        return [_message(raw) for batch in found.values() for raw in batch]

    def assignment(self) -> set[tuple[str, int]]:
        return {(item.topic, item.partition) for item in self._consumer.assignment()}

    def commit(self) -> None:
        self._loop.run(self._consumer.commit())

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


class AioKafka:
    name = "aiokafka"
    codecs: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    timestamps = headers_per_message = transactions = static_members = True
    protocol848 = False

    def __init__(self) -> None:
        self._loop = _Loop()

    def produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        try:
            return self._loop.run(self._produce(address, topic, messages, sending))
        except KafkaError as error:
            raise Refused(repr(error)) from None

    async def _produce(self, address: str, topic: str, messages: Sequence[Message], sending: Sending) -> list[int]:
        config: dict[str, Any] = {
            "bootstrap_servers": address,
            "compression_type": None if sending.codec == "none" else sending.codec,
            "max_request_size": sending.max_bytes,
            "linger_ms": 5,
        }
        if sending.transactional_id is not None:
            config["transactional_id"] = sending.transactional_id
        else:
            config["acks"] = {"0": 0, "1": 1, "all": "all"}[sending.acks]
            config["enable_idempotence"] = sending.idempotent
        producer = AIOKafkaProducer(**config)
        await producer.start()
        try:
            if sending.transactional_id is not None:
                await producer.begin_transaction()
            futures = [
                await producer.send(
                    topic,
                    message.value,
                    message.key,
                    message.partition,
                    message.timestamp,
                    list(message.headers),
                )
                for message in messages
            ]
            told = await asyncio.gather(*futures)
            if sending.abort:
                await producer.abort_transaction()
            elif sending.transactional_id is not None:
                await producer.commit_transaction()
            return [] if sending.acks == "0" else [metadata.offset for metadata in told]
        finally:
            await producer.stop()

    def consume(self, address: str, topic: str, count: int, isolation: Isolation = "read_uncommitted") -> list[Message]:
        return self._loop.run(self._consume(address, topic, count, isolation))

    async def _consume(self, address: str, topic: str, count: int, isolation: Isolation) -> list[Message]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address, isolation_level=isolation, auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        await consumer.start()
        try:
            metadata = await consumer._client.fetch_all_metadata()
            numbers = metadata.partitions_for_topic(topic.removesuffix("@latest")) or ()
            consumer.assign([TopicPartition(topic, number) for number in numbers])
            await consumer.seek_to_beginning()
            found: list[Message] = []
            while len(found) < count:
                got = await consumer.getmany(timeout_ms=200, max_records=count - len(found))
                found += [_message(raw) for batch in got.values() for raw in batch]
            return found
        finally:
            await consumer.stop()

    def member(
        self, address: str, topic: str, group: str, *, instance: str | None = None, protocol: Protocol848 = "classic"
    ) -> Member:
        assert protocol == "classic", "aiokafka has no KIP-848"
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
        return _Member(self._loop, topic, config)

    def close(self) -> None:
        self._loop.close()
