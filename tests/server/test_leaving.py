"""A peer that leaves is noticed at once, whatever waits for it: its place is free for others (promise 7).

The broker runs in this process, so that a test can say when the peer leaves: once its requests have begun.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import krappy
from krappy.records import batch
from krappy.server import channel, http, inbound, server, sockets, throttled
from krappy.server.channel import Channel
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.kafka.raw import fetch, produce
from tests.process import PATIENCE

FOREVER = 2**31 - 1  # ms: 24 days
AHEAD = 60_000  # bytes of requests behind the one that waits; they fit into what the system keeps for a socket

pytestmark = pytest.mark.skipif(
    getattr(socket, "TCP_INFO", None) is None, reason="the system does not tell before all is read"
)


def waiting_fetch(version: int = 12) -> bytes:
    body = fetch([("t", 0, 0)], max_wait_ms=FOREVER, min_bytes=FOREVER)
    return encode_request(ApiKey.FETCH, version, 1, "leaver", body)


def metadata() -> bytes:
    return encode_request(ApiKey.METADATA, 12, 1, "leaver", {"topics": [{"name": "t"}]})


async def until(condition: Callable[[], bool], what: str) -> None:
    with trio.move_on_after(PATIENCE) as scope:
        while not condition():
            await trio.sleep(0.001)
    assert not scope.cancelled_caught, f"still not so after {PATIENCE:.0f} s: {what}"


@asynccontextmanager
async def topic(folder: Path, **settings: Any) -> AsyncIterator[krappy.Broker]:
    """A broker with an empty topic `t`."""
    async with krappy.Broker(folder, durability="os", **settings) as broker:
        async with krappy.connect(broker.address) as client:
            await client.create_topic("t")
        await until(lambda: not broker.server.connections, "the one who made the topic has left")
        yield broker


async def opened(broker: krappy.Broker, address: str, source: str | None = None) -> tuple[trio.SocketStream, Channel]:
    """Connects a peer; returns it, and the broker's side of the connection. `source`: the address that it comes from;
    None: any."""
    host, _, port = address.rpartition(":")
    before = set(broker.server.connections)
    stream = await trio.open_tcp_stream(host, int(port), local_address=source)
    await until(lambda: len(broker.server.connections) > len(before), "the connection is there")
    (connection,) = broker.server.connections - before
    assert isinstance(connection, Channel)
    return stream, connection


def leave(stream: trio.SocketStream, how: str) -> None:
    if how == "RST":
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize(
    "behind",
    [b"", waiting_fetch(), metadata() * (AHEAD // len(metadata())), waiting_fetch() * 50, b"\0\0\1\0half a frame"],
    ids=["nothing", "another", "much", "many", "half"],
)
def test_a_kafka_client_that_leaves_while_its_fetch_waits(tmp_path: Path, how: str, behind: bytes) -> None:
    async def main() -> None:
        async with topic(tmp_path) as broker:
            stream, connection = await opened(broker, broker.kafka_address)
            await stream.send_all(waiting_fetch())
            await until(lambda: connection.in_flight > 0, "the Fetch waits")
            await stream.send_all(behind)
            leave(stream, how)
            await until(lambda: not broker.server.connections, "the connection has ended")
            assert broker.server.budget.used == broker.server.budget.parked == 0

    trio.run(main)


def test_a_turn_that_ends_with_the_last_request_keeps_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that took longer than a turn, with none behind it, used to be treated like one with many behind it."""
    monkeypatch.setattr(inbound, "TURN", -1.0)
    monkeypatch.setattr(sockets, "_INFO", None)

    async def main() -> None:
        async with topic(tmp_path) as broker:
            stream, connection = await opened(broker, broker.kafka_address)
            await stream.send_all(waiting_fetch())
            await until(lambda: connection.in_flight > 0, "the Fetch waits")
            leave(stream, "FIN")
            await until(lambda: not broker.server.connections, "the connection has ended")

    trio.run(main)


def test_what_was_published_behind_a_request_that_waits_is_stored(tmp_path: Path) -> None:
    """Nobody waits for the answer of the request that waits; what came behind it is taken as always."""
    event = encode_request(ApiKey.PRODUCE, 9, 2, "leaver", produce("t", batch.encode(None, [b"x"], timestamps=1)))

    async def main() -> None:
        async with topic(tmp_path) as broker:
            stream, connection = await opened(broker, broker.kafka_address)
            await stream.send_all(waiting_fetch())
            await until(lambda: connection.in_flight > 0, "the Fetch waits")
            await stream.send_all(event + waiting_fetch() + event)
            leave(stream, "FIN")
            await until(lambda: not broker.server.connections, "the connection has ended")
            async with krappy.connect(broker.address) as client, client.consumer("t", end="now") as consumer:
                assert [event.value async for event in consumer] == [b"x", b"x"]

    trio.run(main)


