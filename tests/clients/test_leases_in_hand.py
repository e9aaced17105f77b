"""A member that works long on one event is leased no further events meanwhile: each lease counts as a delivery."""

from __future__ import annotations

import time

import anyio
import pytest

import krappy
from krappy import blocking
from tests.clients.helpers import fill
from tests.served import alone

pytestmark = pytest.mark.anyio


async def test_nothing_is_leased_to_a_member_that_is_busy(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 3)
        async with client.consumer(topic, group=topic, lease_ms=1500, max_deliveries=1, max_records=1) as consumer:
            for offset in range(3):
                event = await anext(consumer)
                assert (event.offset, event.deliveries) == (offset, 1)
                await consumer.extend(event, lease_ms=60_000)
                await anyio.sleep(1.7)
                await consumer.ack(event)
        assert [(row.floor, row.dead) for row in (await client.group(topic)).partitions] == [(3, 0)]
        assert f"{topic}.{topic}.dead" not in [each.name for each in await client.topics()]


async def test_nothing_is_leased_to_a_member_that_waits_no_more(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with (
            client.consumer(topic, group=topic, lease_ms=1500, max_deliveries=1) as consumer,
            client.producer(topic) as producer,
        ):
            for wait in (0.0, 0.05):
                assert await consumer.poll(wait) == []
            receipt = await producer.send(b"v")
            await anyio.sleep(1.7)  # longer than a lease
            [event] = await consumer.poll(30)
            assert (event.offset, event.deliveries) == (receipt.offset, 1)
            await consumer.ack(event)
        assert [(row.floor, row.dead) for row in (await client.group(topic)).partitions] == [(1, 0)]


async def test_what_ran_out_is_not_handed_out_and_fewer_are_leased_next(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 40)
        async with client.consumer(topic, group=topic, lease_ms=2500) as slow:
            taken = [await anext(slow) for _ in range(3)]
            await slow.ack(taken)
            await anyio.sleep(2.6)
            async with client.consumer(topic, group=topic, max_records=10) as other:
                theirs = [await anext(other) for _ in range(5)]
                assert [event.offset for event in theirs] == [3, 4, 5, 6, 7]
                assert (await anext(slow)).offset == 13  # the first one that the other member was not leased
                [row] = (await client.group(topic)).partitions
                assert row.leased == 10 + 3


def test_a_blocking_member_polls_when_it_wants_events(address: str, topic: str) -> None:
    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            receipts = [producer.send(b"v").result() for _ in range(3)]
        with client.consumer(topic, group=topic, lease_ms=1500, max_deliveries=1, max_records=1) as consumer:
            for receipt in receipts:
                event = next(consumer)
                assert (event.offset, event.deliveries) == (receipt.offset, 1)
                consumer.extend(event, lease_ms=60_000)
                time.sleep(1.7)
                consumer.ack(event)
            assert consumer.poll() == []
        assert [(row.floor, row.dead) for row in client.group(topic).partitions] == [(3, 0)]


@alone
def test_an_answer_that_lay_unread_brings_nothing_that_was_leased_again(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was stopped, or swapped out: the lease began when the broker answered, and not when the
    process read the answer."""
    with blocking.connect(address) as client, blocking.connect(address) as others:
        client.create_topic(topic)
        with (
            client.consumer(topic, group=topic, lease_ms=400) as member,
            others.consumer(topic, group=topic, lease_ms=60_000) as other,
            others.producer(topic) as producer,
        ):
            assert member.poll() == []
            stream = client._connection.link._stream
            assert stream is not None
            receive = stream.receive

            async def stopped(seconds: float) -> bytes | None:
                data = await receive(seconds)
                if b"leases" in (data or b""):
                    monkeypatch.undo()
                    [event] = other.poll(30)  # when the first lease has run out
                    assert event.deliveries == 2
                    other.ack(event, wait=True)
                return data

            monkeypatch.setattr(stream, "receive", stopped)
            client.ping()  # the thread that reads is still in the old `receive` until something comes
            producer.send(b"v").result()
            assert member.poll(2) == []
