"""One who may read a topic, or nothing at all, takes no more of the console than is left for others: turns, memory for
answers, and connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from krappy.broker import logouts
from krappy.broker.logouts import Logouts
from krappy.broker.tables import table
from krappy.clients.acls import AclInfo
from krappy.console import api, app, events, slices
from krappy.console.api import BodyRoom, Call
from krappy.console.app import TOGETHER
from krappy.console.events import EventPage, EventShown
from krappy.server import http, places
from krappy.server.pages import Pages
from krappy.server.server import Server
from krappy.testing.running import RunningBroker, run_broker
from tests.process import wait_until
from tests.security.test_ends import broker_of, browser
from tests.security.test_sasl import SECRET, address

BOB = b"Authorization: Basic " + b64encode(b"bob:b") + b"\r\n"


def test_look_ups_that_wait_keep_nobody_from_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an event of a transaction that is open, which may last for minutes."""
    confluent = pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(table, "VIEW_PATIENCE", 8.0)
    with broker_of(tmp_path) as (broker, client), browser(broker, "ada", SECRET) as ada:
        client.create_topic("seen")
        client.add_acls([AclInfo("topic", "seen", "User:bob", "read")])
        producer = confluent.Producer(
            {
                "bootstrap.servers": address(broker),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "ada",
                "sasl.password": SECRET,
                "transactional.id": "open",
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("seen", "v", "k")
        assert producer.flush(30) == 0
        url = f"http://{broker.http_address}/api/v1/topics/seen/table/entry"

        def look_up(_: int) -> int:
            about = {"key": "k", "min_offset": "0"}
            return httpx.get(url, params=about, auth=("bob", "b"), trust_env=False, timeout=60).status_code

        with ThreadPoolExecutor(TOGETHER) as pool:
            waiting = [pool.submit(look_up, each) for each in range(TOGETHER)]
            time.sleep(1)  # they have come by then; if not, the test is the easier
            began = time.monotonic()
            assert ada.get("/topics").status_code == 200
            assert time.monotonic() - began < 4
            assert not all(each.done() for each in waiting)
            producer.abort_transaction(30)


def test_pages_that_one_user_takes_none_of_are_no_others_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    has_room = Pages.has_room

    def noted(self: Pages, who: str) -> bool:
        found = has_room(self, who)
        if not found and who == "User:bob":
            waits.set()
        return found

    monkeypatch.setattr(Pages, "has_room", noted)
    monkeypatch.setattr(http, "ROOM_SECONDS", 1.0)
    page = b"GET /api/v1/topics/seen/events?limit=1000 HTTP/1.1\r\nHost: localhost\r\n" + BOB + b"\r\n"
    with broker_of(tmp_path, memory_bytes=16 << 20) as (broker, client), ExitStack() as stack:
        ada = stack.enter_context(browser(broker, "ada", SECRET))
        client.create_topic("seen")
        client.add_acls([AclInfo("topic", "seen", "User:bob", "read")])
        with client.producer("seen") as producer:
            for _ in range(1000):
                producer.send(b"x" * 2000)
        for _ in range(12):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(_where(broker))
            sock.sendall(page * 8)
        assert waits.wait(60), "he has taken all the room that there is"
        for _ in range(5):
            assert ada.get("/topics").status_code == 200


def test_requests_of_one_address_that_wait_take_half_of_the_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(places.MOST_APART, places.HTTP, 8)
    monkeypatch.setattr(logouts, "PAUSE", 5.0)
    came: list[str | None] = []
    end = Logouts.end

    async def noted(self: Logouts, user: str | None) -> None:
        came.append(user)
        await end(self, user)

    monkeypatch.setattr(Logouts, "end", noted)
    out = b"POST /api/v1/logout?all=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" + BOB + b"\r\n"
    with broker_of(tmp_path) as (broker, _), ExitStack() as stack:
        for number in range(9):
            sock = stack.enter_context(socket.create_connection(_where(broker), 60, ("127.0.0.2", 0)))
            sock.sendall(out)
            wait_until(lambda number=number: len(came) > min(number, 3), "it waits")  # type: ignore[misc]
        for _ in range(5):
            with browser(broker) as http_client:
                assert http_client.get("/login").status_code == 200


def _where(broker: RunningBroker) -> tuple[str, int]:
    host, _, port = broker.http_address.rpartition(":")
    return host, int(port)


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop, once `note` was called on it. `noted`: the round of each call."""

    def __init__(self) -> None:
        self._count = 0
        self.noted: list[int] = []

    def note(self) -> None:
        if not self.noted:
            trio.lowlevel.add_instrument(self)
        self.noted.append(self._count)

    def after_io_wait(self, timeout: float) -> None:
        self._count += 1


def test_bodies_that_come_together_are_decoded_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who has logged in may send them. Each takes some 30 ms."""
    rounds, decode = Rounds(), api._decode

    def noted(data: bytearray, kind: Any, packed: bool) -> Any:
        rounds.note()
        return decode(data, kind, packed)

    monkeypatch.setattr(api, "_decode", noted)
    before = {str(number): 1 for number in range(20_000)}
    body = json.dumps({"confirm": "seen", "before": before}, separators=(",", ":")).encode()
    kind = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    head = b"POST /api/v1/topics/seen/delete-records HTTP/1.1\r\nHost: localhost\r\n" + kind + BOB + b"\r\n"
    with broker_of(tmp_path) as (broker, client), ExitStack() as stack:
        client.create_topic("seen")
        socks = [stack.enter_context(socket.create_connection(_where(broker), 60)) for _ in range(40)]
        for sock in socks:
            sock.sendall(head + body[:-1])
        time.sleep(0.5)  # they have come by then; if not, the test is the easier
        for sock in socks:
            sock.sendall(body[-1:])
        assert {sock.recv(12) for sock in socks} == {b"HTTP/1.1 403"}
    assert len(set(rounds.noted)) == len(rounds.noted) == len(socks)


def test_large_answers_are_made_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, encode = Rounds(), slices.encode

    def noted(value: Any, *, binary: bool) -> bytes:
        if isinstance(value, EventShown):
            rounds.note()
        return encode(value, binary=binary)

    monkeypatch.setattr(slices, "encode", noted)
    ask = b"GET /api/v1/topics/seen/partitions/0/events/0 HTTP/1.1\r\nHost: localhost\r\n" + BOB + b"\r\n"
    with broker_of(tmp_path) as (broker, client), ExitStack() as stack:
        client.create_topic("seen")
        client.add_acls([AclInfo("topic", "seen", "User:bob", "read")])
        with client.producer("seen") as producer:
            producer.send(b"\0" * 500_000)
        socks = [stack.enter_context(socket.create_connection(_where(broker), 60)) for _ in range(20)]
        for sock in socks:
            sock.sendall(ask)
        assert {sock.recv(12) for sock in socks} == {b"HTTP/1.1 200"}
    assert len(set(rounds.noted)) == len(rounds.noted) >= 4


def test_a_page_of_many_partitions_waits_for_none_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, came, make = threading.Event(), list[str](), events._list_page

    async def slow(call: Call, *others: Any) -> EventPage:
        came.append(call.principal.name)
        while call.principal.name == "bob" and not waits.is_set():
            await trio.sleep(0.01)
        return await make(call, *others)

    monkeypatch.setattr(events, "_list_page", slow)
    with (
        broker_of(tmp_path) as (broker, client),
        browser(broker, "ada", SECRET) as ada,
        browser(broker, "bob", "b") as bob,
        ThreadPoolExecutor(4) as pool,
    ):
        client.create_topic("wide", events.NARROW + 1)
        client.add_acls([AclInfo("topic", "wide", "User:bob", "read")])
        pages = [pool.submit(bob.get, "/topics/wide/events") for _ in range(4)]
        wait_until(lambda: bool(came), "one is read")
        assert ada.get("/topics/wide/events").status_code == 200
        assert came == ["bob", "ada"]
        waits.set()
        assert {each.result().status_code for each in pages} == {200}


def test_one_address_with_the_consoles_token_leaves_views_and_bodies_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many people have it, so it is their addresses that have shares."""
    monkeypatch.setattr(app, "MOST_LIVE", 6)
    monkeypatch.setattr(api, "MAX_BODIES", 64 << 10)
    taken, take = list[int](), BodyRoom.take

    def noted(self: BodyRoom, who: str, size: int) -> bool:
        taken.append(size)
        return take(self, who, size)

    monkeypatch.setattr(BodyRoom, "take", noted)
    token = "a token of the console"
    settings = {"listen_http": "127.0.0.1:0", "console_token": token, "durability": "os"}
    with run_broker(tmp_path / "data", **settings) as broker, ExitStack() as stack:

        def client(source: str) -> httpx.Client:
            return stack.enter_context(
                httpx.Client(
                    base_url=f"http://{broker.http_address}/api/v1",
                    headers={"Authorization": f"Bearer {token}"},
                    transport=httpx.HTTPTransport(local_address=source),
                    timeout=60,
                )
            )

        greedy, other = client("127.0.0.2"), client("127.0.0.3")
        assert greedy.post("/topics", json={"name": "seen"}).status_code == 201

        def live(one: httpx.Client) -> int:
            return stack.enter_context(one.stream("GET", "/topics/seen/tail")).status_code

        assert [live(greedy) for _ in range(4)] == [200, 200, 200, 503]
        assert live(other) == 200

        head = b"POST /api/v1/topics/seen/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow = b"Content-Length: 40000\r\nAuthorization: Bearer %b\r\n\r\n" % token.encode() + b" " * 32_000
        sock = stack.enter_context(socket.create_connection(_where(broker), 60, ("127.0.0.2", 0)))
        sock.sendall(head + slow)
        wait_until(lambda: sum(taken) >= 32_000, "most of his share is taken")
        assert greedy.post("/topics/seen/events", json={"value": "x" * 900}).status_code == 503
        assert other.post("/topics/seen/events", json={"value": "x" * 900}).status_code == 201


def test_probes_and_logins_wait_for_no_turn_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would wait behind all else that comes from their address."""
    asked, turn = list[str](), Server.turn

    async def noted(server: Server, whose: str) -> None:
        asked.append(whose)
        await turn(server, whose)

    monkeypatch.setattr(Server, "turn", noted)
    with run_broker(tmp_path / "data", listen_http="127.0.0.1:0") as broker:
        for path in ("/healthz", "/readyz", "/api/v1/login"):
            assert httpx.get(f"http://{broker.http_address}{path}").status_code == 200
        assert not asked
        assert httpx.get(f"http://{broker.http_address}/api/v1/topics").status_code == 200
        assert asked
