"""Who may connect when many are there: probes and the console always, one address not everything; and idle connections
give way."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

import krappy
from krappy import errors
from krappy.server import places
from krappy.server.http import HttpConnection
from krappy.settings.server import load
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.handlers.raw import Raw
from tests.kafka.raw import Raw as KafkaRaw
from tests.process import BrokerProcess, broker_process, wait_until
from tests.server.test_leaving import until

SLOW_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "


def connect(address: str, source: str = "") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 60, (source, 0))


def probe(address: str, path: str = "/healthz") -> bytes:
    """The status line of the answer."""
    return fetched(address, path).partition(b"\r\n")[0]


def fetched(address: str, path: str) -> bytes:
    """The whole answer."""
    with connect(address) as sock:
        sock.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                found += piece
        return found


def ended(sock: socket.socket) -> bool:
    """Reads until the connection ends; returns whether the broker has ended it."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture
def told() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def full(tmp_path: Path, told: list[tuple[str, dict[str, Any]]]) -> Iterator[RunningBroker]:
    """A broker that takes three clients."""

    def report(event: str, **facts: Any) -> None:
        told.append((event, facts))

    settings = {"durability": "os", "listen_http": "127.0.0.1:0", "max_connections": 3}
    with run_broker(tmp_path, report=report, **settings) as broker:
        probe(broker.http_address)
        yield broker


def test_probes_and_the_console_have_places_of_their_own(
    full: RunningBroker, told: list[tuple[str, dict[str, Any]]]
) -> None:
    with Raw(full.address) as one, Raw(full.address) as two, KafkaRaw(full.kafka_address) as three:
        for raw in (one, two):
            raw.call(m.Ping())
        three.ask(ApiKey.METADATA, {"topics": None})
        with Raw(full.address) as four, pytest.raises(errors.Overloaded):
            four.receive(0)
        refused = [facts for event, facts in told if event == "connection_refused"]
        assert [each["protocol"] for each in refused] == ["native"], "a refusal is told"
        assert "3 connections are open" in refused[0]["reason"]
        for path in ("/healthz", "/readyz", "/api/v1/cluster", "/metrics"):
            assert b" 200 " in probe(full.http_address, path)


def test_who_has_asked_for_nothing_gives_way(full: RunningBroker) -> None:
    with ExitStack() as stack:
        idlers = [stack.enter_context(connect(full.kafka_address)) for _ in range(3)]
        ports = [b":%d" % idler.getsockname()[1] for idler in idlers]
        # A connection that is accepted beside them, and has asked for nothing yet, might be the oldest.
        wait_until(
            lambda: all(port in fetched(full.http_address, "/api/v1/connections") for port in ports), "three idlers"
        )
        one = stack.enter_context(Raw(full.address))
        one.call(m.Ping())
        assert ended(idlers[0])
        two, three = (stack.enter_context(Raw(full.address)) for _ in range(2))
        for raw in (two, three):
            raw.call(m.Ping())
        for raw in (one, two, three):
            raw.call(m.Ping())
        with Raw(full.address) as four, pytest.raises(errors.Overloaded):
            four.receive(0)


def test_the_last_places_are_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_broker(tmp_path, durability="os", max_connections=20) as broker, ExitStack() as stack:
        monkeypatch.setattr(places, "is_local", lambda host: False)
        others = [stack.enter_context(Raw(broker.address)) for _ in range(18)]
        for raw in others:
            raw.call(m.Ping())
        with Raw(broker.address) as late, pytest.raises(errors.Overloaded):
            late.receive(0)
        monkeypatch.setattr(places, "is_local", lambda host: True)
        with Raw(broker.address) as admin:
            assert admin.call(m.Ping()).cluster


@pytest.mark.parametrize(("overrides", "most"), [("", 2), ("127.0.0.1:4", 4), ("127.0.0.1:1,10.0.0.1:9", 1)])
def test_one_address_may_have_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str, most: int
) -> None:
    monkeypatch.setattr(places, "is_local", lambda host: False)
    settings = {"max_connections_per_ip": 2, "max_connections_per_ip_overrides": overrides}
    with run_broker(tmp_path, durability="os", listen_http="127.0.0.1:0", **settings) as broker:
        with ExitStack() as stack:
            for raw in [stack.enter_context(Raw(broker.address)) for _ in range(most)]:
                raw.call(m.Ping())
            with Raw(broker.address) as late, pytest.raises(errors.Overloaded, match="one address"):
                late.receive(0)
            assert b" 200 " in probe(broker.http_address)

        def again() -> bool:
            with Raw(broker.address) as raw, contextlib.suppress(errors.Overloaded, OSError, EOFError):
                return bool(raw.call(m.Ping()).cluster)
            return False

        wait_until(again, "there is a place again")


