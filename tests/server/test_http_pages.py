"""Answers over HTTP count in the memory budget; a reader that takes them slowly is cut off when others wait
for room."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

import krappy
from krappy.records import batch
from krappy.server import http, http_wire
from krappy.server.pages import ANSWER
from krappy.wire import messages as m
from tests.peer import Peer
from tests.process import PATIENCE, wait_until

PAGE = b"GET /api/v1/topics/pages/events?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def deaf(address: str, ask: bytes) -> socket.socket:
    """Asks for a page, and takes next to nothing of it."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    sock.sendall(ask)
    return sock


def fill(address: str) -> None:
    with Peer(address) as peer:
        handle = peer.producer("pages").handle
        for _ in range(4):
            peer.ask(m.Batch(handle, 0, batch.encode(None, [b"x" * 2000] * 490, timestamps=1)), m.BatchStored)


@contextlib.contextmanager
def deaf_ones(count: int, address: str, ask: bytes) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(deaf(address, ask)) for _ in range(count)]


def test_pages_that_nobody_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take HTTP's part of the budget and one answer more. Meanwhile a reader beside them gets its page, and other
    clients' events are taken."""
    monkeypatch.setattr(http_wire, "GRACE", 1.0)
    monkeypatch.setattr(http_wire, "SLOWEST", 4 << 20)
    monkeypatch.setattr(http, "ROOM_SECONDS", PATIENCE)
    most, told = 0, list[str]()

    async def watch(broker: krappy.Broker) -> None:
        nonlocal most
        while True:
            most = max(most, broker.server.pages.used)
            await trio.sleep(0.001)

    def read(broker: krappy.Broker) -> None:
        with httpx.Client(base_url=f"http://{broker.http_address}", timeout=PATIENCE, trust_env=False) as client:
            client.get("/healthz")
            with deaf_ones(6, broker.http_address, PAGE * 8):
                wait_until(
                    lambda: broker.server.budget.used > broker.server.pages.total,
                    "they have taken all the room that there is",
                )
                asked = 0
                while asked < 2 or "peer_stalled" not in told:  # what the others have asked for may still be under way
                    assert len(client.get("/api/v1/topics/pages/events", params={"limit": 1000}).content) > 1 << 20
                    asked += 1
                assert client.get("/readyz").status_code == 200
                with Peer(broker.address) as peer:
                    peer.ask(m.Message(peer.producer("others").handle, b"v", b"k"), m.MessageStored)

    async def main() -> None:
        async with krappy.Broker(
            tmp_path, listen_http="127.0.0.1:0", memory_bytes=4 << 20, report=lambda event, **facts: told.append(event)
        ) as broker:
            await trio.to_thread.run_sync(fill, broker.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, broker)
                with trio.fail_after(3 * PATIENCE):
                    await trio.to_thread.run_sync(read, broker, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()
            most_allowed = broker.server.pages.total + ANSWER + (3 << 20)
            assert most <= most_allowed, "an answer is reckoned before it is made"
            assert "peer_stalled" in told, "one that took nothing was cut off"

    trio.run(main)


def test_a_request_for_which_there_is_no_room_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ROOM_SECONDS", 0.1)

    def ask(broker: krappy.Broker) -> tuple[int, int, int]:
        with httpx.Client(base_url=f"http://{broker.http_address}", timeout=PATIENCE, trust_env=False) as client:
            broker.server.pages.charge(3 * broker.server.pages.total)
            refused, probe = client.get("/api/v1/cluster"), client.get("/healthz")
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["code"] == "THROTTLING_QUOTA_EXCEEDED"
            broker.server.pages.credit(3 * broker.server.pages.total)
            return refused.status_code, probe.status_code, client.get("/api/v1/cluster").status_code

    async def main() -> None:
        async with krappy.Broker(tmp_path, listen_http="127.0.0.1:0") as broker:
            assert await trio.to_thread.run_sync(ask, broker) == (503, 200, 200)
            assert broker.server.pages.used == 0

    trio.run(main)
