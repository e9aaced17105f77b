"""A transactional producer as a client of the broker's parts, and what a reader and a lookup see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from krappy.broker.broker import LocalBroker
from krappy.broker.partition.partition import Partition
from krappy.entries.entry import unpack_entry
from krappy.ports import TransactionalSender
from krappy.records import batch
from krappy.types import TopicPartition

AT = TopicPartition("t", 0)
MINUTE = 60_000


class Producer:
    """One transactional producer, as a client of the broker's parts."""

    def __init__(self, broker: LocalBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.id = self.epoch = -1
        self.sequence = 0
        self.sender = TransactionalSender(name, False)

    async def init(self, timeout_ms: int = MINUTE) -> Producer:
        self.id, self.epoch = await self.broker.transactions.init_producer(self.name, timeout_ms)
        self.sequence = 0
        return self

    async def add(self, *partitions: TopicPartition) -> None:
        await self.broker.transactions.add_partitions(self.name, self.id, self.epoch, partitions or (AT,))

    def batch(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
        data = batch.encode(
            keys,
            values,
            timestamps=1_000,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += len(keys)
        return data

    async def write(self, *pairs: tuple[bytes, bytes | None], at: TopicPartition = AT) -> int:
        await self.add(at)
        partition = self.broker.topic(at.topic).led(at.partition)
        keys, values = zip(*pairs, strict=True)
        return (await partition.publish(self.batch(keys, values), sender=self.sender).wait()).offset

    async def end(self, commit: bool) -> None:
        await self.broker.transactions.end(self.name, self.id, self.epoch, commit)


async def made(broker: LocalBroker, **config: Any) -> Partition:
    given = {name.replace("_", "."): value for name, value in config.items()}
    topic, _ = await broker.create_topic("t", 1, given)
    return topic.led(0)


async def value(partition: Partition, key: bytes) -> bytes | None:
    """What a lookup answers. It must not wait for an open transaction."""
    assert await partition.view_wait(None, 30)
    entry = partition.look_up(key)
    return None if entry is None else unpack_entry(entry)[2]


async def values(partition: Partition) -> list[bytes | None]:
    """What a reader gets from the start to the end."""
    found: list[bytes | None] = []
    at = partition.start_offset
    while at < partition.last_stable_offset:
        span = await partition.read(at, 1 << 20)
        for header, view in batch.split(span.data):
            if not header.is_control:
                found += batch.decode(view).values
        assert span.next_offset > at
        at = span.next_offset
    return found