@pytest.mark.parametrize("given", ["10.0.0.1", "host:5", "10.0.0.1:-1", "10.0.0.1:x"])
def test_invalid_overrides(given: str) -> None:
    with pytest.raises(errors.ConfigError, match="max_connections_per_ip_overrides"):
        load({"max_connections_per_ip_overrides": given}, {})


def test_this_machine_is_known_by_its_addresses() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert places.is_local(host), host
    for host in ("10.0.0.1", "::2", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost"):
        assert not places.is_local(host), host


def test_http_peers_that_say_nothing_give_way_to_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(places.MOST_APART, places.HTTP, 3)
    with run_broker(tmp_path, durability="os", listen_http="127.0.0.1:0") as broker, ExitStack() as stack:
        probe(broker.http_address)
        slow = [stack.enter_context(connect(broker.http_address)) for _ in range(3)]
        for sock in slow:
            sock.sendall(SLOW_HEAD)
        for number in range(10):
            assert b" 200 " in probe(broker.http_address), number
        assert ended(slow[0])


def test_who_holds_most_places_of_http_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections come from another address, one that has waited for longer than all of these stays."""
    monkeypatch.setitem(places.MOST_APART, places.HTTP, 4)
    with run_broker(tmp_path, durability="os", listen_http="127.0.0.1:0") as broker, ExitStack() as stack:
        first = stack.enter_context(connect(broker.http_address))
        first.sendall(SLOW_HEAD)
        many = [stack.enter_context(connect(broker.http_address, source="127.0.0.2")) for _ in range(20)]
        for sock in many[:-3]:
            assert ended(sock)
        first.sendall(b"\r\nConnection: close\r\n\r\n")
        assert b" 200 " in first.recv(65536)


UNFINISHED = {
    "a body that does not come": b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nKrappy-Request: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    "answers that nobody takes": b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500,
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_http_peers_in_the_middle_of_a_request_give_way_to_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(places.MOST_APART, places.HTTP, 6)  # an address has half of them

    async def main() -> None:
        async with krappy.Broker(tmp_path, durability="os", listen_http="127.0.0.1:0") as broker:
            await trio.to_thread.run_sync(probe, broker.http_address)
            await until(lambda: not broker.server.connections, "the first probe has left")
            with ExitStack() as stack:
                for _ in range(3):
                    sock = stack.enter_context(connect(broker.http_address))
                    sock.setblocking(False)
                    sock.send(UNFINISHED[kind])
                await until(lambda: at_work(broker) == 3, "the requests have begun")
                for number in range(10):
                    assert b" 200 " in await trio.to_thread.run_sync(probe, broker.http_address), number

    trio.run(main)


def at_work(broker: krappy.Broker) -> int:
    """How many HTTP connections have a request in progress, and have waited for their peer for 50 ms."""
    early = trio.current_time() - 0.05
    return sum(
        isinstance(each, HttpConnection) and each._active and each._wire.waits_since < early
        for each in broker.server.connections
    )


def test_probes_are_answered_although_descriptors_are_short(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"listen_http": "127.0.0.1:0", "durability": "os"}
    with broker_process(tmp_path / "data", **settings) as broker:
        probe(broker.http)
        broker.allow_fds(256)
        with ExitStack() as stack:
            crowd(broker, stack, 260)
            for _ in range(30):  # these keep their connection, and leave it in the middle of a request
                stack.enter_context(connect(broker.http)).sendall(SLOW_HEAD)
            for number in range(10):
                assert b" 200 " in probe(broker.http), number
                assert b" 200 " in probe(broker.http, "/readyz"), number
            assert not broker.events("accept_failed"), broker.last_words()
            wait_until(lambda: bool(broker.events("connection_refused")), "it is told")


def crowd(broker: BrokerProcess, stack: ExitStack, count: int) -> None:
    """Connects `count` clients, each of which asks for something and stays, or is refused."""
    for _ in range(count):
        sock = stack.enter_context(connect(broker.address))
        with contextlib.suppress(OSError):
            sock.sendall(m.Ping().frame(1))
            sock.recv(1000)


def test_a_limit_that_locks_everybody_out_is_refused_and_was_never_kept(tmp_path: Path) -> None:
    """A limit that an older broker kept counts as the lowest one that is possible."""
    ask = {"resource_type": 4, "resource_name": "0", "configs": [{"name": "max.connections", "config_operation": 0}]}
    ask["configs"][0]["value"] = "1"  # type: ignore[index]
    with run_broker(tmp_path, durability="os") as broker, KafkaRaw(broker.kafka_address) as raw:
        answer = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [ask], "validate_only": False})
        assert "at least 100" in answer["responses"][0]["error_message"]
        with pytest.MonkeyPatch.context() as older:
            older.setattr("krappy.broker.dynamic._FLOORS", {})
            answer = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [ask], "validate_only": False})
            assert answer["responses"][0]["error_code"] == 0
    with run_broker(tmp_path, durability="os") as broker, ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(Raw(broker.address)).call(m.Ping())
