"""Opening, closing, cancelling; administration."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import krappy
from krappy import blocking
from krappy.errors import (
    ConfigError,
    ConnectionLost,
    KrappyError,
    TopicExists,
    UnknownTopic,
)

pytestmark = pytest.mark.anyio


async def test_topics(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        assert await client.create_topic(topic, 2, {"retention.ms": 5000})
        assert not await client.create_topic(topic, if_absent=True)
        with pytest.raises(TopicExists):
            await client.create_topic(topic)
        info = await client.describe(topic)
        assert (info.name, len(info.partitions), info.settings["retention.ms"]) == (topic, 2, "5000")
        assert topic in [each.name for each in await client.topics()]
        await client.alter_topic(topic, {"retention.ms": None}, partitions=3)
        info = await client.describe(topic)
        assert (len(info.partitions), info.settings["retention.ms"]) == (3, "-1")
        await client.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            await client.describe(topic)


async def test_a_topic_that_is_there_already_tells_how_it_differs(address: str, topic: str) -> None:
    async with krappy.connect(address) as client:
        await client.create_topic(topic, 2, {"retention.ms": 5000, "cleanup.policy": "compact,delete"})
        same: dict[str, str | bool] = {"cleanup.policy": "delete, compact", "retention.ms": "5000", "view.enable": True}
        assert not await client.create_topic(topic, if_absent=True)
        assert not await client.create_topic(topic, 2, same, if_absent=True)
        with pytest.warns(krappy.TopicDiffers) as warned:
            assert not await client.create_topic(topic, 3, {"retention.ms": 6}, if_absent=True)
        assert warned[0].filename == __file__
        [told] = [each.message for each in warned]
        assert isinstance(told, krappy.TopicDiffers)
        assert told.differs == {"partitions": (3, 2), "retention.ms": ("6", "5000")}
        text = (
            f"the topic '{topic}' was there already, and differs: partitions is 2, not 3; retention.ms is 5000, not 6"
        )
        assert str(told) == text
    with blocking.connect(address) as blocked, pytest.warns(krappy.TopicDiffers) as warned:
        blocked.create_topic(topic, 3, if_absent=True)
    assert warned[0].filename == __file__


async def test_ping_tells_what_the_broker_is(address: str) -> None:
    async with krappy.connect(address) as client:
        pong = await client.ping()
        assert len(pong.cluster) == 22
        assert pong.max_frame == 64 << 20


async def test_nobody_listens_is_one_clear_error() -> None:
    with pytest.raises(ConnectionLost, match=r"no broker at 127\.0\.0\.1:1 .*krappy serve.* --address"):
        async with krappy.connect("127.0.0.1:1"):
            pass


async def test_what_is_no_broker_is_one_clear_error() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:

        async def answer(stream: Any) -> None:
            async with stream:
                await stream.receive()
                await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            with pytest.raises(ConnectionLost, match="does not speak Krappy's protocol"):
                async with krappy.connect(f"127.0.0.1:{port}"):
                    pass
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("wrong", ["", "host:port", "host:0", "host:65536", ":7092", "[::1", "http://h:1", 7092])
async def test_what_is_no_address(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRAPPY_ADDRESS", raising=False)
    if wrong != "[::1":
        with pytest.raises(ConfigError):
            krappy.connect(wrong)


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), "5", None, True])
@pytest.mark.parametrize("name", ["timeout", "keepalive"])
async def test_what_is_no_time(wrong: Any, name: str) -> None:
    for connect in (krappy.connect, blocking.connect):
        with pytest.raises(ConfigError, match=f"{name}=.*give seconds"):
            connect(**{name: wrong})


async def test_the_body_s_error_comes_out_as_it_is(address: str, topic: str) -> None:
    async def fail() -> None:
        async with krappy.connect(address) as client, client.producer(topic) as producer:
            await producer.post(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with krappy.connect(address) as client:
        assert await client.offsets(topic) == {0: 1}


async def test_a_client_that_is_not_open(address: str) -> None:
    client = krappy.connect(address)
    with pytest.raises(KrappyError, match="not open"):
        await client.ping()
    async with client:
        await client.ping()
        with pytest.raises(KrappyError, match="open already"):
            await client.__aenter__()
    with pytest.raises(KrappyError, match="not open"):
        await client.ping()
    async with client:
        await client.ping()


async def test_cancelling_a_request_leaves_the_connection_as_good_as_before(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        await producer.send(b"v", key=b"k")
        table = client.table(topic)
        async with client.consumer(topic, group=topic):
            pass  # so that there is the group
        for number in range(100):
            with anyio.move_on_after(0.0001 * (number % 7)):
                await table.get(b"k")
            with anyio.move_on_after(0.0001 * (number % 5)):
                await producer.send(b"%d" % number, key=b"k")
            if number % 10 == 0:
                with anyio.move_on_after(0.0005 * (number % 4)):
                    async with client.consumer(topic, group=topic) as consumer:
                        await anext(consumer)
        await producer.flush()
        entry = await table.get(b"k")
        assert entry is not None
        assert entry.value == b"99"
        assert (await client.group(topic)).members == []


async def test_many_requests_at_once(address: str, topic: str) -> None:
    async with krappy.connect(address) as client, client.producer(topic) as producer:
        await producer.send_many([(str(number), str(number)) for number in range(100)])
        table = client.table(topic)

        async def look(number: int) -> None:
            for _ in range(10):
                entry = await table.get(str(number))
                assert entry is not None
                assert entry.value == str(number).encode()

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(look, number)


def test_a_client_whose_event_loop_has_ended_says_so(address: str) -> None:
    """As of a program that calls `asyncio.run` twice: nothing in the second loop looks after its connection."""
    client = krappy.connect(address, timeout=5)

    async def begin() -> None:
        await client.__aenter__()
        await client.ping()

    async def go_on() -> None:
        for call in (client.ping, client.topics):
            with pytest.raises(KrappyError, match="has ended: open another"):
                await asyncio.wait_for(call(), 20)

    asyncio.run(begin())
    asyncio.run(go_on())
