"""Quotas over HTTP."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy.clients.acls import AclInfo
from krappy.console import paying
from krappy.console.paying import HttpPayer
from krappy.server import handshakes, strangers, throttled
from krappy.testing.running import RunningBroker, run_broker
from krappy.tls import TlsSocket
from tests.process import free_address, wait_until
from tests.quotas.quotas import Quotas
from tests.security.authority import Authority
from tests.security.test_ends import broker_of, browser
from tests.security.test_sasl import SECRET

KB = 1000
MANY = 12  # connections that are opened together


@pytest.fixture
def web(broker: RunningBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}/api/v1", timeout=60, trust_env=False) as found:
        yield found


def write(web: httpx.Client, topic: str, size: int) -> httpx.Response:
    return web.post(f"/topics/{topic}/events", json={"value": "x" * size}, headers={"Krappy-Request": "1"})


def check_refused(answer: httpx.Response, quota: str, at_least: int) -> None:
    assert answer.status_code == 429
    assert answer.json()["code"] == "THROTTLING_QUOTA_EXCEEDED"
    assert quota in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= at_least


def test_writes_and_reads_beyond_the_quota_are_refused(
    broker: RunningBroker, web: httpx.Client, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paying, "MOST_WRITE", 2.0)
    with broker.connect() as client:
        client.create_topic("h-written")
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=10.0 * KB)
    assert write(web, "h-written", 55 * KB).status_code == 201
    check_refused(write(web, "h-written", 1), "producer_byte_rate", 3)
    read = "/topics/h-written/events?start=earliest"
    assert web.get(read).status_code == 200, web.get(read).text
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=10.0 * KB)
    assert web.get(read).status_code == 200
    check_refused(web.get(read), "consumer_byte_rate", 3)
    assert web.get("/topics").status_code == 200


def test_topics_are_refused_beyond_their_rate(
    web: httpx.Client, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paying, "MOST_WRITE", 2.0)
    quotas.set({"user": "ANONYMOUS"}, controller_mutation_rate=0.2)

    def make(name: str) -> httpx.Response:
        return web.post("/topics", json={"name": name, "partitions": 3}, headers={"Krappy-Request": "1"})

    assert make("h-made-0").status_code == 201
    check_refused(make("h-made-1"), "controller_mutation_rate", 3)


def test_partitions_are_added_in_line(web: httpx.Client, quotas: Quotas) -> None:
    """A change of settings does not wait."""
    quotas.set({"user": "ANONYMOUS"}, controller_mutation_rate=1.0)
    headers = {"Krappy-Request": "1"}
    assert web.post("/topics", json={"name": "h-more", "partitions": 14}, headers=headers).status_code == 201

    def change(**what: object) -> httpx.Response:
        return web.patch("/topics/h-more", json=what, headers=headers)

    added = change(partitions=44)  # it waits for 3 seconds
    assert added.status_code == 200, added.text
    assert len(added.json()["partitions"]) == 44
    check_refused(change(partitions=45), "controller_mutation_rate", 11)
    assert change(config={"retention.ms": "1d"}).status_code == 200


def test_time_is_counted(web: httpx.Client, quotas: Quotas) -> None:
    quotas.set({"user": "ANONYMOUS"}, request_percentage=1.0)
    began = time.monotonic()
    while (answer := web.get("/overview")).status_code == 200:
        assert time.monotonic() - began < 20
    check_refused(answer, "request_percentage", 1)
    assert web.get(f"http://{web.base_url.host}:{web.base_url.port}/healthz").status_code == 200


def test_a_live_view_is_slowed_down(broker: RunningBroker, web: httpx.Client, quotas: Quotas) -> None:
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=40.0 * KB)
    with broker.connect() as client:
        client.create_topic("h-live")
        with (
            client.producer("h-live") as producer,
            web.stream("GET", "/topics/h-live/watch?value_bytes=10000") as answer,
        ):
            chunks = answer.iter_raw()
            assert next(chunks)  # the view has begun
            before, got = time.monotonic(), 0
            for number in range(7):
                producer.send(b"x" * 10 * KB, key=str(number)).result()
            while got < 70 * KB:
                got += len(next(chunks))
            producer.send(b"one more", key="more").result()
            assert next(chunks)
    assert time.monotonic() - before > 0.6  # 40 of the 70 KB may come at once


def test_a_live_view_of_one_who_is_over_his_quota_begins(
    broker: RunningBroker, web: httpx.Client, quotas: Quotas
) -> None:
    """The view is not refused, because a browser does not try again once its EventSource was refused."""
    with broker.connect() as client:
        client.create_topic("h-owed")
    assert write(web, "h-owed", 20 * KB).status_code == 201
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=1.0 * KB)
    assert web.get("/topics/h-owed/events?start=earliest").status_code == 200
    with web.stream("GET", "/topics/h-owed/watch") as answer:
        assert answer.status_code == 200
        quotas.alter({"user": "ANONYMOUS"}, consumer_byte_rate=None)
        assert next(answer.iter_raw())


@pytest.mark.parametrize(
    "path",
    # The second path shows only some of the events.
    ["/topics/h-time/watch?snapshot=false", "/topics/h-time/tail?text=wanted"],
)
def test_the_time_of_a_live_view_counts_and_slows_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """This is so even if the quota was set after the view began. What another user writes is not slowed down."""
    monkeypatch.setattr(paying, "MOST_REQUEST", 0.5)
    clock = count()
    monkeypatch.setattr(paying, "perf_counter", lambda: next(clock) / 100)  # each step takes 10 ms
    with broker_of(tmp_path) as (broker, client), browser(broker, "bob", "b") as web:
        client.create_topic("h-time")
        client.add_acls([AclInfo("topic", "h-time", "User:bob", "read")])
        with client.producer("h-time") as producer, web.stream("GET", path) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data:"))
            next(lines)  # the view has begun
            client.security.alter_quotas({"request_percentage": 1.0}, user="bob")
            began = time.monotonic()
            for number in range(3):
                for each in ("other", f"wanted {number}"):
                    producer.send(each, key=each).result()
                while f"wanted {number}" not in next(lines):
                    pass
            assert time.monotonic() - began > 1.0
        check_refused(web.get("/overview"), "request_percentage", 1)


def test_handshakes_count_for_the_address_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = handshakes._step

    def slow(sock: TlsSocket) -> Any:
        time.sleep(0.01)
        return step(sock)

    monkeypatch.setattr(handshakes, "_step", slow)
    authority = Authority(tmp_path)
    more = {"tls_certificate": authority.issue("127.0.0.1"), "listen_http": "SASL_SSL://127.0.0.1:0"}
    with broker_of(tmp_path, **more) as (broker, client):
        client.security.alter_quotas({"request_percentage": 0.1}, user="")
        transport = httpx.HTTPTransport(verify=authority.context(), local_address="127.0.0.2")
        with httpx.Client(transport=transport, trust_env=False, timeout=60) as web:
            check_refused(
                web.get(f"https://{broker.http_address}/api/v1/topics", auth=("bob", "b")), "request_percentage", 1
            )


def test_parsing_counts_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    with broker_of(tmp_path) as (broker, client), httpx.Client(trust_env=False, timeout=60) as web:
        client.security.alter_quotas({"request_percentage": 1.0}, user="bob")
        monkeypatch.setattr(strangers, "perf_counter", lambda: next(clock))  # each step takes a second
        url = f"http://{broker.http_address}/api/v1/topics"
        assert web.get(url, auth=("bob", "b")).status_code == 200
        check_refused(web.get(url, auth=("bob", "b")), "request_percentage", 1)
        assert web.get(url, auth=("ada", SECRET)).status_code == 200


def test_throttling_is_told_to_prometheus(broker: RunningBroker, quotas: Quotas) -> None:
    text = httpx.get(f"http://{broker.http_address}/metrics", timeout=60, trust_env=False).text
    assert 'krappy_throttled_total{quota="producer_byte_rate"}' in text
    assert 'krappy_throttled_seconds_total{quota="request_percentage"}' in text


def test_many_at_once_read_no_more_than_one_after_the_other(
    broker: RunningBroker, web: httpx.Client, quotas: Quotas
) -> None:
    with broker.connect() as client:
        client.create_topic("h-read")
    assert write(web, "h-read", 20 * KB).status_code == 201
    quotas.set({"user": "ANONYMOUS"}, consumer_byte_rate=100.0)  # one answer uses it up for longer than this test
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(web.get, ["/topics/h-read/events?start=earliest"] * 8))
    assert sorted(each.status_code for each in answers) == [200] + [429] * 7


def test_many_at_once_write_no_more_than_one_after_the_other(
    broker: RunningBroker, web: httpx.Client, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bodies of the requests come slowly: all requests have begun before the first body is whole."""
    monkeypatch.setattr(paying, "MOST_WRITE", 2.0)
    check, begun = HttpPayer.check, []

    def checked(payer: HttpPayer, **how: bool) -> None:
        check(payer, **how)
        begun.append(payer)

    monkeypatch.setattr(HttpPayer, "check", checked)
    with broker.connect() as client:
        client.create_topic("h-at-once")
    quotas.set({"user": "ANONYMOUS"}, producer_byte_rate=100.0)  # one write uses it up for longer than this test

    def write_slowly(_: int) -> int:
        def body() -> Iterator[bytes]:
            yield b'{"value": "'
            wait_until(lambda: len(begun) >= 8, "all have begun")
            yield b"x" * 20 * KB + b'"}'

        headers = {"Krappy-Request": "1", "Content-Type": "application/json"}
        return web.post("/topics/h-at-once/events", content=body(), headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write_slowly, range(8))) == [201] + [429] * 7


