"""What the server does while its memory is spent: requests under way go on, later."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
import trio

import krappy
from krappy import errors
from krappy.core.security.quota import DEBT
from krappy.core.security.quota_entities import QuotaKey
from krappy.records import batch
from krappy.server import channel
from krappy.wire import messages as m
from krappy.wire.frames import FrameReader
from krappy.wire.kafka import ApiKey, encode_request
from krappy.wire.messages import read_error, take_id, unpack
from tests.kafka.raw import fetch, produce
from tests.process import PATIENCE
from tests.server.test_leaving import FOREVER, leave, opened, topic, until

PARTITIONS = 300  # a Fetch of so many takes more than FAIR while it waits
MEMORY = 1 << 20


def large_fetch(wait: int = FOREVER) -> bytes:
    names: list[tuple[str | bytes, int, int]] = [("wide", index, 0) for index in range(PARTITIONS)]
    return encode_request(ApiKey.FETCH, 12, 1, "large", fetch(names, max_wait_ms=wait, min_bytes=FOREVER))


async def answered(stream: trio.SocketStream) -> None:
    """Waits for the next answer, whatever it says."""
    with trio.fail_after(PATIENCE):
        assert await stream.receive_some(4)


async def announced(broker: krappy.Broker, size: int, source: str, sent: int = 100) -> trio.SocketStream:
    """A peer at the address `source` that has announced a native frame of `size` bytes, and has sent `sent` of them."""
    stream, _ = await opened(broker, broker.address, source)
    await stream.send_all(size.to_bytes(4, "big") + bytes(sent))
    return stream


def test_large_kafka_requests_wait_while_others_take_much_to_be_answered(tmp_path: Path) -> None:
    """An element of some bytes takes hundreds once it is read, until it is answered. How many elements there are is
    known only when they are read."""
    small = encode_request(ApiKey.METADATA, 12, 1, "small", {"topics": [{"name": "t"}]})
    one = batch.encode([b"k"], [bytes(50_000)], timestamps=1)
    publish = encode_request(ApiKey.PRODUCE, 9, 1, "large", produce("t", one))

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=MEMORY) as broker:
            async with krappy.connect(broker.address) as client:
                await client.create_topic("wide", PARTITIONS)
            await until(lambda: not broker.server.connections, "the one who made the topic has left")
            budget = broker.server.budget
            peers = [await opened(broker, broker.kafka_address) for _ in range(4)]
            for number, (stream, connection) in enumerate(peers):
                await stream.send_all(large_fetch())
                await until(lambda: connection.received == len(large_fetch()), "it is there")  # noqa: B023
                assert connection.requests == (number == 0)
            most = budget.heavy.total
            assert budget.laden_for(peers[0][1].whose)
            assert PARTITIONS * 1000 < most < MEMORY // 2  # each partition has a topic of its own
            for data in (small, publish):
                stream, _ = await opened(broker, broker.kafka_address)
                await stream.send_all(data)
                await answered(stream)
                leave(stream, "FIN")
                await until(lambda: len(broker.server.connections) == len(peers), "it has ended")
            leave(peers[0][0], "FIN")
            await until(lambda: sum(each.requests for _, each in peers) == 2, "another begins when one has left")
            assert budget.heavy.total == most
            for stream, _ in peers[1:]:
                leave(stream, "FIN")
            await until(lambda: not broker.server.connections, "the connections have ended")
            assert budget.heavy.total == budget.parked == budget.used == 0

    trio.run(main)


def test_large_requests_of_one_peer_leave_room_for_those_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with topic(tmp_path, memory_bytes=8 * MEMORY) as broker:
            async with krappy.connect(broker.address) as client:
                await client.create_topic("wide", PARTITIONS)
            await until(lambda: not broker.server.connections, "the one who made the topic has left")
            peers = [await opened(broker, broker.kafka_address) for _ in range(30)]
            for stream, connection in peers:
                await stream.send_all(large_fetch())
                await until(lambda: connection.received == len(large_fetch()), "it is there")  # noqa: B023
            assert not peers[-1][1].requests
            with trio.socket.socket() as other:
                await other.bind(("127.0.0.2", 0))
                host, port = broker.kafka_address.rsplit(":", 1)
                await other.connect((host, int(port)))
                await other.send(large_fetch())
                known = {connection for _, connection in peers}
                await until(
                    lambda: any(each.requests for each in broker.server.connections if each not in known),
                    "that of another begins",
                )
            for stream, _ in peers:
                leave(stream, "FIN")
            await until(lambda: not broker.server.connections, "the connections have ended")
            assert broker.server.budget.heavy.total == broker.server.budget.parked == 0

    trio.run(main)


def test_a_large_fetch_does_not_wait_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("krappy.handlers.kafka.fetch")  # its package has a function of this name
    monkeypatch.setattr(module, "LARGE", PARTITIONS - 1)
    monkeypatch.setattr(module, "LARGE_SECONDS", 0.05)

    async def main() -> None:
        async with topic(tmp_path) as broker:
            async with krappy.connect(broker.address) as client:
                await client.create_topic("wide", PARTITIONS)
            await until(lambda: not broker.server.connections, "the one who made the topic has left")
            async with (await opened(broker, broker.kafka_address))[0] as stream:
                await stream.send_all(large_fetch())
                await answered(stream)

    trio.run(main)


def test_large_native_requests_are_refused_while_others_take_much(tmp_path: Path) -> None:
    large = m.Get("t", bytes(100_000), 0, min_offset=1 << 40)  # waits for an offset that does not come
    small = m.Get("t", b"k", 0, min_offset=1 << 40)

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=2 * MEMORY) as broker:
            stream, connection = await opened(broker, broker.address)
            async with stream:
                await stream.send_all(b"".join(large.frame(number) for number in range(3)) + small.frame(3))
                await until(lambda: connection.requests == 4, "all have begun")
                assert broker.server.budget.laden_for(connection.whose)
                broker.server.drain_seconds = 0  # the first four requests end only with their connections
                await stream.send_all(large.frame(4))
                reader = FrameReader()
                while not (frames := list(reader.frames())):
                    reader.feed(await stream.receive_some())
                values = unpack(frames[0][1])
                assert take_id(values) == 4
                assert isinstance(read_error(values), errors.Overloaded)

    trio.run(main)


def test_the_end_of_a_large_frame_comes_while_memory_is_spent(tmp_path: Path) -> None:
    frame = m.Message(1, bytes(200_000)).frame(7)
    last = 1000

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=1 << 20) as broker:
            budget = broker.server.budget
            stream, connection = await opened(broker, broker.address)
            async with stream:
                await stream.send_all(frame[:-last])
                await until(lambda: connection.received == len(frame) - last, "all but the last bytes are there")
                taken = budget.total - budget.used
                budget.charge(taken)
                await stream.send_all(frame[-last:])
                await until(lambda: connection.received == len(frame), "the frame is whole")
                budget.credit(taken)
                reader = FrameReader()
                while not (frames := list(reader.frames())):
                    reader.feed(await stream.receive_some())
                values = unpack(frames[0][1])
                assert take_id(values) == 7
                assert isinstance(read_error(values), errors.UnknownHandle)

    trio.run(main)


def test_writes_without_answer_over_their_quota_do_not_keep_it_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a place in line, however long that takes. But as many of them are ended as needed to give others
    memory."""
    monkeypatch.setattr(channel, "GRACE", 0.1)
    monkeypatch.setitem(cast("dict[QuotaKey, float]", DEBT), QuotaKey.PRODUCE, math.inf)  # so the place is days away

    def write(size: int, acks: int = 1) -> bytes:
        one = batch.encode([b"k"], [bytes(size)], timestamps=1)
        return encode_request(ApiKey.PRODUCE, 9, 1, "greedy" if acks == 0 else "other", produce("t", one, acks=acks))

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=MEMORY) as broker:
            budget = broker.server.budget
            async with krappy.connect(broker.address) as client:
                await client.security.alter_quotas({"producer_byte_rate": 1.0}, client_id="greedy")
            await until(lambda: not broker.server.connections, "the one who set the quota has left")
            # Of several addresses: who has more than is left for others waits for himself.
            peers = [await opened(broker, broker.kafka_address, f"127.0.0.{each}") for each in (2, 3, 4)]
            for number, (stream, connection) in enumerate(peers):
                data = write(400_000 if number else 100, acks=0)
                await stream.send_all(data)
                await until(lambda: connection.received == len(data), "it is there")  # noqa: B023
            assert [each.requests for _, each in peers] == [1, 0, 0]
            other, _ = await opened(broker, broker.kafka_address)
            await other.send_all(write(300_000))
            await answered(other)
            await until(lambda: len(broker.server.connections) == 3, "one has ended")
            assert 400_000 < budget.used < 500_000, "one was enough"
            for stream in (other, *(each for each, _ in peers)):
                leave(stream, "FIN")

    trio.run(main)


