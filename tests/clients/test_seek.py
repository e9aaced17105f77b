"""Seeks beside polls that are under way, seeks that nobody waited for, and partitions that are found meanwhile."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import krappy
from krappy.errors import ConnectionLost
from krappy.wire.messages import ConsumerRegistration
from tests.clients.helpers import fill
from tests.served import alone

pytestmark = pytest.mark.anyio

LONG_S = 10.0  # seconds


async def offsets(consumer: krappy.client.Consumer, count: int) -> list[int]:
    with anyio.fail_after(LONG_S):
        return [(await anext(consumer)).offset for _ in range(count)]


@alone  # a producer and a consumer have connections of their own in a cluster
@pytest.mark.parametrize("to", [3, 5])
async def test_a_seek_to_where_a_poll_began_that_has_been_answered(
    address: str, topic: str, to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes on from there, and brings once more what that poll has brought: but it ends elsewhere."""
    async with krappy.connect(address) as client:
        await fill(client, topic, 5)
        async with client.producer(topic) as producer, client.consumer(topic, start=to) as consumer:
            core: Any = consumer._core
            [place] = core._places
            ask = place.link.ask

            async def late(request: Any, *args: Any, **options: Any) -> Any:
                await producer.send(b"5")
                while place.poll is not None and not place.poll.is_set():
                    await anyio.sleep(0.001)
                return await ask(request, *args, **options)

            monkeypatch.setattr(place.link, "ask", late)
            assert await consumer.seek(0, to) == to
            monkeypatch.undo()
            await producer.send(b"6")
            await producer.send(b"7")
            assert await offsets(consumer, 8 - to) == list(range(to, 8))
            await producer.send(b"8")
            assert await offsets(consumer, 1) == [8]


@pytest.mark.parametrize("to", [0, 900, 2900])
async def test_a_seek_that_nobody_waits_for_changes_nothing(address: str, topic: str, to: int) -> None:
    async with krappy.connect(address) as client:
        await fill(client, topic, 3000)
        async with client.consumer(topic, max_records=10, start=500) as consumer:
            assert await offsets(consumer, 5) == list(range(500, 505))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await consumer.seek(0, to)
            assert scope.cancelled_caught
            assert await offsets(consumer, 2495) == list(range(505, 3000))


@alone  # consumers register elsewhere, at leaders, in a cluster
async def test_a_partition_that_is_found_when_the_connection_is_lost_is_read_from_its_start(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("krappy.clients.reading.REFRESH", 0.0)
    monkeypatch.setattr("krappy.clients.reading.MAX_WAIT", 50)
    async with krappy.connect(address) as client:
        await client.create_topic(topic)
        async with client.consumer(topic, start="latest") as consumer:
            link = consumer._core._router.home
            ask, lost = link.ask, 0

            async def losing(request: Any, *args: Any, **options: Any) -> Any:
                nonlocal lost
                if isinstance(request, ConsumerRegistration) and lost < 3:
                    lost += 1
                    raise ConnectionLost("the connection was lost")
                return await ask(request, *args, **options)

            monkeypatch.setattr(link, "ask", losing)
            await client.alter_topic(topic, partitions=3)
            async with client.producer(topic) as producer:
                for partition in (0, 1, 2):
                    await producer.send(b"x", partition=partition)
            with anyio.fail_after(LONG_S):
                assert {(await anext(consumer)).partition for _ in range(3)} == {0, 1, 2}
            assert lost == 3
