"""Members of groups, and their administration, by the async client."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import krappy
from krappy.errors import (
    InvalidRequest,
    LeaseLost,
    UnknownGroup,
)
from krappy.types import TopicPartition
from tests.clients.helpers import fill

pytestmark = pytest.mark.anyio


async def test_members_share_the_events_of_a_group(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 400, partitions=2)
        seen: dict[str, list[Any]] = {}

        async def work() -> None:
            async with client.consumer(topic, group=topic, max_records=20) as consumer:
                assert consumer.member is not None
                mine = seen[consumer.member] = []
                async for event in consumer:
                    mine.append((event.partition, event.offset))
                    await consumer.ack(event)
                    if sum(map(len, seen.values())) >= 800:
                        tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(work)
        assert sorted(seen) == [f"{topic}_{number}" for number in range(3)]
        assert sorted(each for mine in seen.values() for each in mine) == [(p, n) for p in range(2) for n in range(400)]
        group = await client.group(topic)
        assert (group.lag, group.topics) == (0, [topic])
        assert [row.floor for row in group.partitions] == [400, 400]


async def test_what_a_member_leaves_unseen_does_not_count_as_delivered(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 40)
        for taken in range(6):  # more often than an event may be delivered
            async with client.consumer(topic, group=topic, max_records=10, max_deliveries=3) as consumer:
                event = await anext(consumer)
                assert (event.offset, event.deliveries) == (taken, 1)
                await consumer.ack(event)
        group = await client.group(topic)
        assert [(row.floor, row.leased, row.redelivering, row.dead) for row in group.partitions] == [(6, 0, 0, 0)]


async def test_what_a_poll_brings_that_nobody_waits_for_does_not_count_either(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 40)
        for taken in range(6):
            async with client.consumer(topic, group=topic, max_records=1, max_deliveries=3) as consumer:
                event = await anext(consumer)  # and the next poll is sent
                await client.ping()  # and answered
                assert (event.offset, event.deliveries) == (taken, 1)
                await consumer.ack(event)
        group = await client.group(topic)
        assert [(row.floor, row.redelivering, row.dead) for row in group.partitions] == [(6, 0, 0)]


async def test_what_was_handed_out_counts_when_its_member_leaves(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 10)
        async with client.consumer(topic, group=topic) as consumer:
            first, second = await anext(consumer), await anext(consumer)
            assert (first.deliveries, second.deliveries) == (1, 1)
        async with client.consumer(topic, group=topic) as consumer:
            assert [(await anext(consumer)).deliveries for _ in range(4)] == [2, 2, 1, 1]


async def test_another_group_sees_everything_too(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 30)
        for group in (topic + "a", topic + "b"):
            async with client.consumer(topic, group=group) as consumer:
                batches = consumer.batches()
                seen = 0
                while seen < 30:
                    batch = await anext(batches)
                    seen += len(batch)
                    await consumer.ack(batch)
        names = [group.group for group in await client.groups()]
        assert {topic + "a", topic + "b"} <= set(names)


async def test_what_is_not_acknowledged_comes_again_to_the_next_member(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 10)
        async with client.consumer(topic, group=topic) as first:
            taken = [await anext(first) for _ in range(10)]
            await first.ack(taken[3])
            await first.ack([taken[5], taken[4], taken[7]])
        async with client.consumer(topic, group=topic) as second:
            again = [await anext(second) for _ in range(6)]
            assert [(event.offset, event.deliveries) for event in again] == [(n, 2) for n in (0, 1, 2, 6, 8, 9)]
            await second.ack(again)


async def test_nack_extend_and_a_lease_that_is_lost(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 3)
        async with client.consumer(topic, group=topic, lease_ms=2000) as one:
            events = [await anext(one) for _ in range(3)]
            await one.extend(events[2], lease_ms=60_000)
            await one.nack(events[0])
            async with client.consumer(topic, group=topic, lease_ms=60_000) as two:
                again = sorted([await anext(two), await anext(two)])
                assert [event.offset for event in again] == [0, 1]
                with pytest.raises(LeaseLost):
                    await one.ack(events, wait=True)
                await one.ack(events[2])  # acknowledged twice
                await two.ack(again)
                await one.ack(events[0])  # another member has done it: fine
        assert (await client.group(topic)).lag == 0


async def test_members_have_no_position_of_their_own(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        for wrong in ({"partitions": [0]}, {"end": "now"}):
            with pytest.raises(InvalidRequest):
                client.consumer(topic, group="g", **wrong)
        async with client.consumer(topic, group=topic) as member:
            with pytest.raises(InvalidRequest):
                await member.seek(0, 0)
        async with client.consumer(topic) as reader:
            with pytest.raises(InvalidRequest):
                await reader.ack([])


async def test_groups_are_reset_and_deleted(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 10)
        async with client.consumer(topic, group=topic) as consumer:
            await consumer.ack([await anext(consumer) for _ in range(10)])
        assert await client.positions(topic) == {TopicPartition(topic, 0): 10}
        [moved] = await client.reset_group(topic, 4, dry_run=True)
        assert (moved.old, moved.new) == (10, 4)
        assert await client.positions(topic) == {TopicPartition(topic, 0): 10}
        await client.reset_group(topic, "earliest")
        assert await client.positions(topic) == {TopicPartition(topic, 0): 0}
        await client.commit(topic, {TopicPartition(topic, 0): 6})
        assert (await client.group(topic)).lag == 4
        await client.delete_group(topic)
        with pytest.raises(UnknownGroup):
            await client.group(topic)
