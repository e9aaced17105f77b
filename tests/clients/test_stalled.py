"""A broker that takes nothing more, on a connection that stays open: whatever waits for it ends in its own time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

import krappy
from krappy import blocking
from krappy.clients.runtime import run
from krappy.clients.sync.io import ThreadStream
from krappy.errors import ConnectionLost, RequestTimeout
from tests.clients.proxy import Proxy

LARGE = b"x" * 900_000


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a listener that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_producer_s_events_fail_in_time_and_then_it_goes_on(lossy: Proxy, address: str, topic: str) -> None:
    """The thread that sends used to wait in the socket until the connection counted as lost, a minute later."""
    with blocking.connect(lossy.address) as client:
        client.create_topic(topic)
        producer = client.producer(topic, timeout=3).open()
        producer.send("before").result()
        lossy.stall()
        sent = [producer.send(LARGE) for _ in range(20)]
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match="no acknowledgement in 3 s"):
            producer.flush()
        assert time.monotonic() - began < 10
        assert all(isinstance(each.exception(), RequestTimeout) for each in sent)
        lossy.release()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert producer.send("after").result().offset > 0
                break
            except RequestTimeout:
                assert time.monotonic() < deadline
        producer.close()


def test_a_producer_is_left_in_time(lossy: Proxy, topic: str) -> None:
    with blocking.connect(lossy.address) as client:
        client.create_topic(topic)
        producer = client.producer(topic, timeout=1).open()
        lossy.stall()
        for _ in range(20):
            producer.send(LARGE)
        began = time.monotonic()
        with pytest.raises(RequestTimeout):
            producer.close()
        assert time.monotonic() - began < 10


def test_what_is_left_of_a_frame_goes_before_the_next() -> None:
    ours, theirs = socket.socketpair()
    stream = ThreadStream(ours)
    got = bytearray()

    def read() -> None:
        while data := theirs.recv(1 << 20):
            got.extend(data)

    assert stream.send(b"a" * 5_000_000, patience=0.05)
    assert not stream.send(b"b" * 9, patience=0.05)
    assert not run(stream.drained(0.05))
    reader = threading.Thread(target=read)
    reader.start()
    assert run(stream.drained(30))
    assert stream.send(b"c" * 9, patience=30)
    stream.close()
    reader.join(30)
    theirs.close()
    assert got == b"a" * 5_000_000 + b"c" * 9


def test_a_blocking_client_opens_in_time_or_not_at_all(silent: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match=r"does not answer in 0\.2 s"), blocking.connect(silent, timeout=0.2):
        pass
    assert time.monotonic() - began < 8


@pytest.mark.anyio
async def test_a_client_opens_in_time_or_not_at_all(silent: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match=r"does not answer in 0\.2 s"):
        async with krappy.connect(silent, timeout=0.2):
            pass
    assert time.monotonic() - began < 8


def test_a_client_may_have_the_longest_timeout(address: str) -> None:
    with blocking.connect(address, timeout=1e9) as client:
        client.ping()
