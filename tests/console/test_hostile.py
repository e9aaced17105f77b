"""Whatever people and programs put into events, and send, must not hurt the broker or a page."""

from __future__ import annotations

import base64
import contextlib
import json
import socket

import pytest

from krappy.console import api as api_module
from krappy.console.app import TOGETHER
from krappy.console.topics import page_of
from krappy.testing.running import RunningBroker
from tests.console.web import CHANGES, Web, api
from tests.served import alone

SCRIPT = '<script>alert(1)</script><img src=x onerror="alert(2)">\u2028</script>'
HALF = "Krappy-Request: 1\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
HOSTILE = [
    SCRIPT.encode(),
    b"\xff\xfe\x00\x80",
    b"",
    b"\x00" * 10,
    b"data: x\n\nevent: evil\n\n",
    b"[" * 10_000,
    b"1e999",
    b'"\\ud800"',
]


def test_hostile_keys_and_values_come_back_as_they_are(web: Web) -> None:
    path = web.topic("hostile")
    for data in HOSTILE:
        given = {"base64": base64.b64encode(data).decode()}
        web.publish(path, given, given, headers=[[SCRIPT, given]])
    for form in ("auto", "text", "json", "base64"):
        for view in (f"{path}/events", f"{path}/table"):
            answer = web.client.get(api(view), params={"keys": form, "values": form})
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"
            told = answer.json()
            assert len(told.get("events") or told["entries"]) == len(HOSTILE)
    for event, data in zip(web.get(f"{path}/events", values="base64")["events"], HOSTILE, strict=True):
        assert base64.b64decode(event["value"]["data"]) == data
        key = base64.b64encode(data).decode()
        found = web.get(f"{path}/table/entry", key=key, key_encoding="base64", values="base64")
        assert (found["state"], found["offset"]) == ("value", event["offset"])


def test_an_event_cannot_break_out_of_a_live_view(web: Web) -> None:
    path = web.topic("breakout")
    with web.live(f"{path}/tail", values="text", value_bytes=20_000) as sent:
        next(sent)
        for data in HOSTILE:
            web.publish(path, None, {"base64": base64.b64encode(data).decode()})
        found: list[str] = []
        while len(found) < len(HOSTILE):
            event = next(sent)
            assert event.event == "events"
            found += [each["value"]["data"] for each in event.data["events"]]
    assert found == [data.decode(errors="replace") for data in HOSTILE]


def test_json_with_line_ends_between_its_parts_stays_one_event(web: Web) -> None:
    path = web.topic("spaced")
    with web.live(f"{path}/tail", values="json") as sent:
        next(sent)
        web.publish(path, None, '{"a":\r\n\n[1,\n\n2]}')
        (event,) = next(sent).data["events"]
        assert (event["value"]["as"], event["value"]["data"]) == ("json", {"a": [1, 2]})


def test_slow_bodies_keep_nobody_waiting(web: Web, console: RunningBroker) -> None:
    """There are more of them than are worked on at a time, and each waits for the rest of its body."""
    host, _, port = console.http_address.rpartition(":")
    head = f"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{HALF}"
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(2 * TOGETHER)]
        for sock in slow:
            sock.sendall(head.encode())
            assert sock.recv(65536).startswith(b"HTTP/1.1 100")  # the broker waits for its body
        web.topic("quick")
        for sock in slow:
            sock.sendall(b"x" * 100)
            assert sock.recv(65536).startswith(b"HTTP/1.1 400")


