"""TLS handshakes do not wait behind those of another address, however many it begins. The tests count turns."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.hosts import host_of
from krappy.ports.users import Took
from krappy.server import handshakes
from krappy.server.strangers import StrangerSteps
from krappy.testing.running import RunningBroker, run_broker
from krappy.tls import TlsSocket
from tests.process import wait_until
from tests.security.authority import Authority

MANY = 20
FLOODS, VISITS = "127.0.0.2", "127.0.0.1"  # the addresses of the flood and of the other clients
LISTENERS = {
    "listen_native": "SSL://127.0.0.1:0",
    "listen_kafka": "SSL://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener_security_protocol_map": "BROKERS:SSL",
    "inter_broker_listener_name": "BROKERS",
    "listen_http": "SSL://127.0.0.1:0",
}


class Queue:
    """The handshakes of a broker. `events`: what happened, in order: ("waits" or "made", address) of each step of a
    handshake. No step is made before `go` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.events: list[tuple[str, str]] = []
        self.failed: list[str] = []  # the addresses of handshakes that failed
        wait, make, run, events, go = StrangerSteps.make, handshakes._step, StrangerSteps.run, self.events, self.go

        async def waits(steps: StrangerSteps, host: str, work: Any, took: Took) -> Any:
            events.append(("waits", host))
            return await wait(steps, host, work, took)

        def made(sock: TlsSocket) -> Any:
            events.append(("made", sock.getpeername()[0]))
            return make(sock)

        async def run_then(steps: StrangerSteps) -> None:
            await trio.to_thread.run_sync(go.wait, abandon_on_cancel=True)
            await run(steps)

        patch.setattr(StrangerSteps, "make", waits)
        patch.setattr(handshakes, "_step", made)
        patch.setattr(StrangerSteps, "run", run_then)

    def report(self, event: str, **facts: Any) -> None:
        if event == "tls_handshake_failed":
            self.failed.append(host_of(facts["client"]))

    def count(self, what: str, host: str) -> int:
        return self.events.count((what, host))

    def most_between(self) -> int:
        """The largest number of the flood's steps that were made in a row while a step of another client waited."""
        most = waiting = passed = 0
        for what, host in self.events:
            if host == VISITS:
                waiting += 1 if what == "waits" else -1
                passed = 0 if what == "made" else passed
            elif what == "made" and waiting:
                passed += 1
                most = max(most, passed)
        return most


def hello() -> bytes:
    said = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    return said.read()


def connected(address: str, source: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 60, (source, 0))


@contextmanager
def secured(folder: Path, queue: Queue, **settings: Any) -> Iterator[tuple[RunningBroker, list[str], ssl.SSLContext]]:
    """A broker, the addresses of its listeners, and what a client needs."""
    authority = Authority(folder)
    settings = {"durability": "os", "tls_certificate": authority.issue("127.0.0.1"), **LISTENERS, **settings}
    with run_broker(folder / "data", report=queue.report, **settings) as broker:
        doors = [broker.address, *broker.kafka_addresses.values(), broker.http_address]
        assert len({*doors}) == 4
        yield broker, doors, authority.context()
        queue.go.set()


def visit(door: str, context: ssl.SSLContext) -> None:
    with context.wrap_socket(connected(door, VISITS), server_hostname="127.0.0.1"):
        pass


def test_handshakes_take_turns_with_those_of_another_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is so at each listener, also at that of brokers. Many steps of the flood wait already, and half of them come
    byte by byte. Still, at most one of them is made before a step of another address."""
    queue, greeting = Queue(monkeypatch), hello()
    with (
        secured(tmp_path, queue) as (_, doors, context),
        ExitStack() as opened,
        ThreadPoolExecutor(len(doors)) as pool,
    ):
        flood = [opened.enter_context(connected(door, FLOODS)) for door in doors for _ in range(MANY)]
        for number, each in enumerate(flood):
            each.sendall(greeting if number % 2 else greeting[:1])
        wait_until(lambda: queue.count("waits", FLOODS) == len(flood), "the flood is there")
        visits = [pool.submit(visit, door, context) for door in doors]
        wait_until(lambda: queue.count("waits", VISITS) == len(doors), "others wait, too")
        queue.go.set()
        position = 1
        while not all(visited.done() for visited in visits):
            for slow in flood[::2]:
                slow.send(greeting[position : position + 1])
            position += 1
        for visited in visits:
            visited.result()
    assert queue.most_between() == 1


def test_who_begins_many_handshakes_gives_way_to_himself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshakes of another address stay, although they came first and are slower than all others."""
    monkeypatch.setattr(handshakes, "MOST", MANY)
    queue = Queue(monkeypatch)
    queue.go.set()
    with secured(tmp_path, queue) as (_, doors, context), ExitStack() as opened:
        slow = [opened.enter_context(connected(door, VISITS)) for door in doors]
        silent = [opened.enter_context(connected(door, FLOODS)) for _ in range(MANY) for door in doors]
        left = MANY - len(doors)
        wait_until(lambda: len(queue.failed) == len(silent) - left, "the others gave way")
        for each in slow:
            context.wrap_socket(each, server_hostname="127.0.0.1").close()
        assert {*queue.failed} == {FLOODS}


def test_steps_that_wait_are_bounded_and_the_flood_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is so however many steps come before the first one is made. The steps of another address, which came first,
    are made."""
    monkeypatch.setattr(handshakes, "MOST_STEPS", MANY)
    queue, greeting = Queue(monkeypatch), hello()
    with secured(tmp_path, queue) as (_, doors, context), ExitStack() as opened, ThreadPoolExecutor(4) as pool:
        visits = [pool.submit(visit, door, context) for door in doors]
        wait_until(lambda: queue.count("waits", VISITS) == len(doors), "they wait")
        for _ in range(MANY):
            for door in doors:
                opened.enter_context(connected(door, FLOODS)).sendall(greeting)
        most = MANY - len(doors)
        wait_until(lambda: len(queue.failed) == MANY * len(doors) - most, "the others gave way")
        queue.go.set()
        for visited in visits:
            visited.result()
        assert {*queue.failed} == {FLOODS}
