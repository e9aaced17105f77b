"""Connections by the thousand, and what they make the broker do before anybody has logged in: others are served.

Each test holds its hostile peers while two others are measured: one who pings the native port (`STALL`: the longest
that one of its requests may take), and one who asks for /healthz, as Kubernetes does. What a busy machine adds is not
the broker's: it is taken off. `make hostile` runs it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.kafka.raw import Raw, fetch
from tests.long import LONG
from tests.peer import Peer
from tests.process import PATIENCE, BrokerProcess, Launcher, broker_process, kept_off, wait_until

pytestmark = pytest.mark.skipif(not LONG, reason="minutes of load: `make hostile` runs it (KRAPPY_LONG=1)")

MIB = 1 << 20
STALL = 0.25  # seconds that another client may wait for an answer at the most
PROBE = 1.0  # seconds that Kubernetes waits for one by default (timeoutSeconds)
FOREVER = 2**31 - 1
MOST = 10_000  # max_connections


@pytest.fixture(scope="module", autouse=True)
def many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2 * MOST:
        pytest.skip(f"this machine lets a process have {most} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture
def broker(tmp_path: Path, launch: Launcher) -> Iterator[BrokerProcess]:
    settings: dict[str, Any] = {"listen_http": "127.0.0.1:0", "memory_bytes": 64 * MIB, "durability": "os"}
    with broker_process(tmp_path / "data", launch=launch, **settings) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop(30.0) == 0


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def ask(address: str, path: str, head: bytes = b"") -> bytes:
    """The status line."""
    with connect(address) as sock:
        sock.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n" % (path.encode(), head))
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                found += piece
        return found.partition(b"\r\n")[0]


class Watched:
    """What others see of the broker: the longest that each kind of request took."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.longest = {"ping": 0.0, "probe": 0.0}
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._peer = Peer(broker.address)
        self._http = broker.http
        self._broker = broker
        self._threads = [
            threading.Thread(target=self._run, args=(name, what, pause), daemon=True)
            for name, what, pause in (("ping", self._ping, 0.005), ("probe", self._probe, 0.1))
        ]
        for thread in self._threads:
            thread.start()

    def _ping(self) -> None:
        self._peer.ask(m.Ping(), m.Pong)

    def _probe(self) -> None:
        assert b" 200 " in ask(self._http, "/healthz")

    def _run(self, name: str, what: Callable[[], None], pause: float) -> None:
        while not self._stop.wait(pause):
            begun, off = time.monotonic(), self._kept_off()
            try:
                what()
            except Exception as error:
                self.failures.append(f"{name}: {error!r}")
                return
            took = time.monotonic() - begun - (self._kept_off() - off)
            self.longest[name] = max(self.longest[name], took)

    def _kept_off(self) -> float:
        """Seconds for which the broker, this thread, or the test's own, waited for a processor."""
        return self._broker.kept_off() + kept_off(Path("/proc/thread-self")) + kept_off(Path("/proc/self"))

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._peer.close()


@contextmanager
def bounded(broker: BrokerProcess, memory: int) -> Iterator[None]:
    """Nobody waits for longer than they may, and memory stays within `memory` bytes more than before."""
    ask(broker.http, "/healthz")  # the console is loaded
    watched, before = Watched(broker), broker.rss()
    broker.reset_peak()
    try:
        yield
    finally:
        watched.end()
    peak = broker.peak_rss()
    took = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in watched.longest.items())
    print(f"{took}; memory {before / MIB:.0f} MiB, at the most {peak / MIB:.0f}")  # noqa: T201
    assert not watched.failures
    assert watched.longest["ping"] <= STALL
    assert watched.longest["probe"] <= PROBE
    assert peak <= before + memory


@pytest.mark.parametrize("leave", [True, False], ids=["they leave", "they stay"])
def test_two_fetches_of_ten_thousand(broker: BrokerProcess, leave: bool) -> None:
    """Peers that leave take nothing of the broker's any more; peers that stay do not delay its stop."""
    with Raw(broker.kafka) as raw:
        raw.make("t")
    pair = encode_request(ApiKey.FETCH, 12, 1, "x", fetch([("t", 0, 0)], max_wait_ms=FOREVER, min_bytes=FOREVER)) * 2
    sockets = broker.sockets
    with contextlib.ExitStack() as stack:
        with bounded(broker, 400 * MIB):
            for _ in range(MOST + 10 if leave else MOST - 100):
                sock = stack.enter_context(connect(broker.kafka))
                with contextlib.suppress(OSError):
                    sock.sendall(pair)
                if leave:
                    sock.close()
            if leave:
                wait_until(lambda: broker.sockets <= sockets + 4, "nothing is left of them")
        assert broker.stop(30.0) == 0
    broker.start()


def test_more_idle_connections_than_there_may_be(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack, bounded(broker, 300 * MIB):
        for _ in range(MOST + 50):
            stack.enter_context(connect(broker.kafka))
        for path in ("/healthz", "/readyz", "/api/v1/cluster"):
            assert b" 200 " in ask(broker.http, path)
        with Peer(broker.address) as peer:
            peer.ask(m.Ping(), m.Pong)
        # The idle ones come by a listener of their own, and the last ones wait there until they are accepted.
        wait_until(lambda: bool(broker.events("connection_gave_way")), "an idle one has given way")


def test_pages_that_nobody_takes(broker: BrokerProcess) -> None:
    with Peer(broker.address) as peer:
        handle = peer.producer("pages").handle
        for _ in range(4):
            data = batch.encode(None, [os.urandom(2000)] * 490, timestamps=1)
            peer.ask(m.Batch(handle, 0, data), m.BatchStored)
    path = b"/api/v1/topics/pages/events?limit=1000&value_bytes=1048576&values=base64"
    page = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
    host, _, port = broker.http.rpartition(":")
    with contextlib.ExitStack() as stack, bounded(broker, 128 * MIB):
        for _ in range(500):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host, int(port)))
            sock.sendall(page)
        time.sleep(10)  # the peers stay for so long, and the measuring goes on meanwhile


COSTLY = {
    "cookie": ("/api/v1/topics", b'Cookie: krappy_session="' + b"\\" * 15_000 + b'"\r\n'),
    "quotes": ("/api/v1/topics", b'Cookie: a="' + b'\\"' * 7_500 + b'"\r\n'),
    "parameters": ("/api/v1/topics?" + "&".join(f"{number:x}" for number in range(3_300)), b""),
    "accept": ("/metrics", b"Accept: " + b"a/b;q=1," * 1_900 + b"\r\n"),
    "ranges": ("/app.js", b"Range: bytes=" + b",".join([b"0-0"] * 3_000) + b"\r\n"),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_heads_that_cost_much(broker: BrokerProcess, kind: str) -> None:
    path, head = COSTLY[kind]
    with bounded(broker, 64 * MIB):
        for _ in range(5):
            assert ask(broker.http, path, head).startswith(b"HTTP/1.1 ")
