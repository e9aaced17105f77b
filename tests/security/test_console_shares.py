"""One who may read a topic, or nothing at all, takes no more of the console than is left for others: turns, memory for
answers, and connections."""

from __future__ import annotations

import socket
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from krappy.broker import logouts
from krappy.broker.logouts import Logouts
from krappy.broker.tables import table
from krappy.clients.acls import AclInfo
from krappy.console.app import TOGETHER
from krappy.server import http, places
from krappy.server.pages import Pages
from krappy.testing.running import RunningBroker
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
        if not found and who == "bob":
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
