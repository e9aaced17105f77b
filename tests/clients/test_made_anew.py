"""A topic that is deleted and made anew while a connection is lost is another one, though it has the same name."""

from __future__ import annotations

import anyio
import pytest

import krappy
from krappy.client import Watch
from krappy.clients.watch_progress import SnapshotEnd
from krappy.errors import ConnectionLost, LeaseLost, UnknownTopic
from krappy.types import Entry
from tests.clients.helpers import fill
from tests.clients.proxy import Proxy

pytestmark = pytest.mark.anyio


async def keyed(client: krappy.Client, topic: str, count: int, value: bytes) -> None:
    await client.create_topic(topic)
    async with client.producer(topic) as producer:
        await producer.send_many([(b"%06d" % number, value) for number in range(count)])


async def drain(watch: Watch, got: list[Entry | SnapshotEnd]) -> None:
    async for item in watch:
        got.append(item)


async def test_a_reader_does_not_go_on_in_it(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await fill(other, topic, 5)
        async with client.consumer(topic) as consumer:
            assert [(await anext(consumer)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
            lossy.refuse()
            await other.delete_topic(topic)
            await fill(other, topic, 9)
            lossy.refuse(False)
            for _ in range(2):
                with anyio.fail_after(30), pytest.raises(UnknownTopic, match="made anew"):
                    await anext(consumer)
        async with client.consumer(topic) as consumer:
            assert [(await anext(consumer)).offset for _ in range(9)] == list(range(9))


@pytest.mark.parametrize("connected", [True, False])
async def test_a_member_does_not_go_on_in_it_and_its_acks_are_not_of_its_events(
    lossy: Proxy, address: str, topic: str, connected: bool
) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await fill(other, topic, 5)
        async with client.consumer(topic, group=topic) as consumer:
            events = [await anext(consumer) for _ in range(5)]
            if not connected:
                lossy.refuse()
            await other.delete_topic(topic)
            await fill(other, topic, 9)
            async with other.consumer(topic, group=topic) as before:
                await anext(before)  # so the new events were delivered once, and wait again
            lossy.refuse(False)
            with anyio.fail_after(30), pytest.raises(UnknownTopic):
                await anext(consumer)
            with pytest.raises(LeaseLost if connected else UnknownTopic):
                await consumer.ack(events, wait=True)
        async with other.consumer(topic, group=topic) as consumer:
            assert [(await anext(consumer)).offset for _ in range(9)] == list(range(9))


@pytest.mark.parametrize("more", [0, 3])
async def test_a_watch_does_not_go_on_in_it(lossy: Proxy, address: str, topic: str, more: int) -> None:
    """Even where no event comes behind the offset that the watch had come to."""
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await keyed(other, topic, 5, b"old")
        async with client.table(topic).watch() as watch:
            got = [await anext(watch) for _ in range(6)]
            assert isinstance(got[5], SnapshotEnd)
            lossy.refuse()
            await other.delete_topic(topic)
            await keyed(other, topic, 5 + more, b"new")
            lossy.refuse(False)
            with anyio.fail_after(30):
                with pytest.raises(UnknownTopic, match="made anew"):
                    await anext(watch)
                with pytest.raises(ConnectionLost):
                    await anext(watch)


async def test_a_snapshot_that_broke_off_does_not_go_on_in_it(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await keyed(other, topic, 20_000, b"old" * 300)  # more than all buffers on the way
        async with client.table(topic).watch() as watch:
            await anext(watch)
            lossy.refuse()
            await other.delete_topic(topic)
            await keyed(other, topic, 10, b"new")
            lossy.refuse(False)
            got: list[Entry | SnapshotEnd] = []
            with anyio.fail_after(30), pytest.raises(UnknownTopic, match="made anew"):
                await drain(watch, got)
            assert all(isinstance(item, Entry) and item.value != b"new" for item in got)


async def test_one_that_is_the_same_is_gone_on_in(lossy: Proxy, address: str, topic: str) -> None:
    async with krappy.connect(address) as other, krappy.connect(lossy.address) as client:
        await keyed(other, topic, 1, b"old")
        async with client.table(topic).watch() as watch, client.consumer(topic) as consumer:
            assert (await anext(watch)).key == b"000000"  # type: ignore[union-attr]
            assert isinstance(await anext(watch), SnapshotEnd)
            await anext(consumer)
            lossy.cut()
            async with other.producer(topic) as producer:
                await producer.send(b"new", key=b"x")
            with anyio.fail_after(30):
                assert (await anext(watch)).key == b"x"  # type: ignore[union-attr]
                assert (await anext(consumer)).key == b"x"