def test_other_paths_count_as_well(monkeypatch: pytest.MonkeyPatch, broker: RunningBroker, quotas: Quotas) -> None:
    monkeypatch.setattr(throttled, "HELD", 0.2)  # the same user sets the quotas, and removes them at the end
    for path in ("/metrics", "/api/v1/openapi.json", "/"):
        quotas.alter({"user": "ANONYMOUS"}, request_percentage=None)
        quotas.set({"user": "ANONYMOUS"}, request_percentage=0.01)
        end = time.monotonic() + 60
        with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60, trust_env=False) as http:
            while (answer := http.get(path)).status_code == 200:
                assert time.monotonic() < end
        check_refused(answer, "request_percentage", 1)


def test_an_address_opens_connections_at_its_rate(tmp_path: Path) -> None:
    """Each handshake takes about a ms of the event loop, and each head of a request as long: without a rate, one
    address that opened connections without end took most of the broker's time. Over TLS what is beyond the rate is
    refused before its handshake. Those of the other protocols are counted by themselves, and probes have no rate."""
    authority, asks = Authority(tmp_path), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    probes = free_address()
    reported: list[str] = []

    def statuses(address: str, source: str, count: int, context: ssl.SSLContext | None = None) -> list[str]:
        """The statuses of the answers on so many connections, opened together; empty: closed without an answer."""
        host, _, port = address.rpartition(":")
        found = []
        with ExitStack() as opened:
            come = [
                opened.enter_context(socket.create_connection((host, int(port)), 60, (source, 0))) for _ in range(count)
            ]
            for sock in come:
                try:
                    talk = opened.enter_context(context.wrap_socket(sock, server_hostname=host)) if context else sock
                    talk.sendall(asks)
                    found.append(talk.recv(1 << 16)[9:12].decode())
                except (ssl.SSLError, ConnectionError):
                    found.append("")
        return found

    def report(event: str, **facts: object) -> None:
        reported.append(event)

    settings = {
        **{"listen_http": "SSL://127.0.0.1:0", "listen_health": probes, "durability": "os"},
        "tls_certificate": authority.issue("127.0.0.1"),
    }
    with run_broker(tmp_path / "data", report=report, **settings) as broker, Quotas(broker.kafka_address) as quotas:
        quotas.set({"ip": "127.0.0.9"}, connection_creation_rate=1.0)
        host, _, port = broker.address.rpartition(":")
        for _ in range(MANY):
            socket.create_connection((host, int(port)), 60, ("127.0.0.9", 0)).close()
        wait_until(lambda: reported.count("connection_refused") > MANY / 2, "its native connections are refused")
        reported.clear()
        found = statuses(broker.http_address, "127.0.0.9", MANY, authority.context())
        assert found[0] == "200"
        assert found.count("") > MANY / 2
        assert reported.count("connection_refused") >= found.count("")
        assert "tls_handshake_failed" not in reported
        assert statuses(broker.http_address, "127.0.0.1", MANY, authority.context()) == ["200"] * MANY
        assert statuses(probes, "127.0.0.9", MANY) == ["200"] * MANY


def test_a_connection_beyond_the_rate_is_told_so(broker: RunningBroker, quotas: Quotas) -> None:
    quotas.set({"ip": "127.0.0.8"}, connection_creation_rate=1.0)
    host, _, port = broker.http_address.rpartition(":")
    with ExitStack() as opened:
        come = [
            opened.enter_context(socket.create_connection((host, int(port)), 60, ("127.0.0.8", 0))) for _ in range(MANY)
        ]
        head, _, body = come[-1].recv(1 << 16).partition(b"\r\n\r\n")  # unasked
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in head
    assert json.loads(body)["detail"] == "127.0.0.8 opens connections faster than one address may"
