"""Strangers begin requests of HTTP, or logins, on hundreds of connections at the same moment: nobody else waits for
them."""

from __future__ import annotations

import socket
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy.console import api
from krappy.server import http, strangers
from krappy.server.strangers import StrangerSteps
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, encode_request
from tests.handlers.raw import Raw as NativeRaw
from tests.process import PATIENCE
from tests.rounds import HeldRounds
from tests.security.identity import identity_provider
from tests.server.test_http import problem, read_all

MANY = 300
PROMISED = 0.25  # seconds for which nobody waits for others
HEAD = b"GET /healthz%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n"
LISTS = urlsafe_b64encode(b"[" + b"[]," * 11_000 + b"[]]").rstrip(
    b"="
)  # what has to be parsed of a token takes some ms
MESSAGE = b"n,,\x01auth=Bearer " + LISTS + b".e30.e30\x01\x01"
NAMED = encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": "OAUTHBEARER"})
FLOODS = {
    "headers": HEAD % (b"", b"a:\r\n" * 3800),
    "parameters": HEAD % (b"?" + b"a&" * 7800, b""),
    "cookies": HEAD % (b"", b"Cookie: " + b";" * 15_000 + b"\r\n"),
    "folded lines": HEAD % (b"", b"a: b\r\n" + b" \r\n" * 5000),
    "Kafka logins": NAMED + encode_request(ApiKey.SASL_AUTHENTICATE, 2, 2, "x", {"auth_bytes": MESSAGE}),
    "native logins": m.Authenticate("OAUTHBEARER", MESSAGE).frame(1),
}


@trio_test
async def test_few_are_made_in_a_round_and_by_address_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "TURN", 1000.0)
    steps, rounds, made = StrangerSteps(), 0, list[tuple[int, str]]()

    async def count() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    def note(host: str) -> None:
        made.append((rounds, host))

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as peers:
            for host in (*["10.0.0.1"] * 40, "10.0.0.2"):
                peers.start_soon(steps.make, host, lambda host=host: note(host))
            await wait_all_tasks_blocked()
            nursery.start_soon(count)
            nursery.start_soon(steps.run)
        nursery.cancel_scope.cancel()
    most = max(Counter(at for at, _ in made).values())
    assert most <= 2 * strangers.TOGETHER  # two rounds may look like one, since the tasks of a round have no order
    assert [host for _, host in made].index("10.0.0.2") <= 1


@trio_test
async def test_a_step_that_is_not_needed_any_more_is_not_made() -> None:
    steps, made = StrangerSteps(), list[str]()

    def slow() -> None:
        time.sleep(0.01)
        made.append("stays")

    with trio.CancelScope() as left:
        left.cancel()
        await steps.make("10.0.0.1", lambda: made.append("left"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps.run)
        seconds = list[float]()
        await steps.make("10.0.0.1", slow, seconds.append)
        with pytest.raises(ZeroDivisionError):
            await steps.make("10.0.0.1", lambda: 1 // 0)
        nursery.cancel_scope.cancel()
    assert made == ["stays"]
    assert seconds[0] >= 0.01


@pytest.fixture(scope="module")
def rounds() -> HeldRounds:
    return HeldRounds()


@pytest.fixture(scope="module")
def broker(rounds: HeldRounds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with identity_provider() as provider:
        settings = {
            **provider.settings,
            "listen_native": "SASL_PLAINTEXT://127.0.0.1:0",
            "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0",
            "listen_http": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl_enabled_mechanisms": "OAUTHBEARER",
            "super_users": "User:ada",
            "authentication_timeout_ms": 120_000,  # a busy machine connects 300 in more than the usual 10 s
        }
        folder = tmp_path_factory.mktemp("strangers")
        with run_broker(folder, durability="os", report=rounds.report, **settings) as found:
            with NativeRaw(found.address) as raw:
                raw.call(m.Authenticate("OAUTHBEARER", MESSAGE))  # this is reported, so the measuring begins
            assert rounds.measured.is_set()
            yield found


def connected(opened: ExitStack, host: str, port: str) -> list[socket.socket]:
    """MANY connections, from two addresses: one alone may have half of the places of HTTP."""
    return [
        opened.enter_context(
            socket.create_connection((host, int(port)), PATIENCE, source_address=(f"127.0.0.{number % 2 + 1}", 0))
        )
        for number in range(MANY)
    ]


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_leaves_others_their_time(broker: RunningBroker, rounds: HeldRounds, flood: str) -> None:
    """Each takes some ms, so all of them in one round would take longer than is promised."""
    door = {"K": broker.kafka_address, "n": broker.address}.get(flood[0], broker.http_address)
    host, _, port = door.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as first:  # the console is imported
        first.sendall(FLOODS[flood])
        assert first.recv(1)
    with ExitStack() as opened:
        socks = connected(opened, host, port)
        socks[-1].sendall(FLOODS[flood])  # when this one is answered, the others were accepted, too
        assert socks.pop().recv(1)
        rounds.longest = 0.0
        rounds.go.clear()
        for sock in socks:
            sock.sendall(FLOODS[flood])
        rounds.go.set()
        for sock in socks:
            assert sock.recv(1)
    assert rounds.longest < PROMISED


CHUNKED = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n%b\r\n"
)
TRAILERS = b"0\r\n" + b"a:\r\n" * 3800 + b"\r\n"  # behind no chunks
READ_AND_SKIPPED = {  # the head, and how its answer begins: the broker waits for the rest of the body then
    "read": (CHUNKED % (b"/api/v1/login", b"Expect: 100-continue\r\n"), b"HTTP/1.1 100 "),
    "skipped": (CHUNKED % (b"/nothing", b""), b"HTTP/1.1 405 "),
}


@pytest.mark.parametrize("body", READ_AND_SKIPPED)
def test_trailers_that_come_together_leave_others_their_time(
    broker: RunningBroker, rounds: HeldRounds, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    for module, name in ((http, "LINGER_SECONDS"), (http, "HEAD_SECONDS"), (api, "BODY_SECONDS")):
        monkeypatch.setattr(module, name, PATIENCE)  # a busy machine needs longer
    head, begun = READ_AND_SKIPPED[body]
    host, _, port = broker.http_address.rpartition(":")
    with ExitStack() as opened:
        socks = connected(opened, host, port)
        for sock in socks:
            sock.sendall(head)
            assert sock.recv(65536).startswith(begun)
        rounds.longest = 0.0
        rounds.go.clear()
        for sock in socks:
            sock.sendall(TRAILERS + HEAD % (b"", b""))
        rounds.go.set()
        for sock in socks:
            assert b"HTTP/1.1 200 " in read_all(sock)
    assert rounds.longest < PROMISED


def test_a_head_has_not_too_many_lines(broker: RunningBroker) -> None:
    host, _, port = broker.http_address.rpartition(":")
    for count, status in ((http.HEADERS - 2, 200), (http.HEADERS - 1, 431)):  # two are in HEAD
        with socket.create_connection((host, int(port)), PATIENCE) as sock:
            sock.sendall(HEAD % (b"", b"a: b\r\n" * count))
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert problem(answer) == (431, "HEAD_TOO_LARGE")
