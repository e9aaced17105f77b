"""HTTP over real sockets: what is not for the application to decide."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trio

import krappy
from krappy.server import http
from krappy.testing.running import RunningBroker, run_broker
from tests.process import PATIENCE, wait_until

GET = b"GET /api/v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nKrappy-Request: 1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    faults: list[str] = []

    def report(event: str, **facts: object) -> None:
        if event == "internal_error":
            faults.append(repr(facts))

    folder = tmp_path_factory.mktemp("http")
    with run_broker(folder, listen_http="127.0.0.1:0", durability="os", report=report) as running:
        yield running
    assert not faults


@contextmanager
def connected(broker: RunningBroker) -> Iterator[socket.socket]:
    host, _, port = broker.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Reads until the broker closes the connection. A reset counts as the end: what came before it was read."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            found += piece
    return found


def problem(answer: bytes) -> tuple[int, str]:
    """(status, code) of an answer that is a problem document."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, answer[:300]
    told = json.loads(body)
    assert told["status"] == int(head.split()[1])
    assert told["detail"]
    return told["status"], told["code"]


@pytest.mark.parametrize("times", [1, 5])
def test_a_peer_that_sends_no_more_gets_its_answers(broker: RunningBroker, times: int) -> None:
    for _ in range(20):
        with connected(broker) as sock:
            sock.sendall(GET * times)
            sock.shutdown(socket.SHUT_WR)
            answer = read_all(sock)
        assert answer.count(b"HTTP/1.1 200 ") == times
        assert answer.count(b'"cluster_id"') == times


def test_a_body_and_then_no_more(broker: RunningBroker) -> None:
    body = b'{"name":"half-closed"}'
    with connected(broker) as sock:
        sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock).startswith(b"HTTP/1.1 201 ")


