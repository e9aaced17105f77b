"""Readers of the async client, against a real broker."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

import krappy
from krappy import blocking
from krappy.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopic,
)
from krappy.types import TopicPartition
from tests.clients.helpers import fill

pytestmark = pytest.mark.anyio


async def test_where_a_reader_starts_and_ends(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 100)

        async def read(**choice: Any) -> list[int]:
            async with client.consumer(topic, **{"end": "now", **choice}) as consumer:
                return [event.offset async for event in consumer]

        assert await read() == list(range(100))
        assert await read(start="latest") == []
        assert await read(start=73) == list(range(73, 100))
        assert await read(start=100) == []
        assert await read(start=datetime.fromtimestamp(1.040, UTC)) == list(range(40, 100))
        assert await read(start=7, end=19) == list(range(7, 19))
        assert await read(start=7, end=7) == []
        with pytest.raises(OffsetOutOfRange) as caught:
            await read(start=101)
        assert caught.value.end == 100
        for wrong in (-1, "now", 1.5, None):
            with pytest.raises(InvalidRequest):
                await read(start=wrong)
        for wrong in ("later", -1):
            with pytest.raises(InvalidRequest):
                await read(end=wrong)


async def test_end_now_is_now_and_not_later(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 50, partitions=2)
        seen = []
        async with client.producer(topic) as producer, client.consumer(topic, end="now") as consumer:
            async for event in consumer:
                seen.append((event.partition, event.offset))
                await producer.send(b"more", partition=event.partition)
        assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(50)]


async def test_a_reader_of_chosen_partitions_and_topics(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 20, partitions=3)
        await fill(client, topic + "2", 20)
        async with client.consumer(topic, partitions=[0, 2], end="now") as consumer:
            assert {event.partition async for event in consumer} == {0, 2}
        async with client.consumer([topic, topic + "2"], end="now") as consumer:
            seen = [(event.topic, event.partition) async for event in consumer]
        assert {each: seen.count(each) for each in set(seen)} == {
            (topic, 0): 20, (topic, 1): 20, (topic, 2): 20, (topic + "2", 0): 20,
        }  # fmt: skip
        with pytest.raises(UnknownTopic):
            async with client.consumer(topic + "3"):
                pass


async def test_a_reader_waits_for_what_comes(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        seen: list[bytes | None] = []

        async def read() -> None:
            async with client.consumer(topic, start="latest") as consumer:
                ready.set()
                async for event in consumer:
                    seen.append(event.value)
                    if len(seen) == 5:
                        return

        ready = anyio.Event()
        async with anyio.create_task_group() as tasks, client.producer(topic) as producer:
            tasks.start_soon(read)
            await ready.wait()
            for number in range(5):
                await producer.send(b"%d" % number)
        assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_batches_are_the_same_events_by_columns(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 500, partitions=2)
        async with client.consumer(topic, start=33, end=470) as consumer:
            events = [event async for event in consumer]
        async with client.consumer(topic, start=33, end=470) as consumer:
            batches = [batch async for batch in consumer.batches()]
        assert len(batches) > 2
        assert sum(len(batch) for batch in batches) == 2 * (470 - 33)
        assert sorted(event for batch in batches for event in batch.events()) == sorted(events)


async def test_seek_and_positions(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 300, partitions=2)
        async with client.consumer(topic, max_records=50) as consumer:
            at = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
            for step in range(2000):
                event = await anext(consumer)
                place = TopicPartition(event.topic, event.partition)
                assert event.offset == at[place], step
                at[place] += 1
                if step % 37 == 5:
                    assert consumer.positions == at
                    to = (step * 7) % 290
                    assert await consumer.seek(event.partition, to) == to
                    at[place] = to
                    assert consumer.positions == at
                if at[place] == 300:
                    at[place] = await consumer.seek(event.partition, "earliest")
            with pytest.raises(OffsetOutOfRange):
                await consumer.seek(0, 301)
            with pytest.raises(UnknownTopic):
                await consumer.seek(9, 0)


async def test_poll_takes_what_there_is(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 100)
        async with client.consumer(topic) as consumer:
            first = await consumer.poll(10)
            assert [event.offset for event in first] == list(range(len(first)))
            assert first
            seen = len(first)
            while seen < 100:
                seen += len(await consumer.poll(10))
            assert await consumer.poll() == []
            assert await consumer.poll(0.01) == []
            async with client.producer(topic) as producer:
                await producer.send(b"new")
            assert [event.value for event in await consumer.poll(10)] == [b"new"]


async def test_a_cancelled_wait_loses_nothing(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.consumer(topic) as consumer, client.producer(topic) as producer:
            for number in range(20):
                with anyio.move_on_after(0.002 * (number % 3)):
                    await anext(consumer)
                    raise AssertionError("there is nothing yet")
            await producer.send(b"x")
            assert (await anext(consumer)).value == b"x"


@pytest.mark.parametrize("group", [None, "readers"])
async def test_a_poll_takes_any_number_of_seconds(address: str, topic: str, group: str | None) -> None:
    """Infinity, and more than a thread can wait for, wait without a limit; a negative number and NaN do not wait."""
    group = group and f"{group}-{topic}"
    async with krappy.connect(address) as client:
        await fill(client, topic, 3)
        for seconds in (math.inf, 1e300):
            async with client.consumer(topic, group=group) as consumer:
                events = await consumer.poll(seconds)
                assert len(events) == 3
        with blocking.connect(address) as blocked, blocked.consumer(topic, group=group) as member:
            assert len(member.poll(math.inf)) == 3
        async with client.consumer(topic, group=group, start="latest") as consumer:
            for seconds in (-1, -math.inf, math.nan):
                assert len(await consumer.poll(seconds)) in (0, 3)
