"""What a member has received and not handed out is handed out once, and only while it is the member's."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import anyio
import pytest

import krappy
from krappy import blocking
from krappy.clients.events import EventBatch
from krappy.errors import ConnectionLost, RequestTimeout
from tests.clients.helpers import fill
from tests.clients.proxy import Proxy
from tests.served import alone

pytestmark = pytest.mark.anyio


async def test_with_key_order_later_events_of_a_key_go_back_with_a_nack(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            for key in (b"a", b"b", None, b"a", b"a", b"b"):
                await producer.send(b"v", key=key)
                await producer.flush()
        async with client.consumer(topic, group=topic, order="key") as consumer:
            first = await anext(consumer)
            await consumer.nack(first, delay_ms=2000)
            came: list[tuple[int, int]] = []
            while len(came) < 6:
                event = await anext(consumer)
                came.append((event.offset, event.deliveries))
                await consumer.ack(event)
            assert came == [(1, 1), (2, 1), (5, 1), (0, 2), (3, 2), (4, 2)]


async def test_with_key_order_the_rest_of_a_batch_goes_back_too(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            await producer.send_many([(key, b"v") for key in (b"a", b"b", b"a", b"b", b"a")])
        async with client.consumer(topic, group=topic, order="key") as consumer:
            await consumer.nack([await anext(consumer)], delay_ms=2000)
            assert [(await anext(consumer)).offset for _ in range(2)] == [1, 3]
            assert [(await anext(consumer)).offset for _ in range(3)] == [0, 2, 4]


async def test_what_was_received_is_dropped_with_its_connection(lossy: Proxy, address: str, topic: str) -> None:
    """The broker leases these events to others at once."""
    async with krappy.connect(lossy.address) as client, krappy.connect(address) as other:
        await fill(other, topic, 400)
        async with (
            client.consumer(topic, group=topic) as cut,
            other.consumer(topic, group=topic, max_records=300) as member,
        ):
            mine = [await anext(cut) for _ in range(10)]  # there are more, which it has received
            lossy.cut()
            theirs = [await anext(member) for _ in range(300)]
            assert [event.offset for event in theirs[:10]] == [event.offset for event in mine]
            assert (await anext(cut)).offset == 300


def test_leases_that_end_while_events_are_made(
    lossy: Proxy, address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that sends acks registers the member anew, while another thread makes events of the old leases."""
    made = EventBatch.events
    with blocking.connect(lossy.address) as client, blocking.connect(address) as other:
        other.create_topic(topic)
        with other.producer(topic) as producer:
            for _ in range(3):
                producer.send(b"v")
                producer.flush()
        with client.consumer(topic, group=topic) as consumer:
            first = next(consumer)
            core: Any = consumer._core

            def slow(self: EventBatch) -> list[krappy.Event]:
                monkeypatch.setattr(EventBatch, "events", made)
                generation = core._generation
                lossy.cut()
                consumer.ack(first)
                while core._generation == generation:
                    time.sleep(0.01)
                return made(self)

            monkeypatch.setattr(EventBatch, "events", slow)
            came = [event for _ in range(3) for event in consumer.poll(1)]
            assert [(event.offset, event.deliveries) for event in came] == [(1, 2), (2, 2)]


@alone
def test_a_poll_gives_all_that_came_together(address: str, topic: str) -> None:
    """However small the batches were, and in whatever partitions they were: so one ack can be for all."""
    with blocking.connect(address) as client:
        client.create_topic(topic, 3)
        with client.producer(topic) as producer:
            for number in range(30):
                producer.send(b"v", partition=number % 3)
                producer.flush()
        with client.consumer(topic, group=topic) as consumer:
            events = consumer.poll(5)
            assert len({(event.partition, event.offset) for event in events}) == 30
            consumer.ack(events, wait=True)
            assert consumer.poll(0) == []


async def test_two_tasks_share_what_a_poll_brings(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.consumer(topic, group=topic) as consumer, client.producer(topic) as producer:
            came: list[int] = []

            async def take() -> None:
                while len(came) < 5:
                    came.extend(event.offset for event in await consumer.poll(1))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                tasks.start_soon(take)
                await anyio.sleep(0.1)
                for _ in range(5):
                    await producer.send(b"v")
            assert came == [0, 1, 2, 3, 4]


def test_a_connection_without_room_holds_no_poll_and_no_leaving_up(lossy: Proxy, address: str, topic: str) -> None:
    """The broker takes nothing, and large requests of other threads have filled the socket."""
    with blocking.connect(lossy.address, timeout=5) as client, blocking.connect(address) as other:
        other.create_topic(topic)
        with other.producer(topic) as producer:
            producer.send_columns(None, [b"v"] * 20)

        def fill() -> None:
            with suppress(RequestTimeout, ConnectionLost):
                client.table(topic).get(b"k" * 900_000)

        consumer = client.consumer(topic, group=topic).open()
        mine = consumer.poll(5)
        lossy.stall()
        threads = [threading.Thread(target=fill) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # until one of them waits in its send
        began = time.monotonic()
        consumer.ack(mine)
        assert consumer.poll(0.1) == []
        assert time.monotonic() - began < 4
        began = time.monotonic()
        with pytest.raises(RequestTimeout):
            consumer.close()
        assert time.monotonic() - began < 1.5 * client._connection.timeout
        client.close()
        for thread in threads:
            thread.join()
