"""A frame that has begun must be whole within some time, however it trickles in; a connection may be idle for long."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import trio

import krappy
from krappy.server import channel
from krappy.wire import messages as m
from krappy.wire.frames import ERROR, FrameReader
from krappy.wire.kafka import ApiKey, encode_request
from tests.process import PATIENCE

PAUSE = 0.02  # seconds between two bytes: far less than a peer may be silent for


async def ended_while_it_trickles(stream: trio.SocketStream, data: bytes) -> bytes:
    """Sends byte by byte until the broker ends the connection; returns what the broker sent."""
    said = bytearray()
    ended = trio.Event()

    async def listen() -> None:
        try:
            while piece := await stream.receive_some():
                said.extend(piece)
        except trio.BrokenResourceError:
            pass
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        with trio.fail_after(PATIENCE):
            for at in range(len(data)):
                if ended.is_set():
                    break
                try:
                    await stream.send_all(data[at : at + 1])
                except trio.BrokenResourceError:
                    break
                await trio.sleep(PAUSE)
            await ended.wait()
    return bytes(said)


@pytest.mark.parametrize("size", [60_000, 1_000_000], ids=["small", "large"])
@pytest.mark.parametrize("protocol", ["native", "kafka"])
def test_a_frame_that_trickles_in_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: Literal["native", "kafka"], size: int
) -> None:
    monkeypatch.setattr(channel, "SLOW", 1 << 30)

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker:
            broker.server.stall_seconds = 0.5
            host, _, port = (broker.address if protocol == "native" else broker.kafka_address).rpartition(":")
            idle = await trio.open_tcp_stream(host, int(port))
            async with idle, await trio.open_tcp_stream(host, int(port)) as stream:
                if protocol == "native":
                    said = await ended_while_it_trickles(stream, m.Message(1, bytes(size)).frame(1))
                    ((kind, text),) = _frames(said)
                    assert kind == ERROR
                    assert b"did not come whole within 0.5" in text
                    await idle.send_all(m.Ping().frame(2))
                else:
                    ask = encode_request(ApiKey.METADATA, 12, 1, "x" * 30_000, {"topics": None})
                    assert await ended_while_it_trickles(stream, size.to_bytes(4, "big") + bytes(size)) == b""
                    await idle.send_all(ask)
                with trio.fail_after(PATIENCE):
                    assert await idle.receive_some(), "one that idled between two frames is served"

    trio.run(main)


def _frames(said: bytes) -> list[tuple[int, bytes]]:
    reader = FrameReader()
    reader.feed(said)
    return [(kind, bytes(text)) for kind, text in reader.frames()]