@alone
def test_bodies_have_their_share_of_memory(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    path = web.topic("bounded")
    with monkeypatch.context() as patch:
        patch.setattr(api_module, "MAX_BODIES", 2000)
        refused = web.post(f"{path}/events", {"value": "x" * 2000}, status=503)
        assert refused["code"] == "THROTTLING_QUOTA_EXCEEDED"
        for _ in range(5):  # what a request took is free again after its answer, whichever answer it is
            web.publish(path, None, "x" * 500)
            web.post(f"{path}/events", {"nothing": "x" * 500}, status=400)


def test_nobody_takes_all_the_memory_for_bodies() -> None:
    room, half = api_module.BodyRoom(), api_module.MAX_BODIES // 2
    assert room.take("slow", half)
    assert not room.take("slow", 1)
    room.take("slow", -1)
    for number in range(10):  # each has half of what those before left
        assert room.take(f"user-{number}", half >> number + 1)
    assert not room.take("user-0", 1 << 10)
    room.take("slow", -half)
    assert room.take("late", half // 2)


def test_a_live_view_has_no_head(web: Web) -> None:
    path = web.topic("headless")
    assert web.client.head(api(f"{path}/tail")).status_code == 405
    assert web.client.head(api(path)).status_code == 200


def test_large_values_are_cut_in_pages_and_whole_when_asked_for(web: Web, console: RunningBroker) -> None:
    path = web.topic("large", max_message_bytes=4 << 20)
    value = b"\xc3\xa4" * 500_000  # 1 MB: a character may be cut in two
    with console.connect() as client, client.producer("large") as producer:
        for number in range(8):
            producer.send(value, key=str(number)).result()
    page = web.client.get(api(f"{path}/events"), params={"value_bytes": 1001})
    assert len(page.content) < 50_000
    for event in page.json()["events"]:
        assert event["value"]["truncated"]
        assert (event["value"]["size"], event["value"]["data"]) == (1_000_000, "ä" * 500)
    assert 1 <= len(page.json()["events"]) <= 4  # as many as fit a page
    assert web.get(f"{path}/partitions/0/events/0")["value"]["data"] == value.decode()
    assert web.get(f"{path}/table/entry", key="3")["value"]["data"] == value.decode()


def test_a_body_that_is_too_large_or_no_json_is_refused(web: Web) -> None:
    path = web.topic("bodies")
    headers = {"Content-Type": "application/json", **CHANGES}
    large = web.client.post(api(f"{path}/events"), content=b'"' + b"x" * (9 << 20) + b'"', headers=headers)
    assert (large.status_code, large.json()["code"]) == (413, "MESSAGE_TOO_LARGE")
    for body in (b"", b"{", b"[" * 100_000, b"\xff", b"null", b"[]", b'{"value": "\\ud800"}'):
        answer = web.client.post(api(f"{path}/events"), content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST"), body[:20]
    assert web.get(path)["summary"]["events"] == 0


def test_many_topics_are_listed_a_page_at_a_time(web: Web, console: RunningBroker) -> None:
    """Here are some hundred topics. The list works on names alone, and describes only one page of them."""
    with console.connect() as client:
        for number in range(150):
            client.create_topic(f"crowd-{number:05}", if_absent=True)
    page = web.client.get(api("/topics"), params={"filter": "crowd"})
    assert len(page.content) < 40_000
    assert (page.json()["total"], len(page.json()["topics"])) == (150, 100)
    assert web.get("/topics", filter="00149")["total"] == 1
    assert web.client.get("/metrics").text.count("krappy_topic_log_bytes{") >= 150


def test_ten_thousand_names_are_paged() -> None:
    names = [f"t-{number}" for number in range(10_000)]
    found: list[str] = []
    after = ""
    for _ in range(10):
        page, total, following = page_of(names, "T-", after, 1000)
        assert (total, len(page)) == (10_000, 1000)
        found += page
        after = following or ""
    assert following is None
    assert found == sorted(names)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000,
        b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /api/v1/topics/%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /api/v1/topics?limit=%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /api/v1/tail HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
    ids=lambda sent: sent[:40].decode("latin-1").strip(),
)
def test_broken_http_ends_its_own_connection_only(web: Web, console: RunningBroker, sent: bytes) -> None:
    host, _, port = console.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as sock:
        answer = b""
        with contextlib.suppress(ConnectionError, BrokenPipeError):  # it may have been closed already
            sock.sendall(sent)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                answer += piece
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert web.get("/healthz") == {"status": "ok"}


def test_a_problem_tells_nothing_that_a_page_could_run(web: Web) -> None:
    answer = web.client.get(api("/topics/%3Cscript%3E"))
    assert answer.headers["content-type"] == "application/problem+json"
    assert "<script>" in json.loads(answer.content)["detail"]