@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_native_client_that_leaves_while_it_is_not_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its polls take as much as one connection may have in flight, so nothing more of it is read."""
    monkeypatch.setattr(throttled, "IN_FLIGHT", 3 * channel.TASK)

    async def main() -> None:
        async with topic(tmp_path) as broker:
            stream, connection = await opened(broker, broker.address)
            await stream.send_all(m.ConsumerRegistration(["t"]).frame(1))
            await stream.receive_some()
            await stream.send_all(b"".join(m.Poll(1, max_wait=3_600_000).frame(id) for id in range(2, 20)))
            await until(lambda: connection.in_flight > throttled.IN_FLIGHT, "nothing more is read")
            leave(stream, how)
            await until(lambda: not broker.server.connections, "the connection has ended")
            assert broker.server.budget.used == broker.server.budget.parked == 0

    trio.run(main)


@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_reader_of_a_live_view_that_has_sent_much_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("krappy.console.live.KEEP_ALIVE_SECONDS", 3600.0)
    ask = b"GET /api/v1/topics/t/tail HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def main() -> None:
        async with topic(tmp_path, listen_http="127.0.0.1:0") as broker:
            host, _, port = broker.http_address.rpartition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(ask)
            while b"event: start" not in await stream.receive_some():
                pass
            await stream.send_all(ask * ((http.AHEAD + AHEAD) // len(ask)))
            leave(stream, how)
            await until(lambda: not broker.server.connections, "the connection has ended")

    trio.run(main)


def test_a_peer_that_leaves_while_memory_is_spent(tmp_path: Path) -> None:
    """A request for which there is no room waits for it; the broker must notice meanwhile that its peer leaves."""

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=1 << 20) as broker:
            budget = broker.server.budget
            stream, _ = await opened(broker, broker.address)
            taken = budget.total - budget.used
            budget.charge(taken)
            await stream.send_all(m.Message(1, bytes(200_000)).frame(1)[:100])
            await until(lambda: bool(budget._wanted), "a large frame waits for room")
            leave(stream, "FIN")
            budget.credit(taken)
            await until(lambda: not broker.server.connections, "the connection has ended")
            assert not budget.used

    trio.run(main)


async def looks_in_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When ten thousand left at once, one step of the event loop used to part with all of them: 0.25 s."""
    monkeypatch.setattr(server, "LOOKED", 5)
    steps = [0]
    look = Channel.look

    def counting(channel: Channel, now: float) -> None:
        steps[-1] += 1
        look(channel, now)

    class Steps(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            steps.append(0)

    async with topic(folder, listen_kafka="127.0.0.1:0") as broker:
        monkeypatch.setattr(Channel, "look", counting)
        trio.lowlevel.add_instrument(Steps())
        host, _, port = broker.kafka_address.rpartition(":")
        peers = [await trio.open_tcp_stream(host, int(port)) for _ in range(40)]
        for peer in peers:
            await peer.send_all(waiting_fetch() * 2)
        await until(lambda: len(broker.server.connections) == 40, "all wait")
        for peer in peers:
            await peer.aclose()
        await until(lambda: not broker.server.connections, "all have left")
    assert 0 < max(steps) <= 5


def test_thousands_that_leave_at_once_are_parted_with_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.run(looks_in_turns, tmp_path, monkeypatch)


async def vanishes(folder: Path, monkeypatch: pytest.MonkeyPatch, listener: str) -> None:
    monkeypatch.setattr(server, "LOOKS", 1)
    addresses = {"listen_native": "127.0.0.1:0", "listen_kafka": "127.0.0.1:0", "listen_http": "127.0.0.1:0"}
    async with topic(folder, **addresses) as broker:
        at = {"listen_native": broker.address, "listen_kafka": broker.kafka_address, "listen_http": broker.http_address}
        host, _, port = at[listener].rpartition(":")
        asked = {
            "listen_native": m.Ping().frame(1),
            "listen_kafka": waiting_fetch(),
            "listen_http": f"GET /api/v1/topics/t/tail HTTP/1.1\r\nHost: {at[listener]}\r\n\r\n".encode(),
        }
        async with await trio.open_tcp_stream(host, int(port)) as peer:
            await peer.send_all(asked[listener])
            await until(lambda: any(each.received for each in broker.server.connections), "it has asked")
            monkeypatch.setattr(sockets, "_AGAIN", 0)  # as if all that was sent to it had been sent again for a minute
            await until(lambda: not broker.server.connections, "it is let go")


@pytest.mark.parametrize("listener", ["listen_native", "listen_kafka", "listen_http"])
def test_a_peer_that_vanishes_while_it_is_sent_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    trio.run(vanishes, tmp_path, monkeypatch, listener)