def test_large_frames_that_one_peer_sends_slowly_leave_room_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame has its room as soon as it is announced. Some hundred bytes, over a few connections, once kept all other
    peers from sending anything large for as long as the announced frames might take."""
    monkeypatch.setattr(channel, "GRACE", 1e6)
    size = MEMORY // 2

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=4 * MEMORY) as broker:
            budget = broker.server.budget
            slow = [await announced(broker, size - number, "127.0.0.2") for number in range(12)]
            await until(lambda: sum(each._wanted > 0 for each in channels(broker)) == len(slow), "all have come")
            assert size < budget.used <= 2 * MEMORY + size
            assert budget.short_for == {"127.0.0.2"}
            assert not budget.short
            woken: list[None] = []
            budget._room.subscribe(lambda: woken.append(None))
            async with krappy.connect(broker.address) as client, client.producer("t") as producer:
                for _ in range(3):
                    with trio.fail_after(PATIENCE):
                        await producer.send(b"x" * size)
            assert not woken  # hundreds may wait, and would have to look each time whether they may go on
            while slow:  # whoever it is, a next one has its room
                await until(lambda: budget.used >= size - 12, "one has its room")
                await slow.pop().aclose()
            await until(lambda: not broker.server.connections, "the connections have ended")
            assert budget.used == 0
            assert not budget._reserved

    def channels(broker: krappy.Broker) -> list[channel.Channel]:
        return [each for each in broker.server.connections if isinstance(each, channel.Channel)]

    trio.run(main)


def test_half_frames_of_one_peer_leave_room_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is with frames that are large by little, which need no room at first."""
    monkeypatch.setattr(channel, "GRACE", 1e6)

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=4 * MEMORY) as broker:
            budget = broker.server.budget
            slow = [await announced(broker, 100_000, "127.0.0.2", sent=90_000) for _ in range(60)]
            await until(lambda: budget.short_for == {"127.0.0.2"}, "one waits for those of the same address")
            async with krappy.connect(broker.address) as client, client.producer("t") as producer:
                for _ in range(3):
                    with trio.fail_after(PATIENCE):
                        await producer.send(b"x" * (MEMORY // 2))
            for stream in slow:
                await stream.aclose()
            await until(lambda: not broker.server.connections, "the connections have ended")
            assert budget.used == 0
            assert not budget._reserved

    trio.run(main)


def test_only_own_connections_count_as_slow_for_who_has_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for room that he takes himself ends no connections of others, however slow these are."""
    monkeypatch.setattr(channel, "GRACE", 1e6)

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=4 * MEMORY) as broker:
            budget, server = broker.server.budget, broker.server
            other = await announced(broker, MEMORY // 2, "127.0.0.3")
            await until(lambda: budget.used > 0, "it has its room")
            slow = [await announced(broker, MEMORY, "127.0.0.2") for _ in range(3)]
            await until(lambda: budget.short_for == {"127.0.0.2"}, "one waits for those of the same address")
            for each in server.connections:
                each._frame_since = -math.inf  # type: ignore[attr-defined]
            assert {each.describe()["client"].partition(":")[0] for each in server._overdue()} == {"127.0.0.2"}
            for stream in (other, *slow):
                await stream.aclose()

    trio.run(main)


def test_slow_connections_of_others_count_for_who_has_less_than_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow connections of others count then, even while the one who waits has a large request under way: with a few
    connections he always has. But none of those who have less than he."""
    monkeypatch.setattr(channel, "GRACE", 1e6)

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=4 * MEMORY) as broker:
            budget, server = broker.server.budget, broker.server
            streams, size = [], 400_000
            for number, large in ((5, size // 2), (2, 3 * MEMORY // 2), (3, 3 * MEMORY // 2), (4, size), (4, size)):
                streams.append(await announced(broker, large, f"127.0.0.{number}"))
                count = len(streams)
                await until(lambda: sum(each.received for each in server.connections) == 104 * count, "it is there")  # noqa: B023
            assert budget.short_for == {"127.0.0.4"}
            for each in server.connections:
                each._frame_since = -math.inf  # type: ignore[attr-defined]
            slow = {each.describe()["client"].partition(":")[0] for each in server._overdue()}
            assert slow == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
            for stream in streams:
                await stream.aclose()
            await until(lambda: not server.connections, "the connections have ended")
            assert budget.used == 0

    trio.run(main)