def test_a_live_view_ends_with_its_peers_side(broker: RunningBroker) -> None:
    with broker.connect() as client:
        client.create_topic("left", if_absent=True)
    with connected(broker) as sock:
        sock.sendall(b"GET /api/v1/topics/left/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)


def test_requests_may_follow_each_other_without_waiting(broker: RunningBroker) -> None:
    with connected(broker) as sock:
        sock.sendall(GET * 50 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = read_all(sock)
    assert answer.count(b"HTTP/1.1 200 ") == 51


def test_requests_that_come_without_a_pause_are_read_as_they_are_answered(tmp_path: Path) -> None:
    """Each request for a file used to read another 64 KiB of the next requests: those of a stranger filled
    the memory."""
    ask = b"GET /favicon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def main() -> None:
        async with krappy.Broker(tmp_path, listen_http="127.0.0.1:0", durability="os") as broker:
            host, _, port = broker.http_address.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, ask * 100_000)
                with trio.fail_after(PATIENCE):
                    await stream.receive_some()
                    (connection,) = broker.server.connections
                    while connection.requests < 300:
                        await stream.receive_some()
                        held = connection.received - connection.requests * len(ask)
                        assert held <= http.AHEAD + http.MAX_HEAD
                nursery.cancel_scope.cancel()

    trio.run(main)


REFUSED: dict[str, tuple[bytes, tuple[int, str]]] = {
    "large head": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * http.MAX_HEAD, (431, "HEAD_TOO_LARGE")),
    "large whole head": (GET[:-2] + b"X: " + b"y" * http.MAX_HEAD + b"\r\n\r\n", (431, "HEAD_TOO_LARGE")),
    "many headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 10_000, (431, "HEAD_TOO_LARGE")),
    "no http": (b"\x00\x01\x02\r\n\r\n", (400, "INVALID_REQUEST")),
    "http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (505, "UNSUPPORTED_VERSION")),
    "http 9": (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", (505, "UNSUPPORTED_VERSION")),
    "bad length": (POST + b"Content-Length: -5\r\n\r\n", (400, "INVALID_REQUEST")),
    "bad chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", (400, "INVALID_REQUEST")),
    "tiny chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 5000, (400, "INVALID_REQUEST")),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", (400, "INVALID_REQUEST")),
    "no route": (b"GET /api/v1/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (404, "NOT_FOUND")),
    "no such method": (
        b"BREW /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nKrappy-Request: 1\r\nConnection: close\r\n\r\n",
        (405, "METHOD_NOT_ALLOWED"),
    ),
    "no type": (
        b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nKrappy-Request: 1\r\nConnection: close\r\n\r\n",
        (415, "UNSUPPORTED_MEDIA_TYPE"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_as_a_problem(broker: RunningBroker, name: str) -> None:
    sent, expected = REFUSED[name]
    with connected(broker) as sock:
        sock.sendall(sent)
        answer = read_all(sock)
    assert problem(answer) == expected
    assert b"not spoken on this port" not in answer  # what was sent was HTTP, if a bad one


def test_half_a_request_is_told_so(broker: RunningBroker) -> None:
    for sent in (GET[:-10], POST + b"Content-Length: 100\r\n\r\n{"):
        with connected(broker) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            assert problem(read_all(sock)) == (400, "INVALID_REQUEST")


def test_a_head_that_does_not_come_in_time(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 1.0)
    with connected(broker) as sock:
        sock.sendall(GET[:20])
        assert problem(read_all(sock)) == (408, "REQUEST_TIMED_OUT")


def test_an_idle_connection_is_closed(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_SECONDS", 0.05)
    with connected(broker) as sock:
        assert read_all(sock) == b""
        monkeypatch.undo()
    with connected(broker) as sock:
        sock.sendall(GET)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_nobody_reads_ends_the_connection_after_the_answer(broker: RunningBroker) -> None:
    """The request has a chunked body without an end, and its operation takes no body: it is answered, and the body is
    not read for ever."""
    with connected(broker) as sock:
        chunk = b"1000\r\n" + bytes(0x1000) + b"\r\n"
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
        answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionError):
            while True:  # until the connection is closed, which it is after 64 KiB
                sock.sendall(chunk)


def test_an_upgrade_is_not_taken(broker: RunningBroker) -> None:
    upgrade = b"\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\nSec-WebSocket-Version: 13\r\n\r\n"
    with connected(broker) as sock:
        sock.sendall(GET.replace(b"\r\n\r\n", upgrade))
        assert read_all(sock).startswith(b"HTTP/1.1 200 ")


def test_an_old_client_is_answered(broker: RunningBroker) -> None:
    with connected(broker) as sock:
        sock.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert read_all(sock).endswith(b'{"status":"ok"}')


def test_many_idle_connections_and_all_of_them_end(broker: RunningBroker) -> None:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client:
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                sock = stack.enter_context(connected(broker))
                sock.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert client.get("/api/v1/overview").json()["connections"]["http"] >= 201
            with broker.connect() as native:
                native.create_topic("beside", if_absent=True)
        wait_until(lambda: client.get("/api/v1/overview").json()["connections"]["http"] == 1, "only this one is open")


@pytest.mark.parametrize("length", [0, 4, 13, 400])
@pytest.mark.parametrize("order", [1, -1])
def test_a_length_and_chunks_together_are_refused(broker: RunningBroker, length: int, order: int) -> None:
    """RFC 9112, section 6.3: what is behind such a request could be a request that somebody smuggles past a proxy."""
    both = [b"Content-Length: %d\r\n" % length, b"Transfer-Encoding: chunked\r\n"][::order]
    with connected(broker) as sock:
        sock.sendall(POST + b"".join(both) + b"\r\n" + b"2\r\n{}\r\n0\r\n\r\n" + GET)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert answer.count(b"HTTP/1.1") == 1, "nothing behind it is answered"


def test_a_console_that_is_loaded_is_waited_for_no_more(tmp_path: Path) -> None:
    """Each connection used to take a lock in its turn: with hundreds of long turns, a probe waited for 19 s."""

    async def main() -> None:
        async with krappy.Broker(tmp_path, listen_http="127.0.0.1:0", durability="os") as broker:
            host, _, port = broker.http_address.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as first:
                await first.send_all(GET)
                assert (await first.receive_some()).startswith(b"HTTP/1.1 200 ")
                (connection,) = broker.server.connections
                assert isinstance(connection, http.HttpConnection)
                with trio.fail_after(PATIENCE):
                    async with connection._speech._loading, await trio.open_tcp_stream(host, int(port)) as second:
                        await second.send_all(GET)
                        assert (await second.receive_some()).startswith(b"HTTP/1.1 200 ")

    trio.run(main)


def answer_to(broker: RunningBroker, request: bytes) -> bytes:
    with connected(broker) as sock:
        sock.sendall(request)
        return read_all(sock)


@pytest.mark.parametrize("target", [b"http://%b/healthz", b"HTTPS://%b/healthz?"])
def test_a_target_with_the_host_in_it_is_one(broker: RunningBroker, target: bytes) -> None:
    """Proxies get such targets, and every server has to take them (RFC 9112, section 3.2.2)."""
    host = broker.http_address.encode()
    head = b"GET " + target % host + b" HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n"
    assert answer_to(broker, head).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("target", [b"http://%b", b"http://%b?x=1", b"http://%b/"])
def test_a_target_without_a_path_is_the_first_page(broker: RunningBroker, target: bytes) -> None:
    host = broker.http_address.encode()
    head = b"GET " + target % host + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert b"<!doctype html>" in answer_to(broker, head)


def test_the_host_of_the_target_counts(broker: RunningBroker) -> None:
    """The header's host does not count. A name that was rebound to this machine is refused in either place."""
    head = b"GET http://evil.example/api/v1/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert problem(answer_to(broker, head)) == (421, "UNKNOWN_HOST")


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"OPTIONS * HTTP/1.1\r\n", (404, "NOT_FOUND")),
        (b"CONNECT elsewhere:443 HTTP/1.1\r\n", (404, "NOT_FOUND")),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n", (501, "INVALID_REQUEST")),
    ],
)
def test_each_refusal_is_a_problem(broker: RunningBroker, head: bytes, told: tuple[int, str]) -> None:
    assert problem(answer_to(broker, head + b"Host: localhost\r\nConnection: close\r\n\r\n")) == told
