"""`delete_records` of both clients."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import krappy
from krappy import blocking, errors


def fill(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic, partitions=2)
        with client.producer(topic) as producer:
            for number in range(10):
                for partition in (0, 1):
                    producer.send(b"v", key=b"k%d" % number, partition=partition, timestamp=1000 + number)


def test_what_before_may_be(address: str, topic: str) -> None:
    fill(address, topic)
    with blocking.connect(address) as client:
        assert client.delete_records(topic, {1: 2}) == {1: 2}
        assert client.delete_records(topic, 3, partitions=[0]) == {0: 3}
        assert client.delete_records(topic, 1) == {0: 3, 1: 2}
        assert client.delete_records(topic, datetime.fromtimestamp(1.005, UTC)) == {0: 5, 1: 5}
        assert client.offsets(topic, "earliest") == {0: 5, 1: 5}
        assert client.delete_records(topic, "latest", partitions=[1]) == {1: 10}
        assert client.delete_records(topic, "latest") == {0: 10, 1: 10}


def test_what_it_refuses(address: str, topic: str) -> None:
    fill(address, topic)
    with blocking.connect(address) as client:
        with pytest.raises(errors.OffsetOutOfRange):
            client.delete_records(topic, 11)
        with pytest.raises(errors.UnknownPartition):
            client.delete_records(topic, "latest", partitions=[0, 7])
        with pytest.raises(errors.UnknownPartition):
            client.delete_records(topic, {7: 0})
        with pytest.raises(errors.InvalidRequest):
            client.delete_records(topic, -5)
        client.alter_topic(topic, {"cleanup.policy": "compact"})
        with pytest.raises(errors.PolicyViolation):
            client.delete_records(topic, "latest")
        assert client.offsets(topic, "earliest") == {0: 0, 1: 0}


@pytest.mark.anyio
async def test_async(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            await producer.send("v", key="k")
        assert await client.delete_records(topic, "latest") == {0: 1}
        assert await client.table(topic).get("k") is None
