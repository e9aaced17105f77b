"""Reads `__consumer_offsets` as another program does: without Krappy's or Kafka's code, by the schemas alone."""

from __future__ import annotations

import struct
import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from krappy.core.cluster.coordinators import partition_of
from tests.cluster.consumers import ends
from tests.process import PATIENCE
from tests.zygote import INTERNAL_PARTITIONS

TOPIC = "__consumer_offsets"
At = tuple[str, str, int]  # group, topic, partition


class ReadOffset(NamedTuple):
    """A value by Kafka's schema OffsetCommitValue, version 1 or 3."""

    version: int
    offset: int
    epoch: int | None
    metadata: str
    committed: int
    expires: int | None


class OffsetsTopic(NamedTuple):
    """The content of a group's partition, from its start. `latest`: by key, the latest value; None: a tombstone.
    `values`: all values, in the log's order. `own`: by key, the latest values of Krappy's own records."""

    latest: dict[At, ReadOffset | None]
    values: list[tuple[At, ReadOffset]]
    own: dict[bytes, bytes | None]

    def kinds(self) -> set[bytes]:
        """The first three bytes of the own keys that have a value."""
        return {key[:3] for key, value in self.own.items() if value is not None}


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._left = data

    def take(self, form: str) -> int:
        size = struct.calcsize(form)
        [found] = struct.unpack(form, self._left[:size])
        self._left = self._left[size:]
        return int(found)

    def text(self) -> str:
        size = self.take(">h")
        found, self._left = self._left[:size], self._left[size:]
        return found.decode()

    def end(self) -> None:
        assert not self._left


def read_at(key: bytes) -> At:
    found = _Bytes(key)
    assert found.take(">h") == 1
    at = found.text(), found.text(), found.take(">i")
    found.end()
    return at


def read_value(value: bytes) -> ReadOffset:
    found = _Bytes(value)
    version, offset = found.take(">h"), found.take(">q")
    assert version in (1, 3)
    epoch = found.take(">i") if version == 3 else None
    metadata, committed = found.text(), found.take(">q")
    expires = found.take(">q") if version == 1 else None
    found.end()
    return ReadOffset(version, offset, epoch, metadata, committed, expires)


def read_offsets(servers: str, group: str, **options: Any) -> OffsetsTopic:
    """Reads the group's partition up to its present end. `options`: settings of librdkafka."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, **options})
    try:
        at = TopicPartition(TOPIC, partition_of(group, INTERNAL_PARTITIONS), 0)
        reader.assign([at])
        patience = time.monotonic() + PATIENCE
        _, end = ends(reader, TOPIC, at.partition)
        found = OffsetsTopic({}, [], {})
        while reader.position([at])[0].offset < end:
            assert time.monotonic() < patience, f"{reader.position([at])[0].offset} of {end}"
            message = reader.poll(0.2)
            if message is None or message.error():
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            if not key.startswith(b"\0\1"):
                found.own[key] = value
                continue
            read = None if value is None else read_value(value)
            found.latest[read_at(key)] = read
            if read is not None:
                found.values.append((read_at(key), read))
        return found
    finally:
        reader.close()
