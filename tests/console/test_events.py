"""The raw stream over HTTP: pages in both directions, one event, publishing."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from krappy.testing.running import RunningBroker
from tests.console.web import CHANGES, Web, api, texts


@pytest.fixture
def numbered(web: Web, request: pytest.FixtureRequest) -> str:
    """A topic with the values 0 to 9 in one partition."""
    path = web.topic(f"numbered-{sha256(request.node.name.encode()).hexdigest()[:12]}")
    for number in range(10):
        web.publish(path, f"k{number}", str(number))
    return path


def test_pages_forward_from_the_first_event(web: Web, numbered: str) -> None:
    first = web.get(f"{numbered}/events", start="earliest", limit=4)
    assert texts(first["events"]) == ["0", "1", "2", "3"]
    assert (first["before"], first["at_end"]) == (None, False)
    second = web.get(f"{numbered}/events", after=first["after"], limit=4)
    assert texts(second["events"]) == ["4", "5", "6", "7"]
    third = web.get(f"{numbered}/events", after=second["after"], limit=4)
    assert texts(third["events"]) == ["8", "9"]
    assert third["at_end"]
    nothing = web.get(f"{numbered}/events", after=third["after"], limit=4)
    assert (nothing["events"], nothing["at_end"]) == ([], True)
    web.publish(numbered, None, "10")
    assert texts(web.get(f"{numbered}/events", after=nothing["after"])["events"]) == ["10"]


def test_pages_backward_from_the_end(web: Web, numbered: str) -> None:
    last = web.get(f"{numbered}/events", limit=4)
    assert texts(last["events"]) == ["6", "7", "8", "9"]
    assert last["at_end"]
    before = web.get(f"{numbered}/events", before=last["before"], limit=4)
    assert texts(before["events"]) == ["2", "3", "4", "5"]
    first = web.get(f"{numbered}/events", before=before["before"], limit=4)
    assert (texts(first["events"]), first["before"]) == (["0", "1"], None)
    assert texts(web.get(f"{numbered}/events", after=first["after"], limit=4)["events"]) == ["2", "3", "4", "5"]


def test_pages_begin_at_an_offset_and_at_a_time(web: Web) -> None:
    path = web.topic("at")
    for number in range(5):
        web.publish(path, None, str(number), timestamp=1000 + number)
    assert texts(web.get(f"{path}/events", start="offset", at=3)["events"]) == ["3", "4"]
    assert texts(web.get(f"{path}/events", start="timestamp", at=1002)["events"]) == ["2", "3", "4"]
    assert web.get(f"{path}/events", start="offset", at=99, status=400)["code"] == "OFFSET_OUT_OF_RANGE"
    assert "needs `at`" in web.get(f"{path}/events", start="offset", status=400)["detail"]


def test_partitions_are_merged_by_time_in_both_directions(web: Web) -> None:
    path = web.topic("merged", 3)
    for number in range(12):
        web.publish(path, None, str(number), partition=number * 7 % 3, timestamp=1000 + number)
    whole = [str(number) for number in range(12)]
    found: list[Any] = []
    page = web.get(f"{path}/events", start="earliest", limit=5)
    for _ in range(len(whole)):
        found += texts(page["events"])
        page = web.get(f"{path}/events", after=page["after"], limit=5)
    assert found == whole
    found = []
    for page in web.pages(f"{path}/events", "before", "before", limit=5):
        found = texts(page["events"]) + found
    assert found == whole
    assert {each["partition"] for each in web.get(f"{path}/events", partition=[0, 2])["events"]} == {0, 2}


def test_gaps_do_not_end_a_page(web: Web, console: RunningBroker) -> None:
    """Events are read through what compaction or retention have left."""
    path = web.topic("gaps")
    with console.connect() as client, client.producer("gaps") as producer:
        for number in range(5000):
            producer.send(str(number))
    web.post(f"{path}/delete-records", {"confirm": "gaps", "before": {"0": 4990}})
    assert texts(web.get(f"{path}/events", start="earliest", limit=3)["events"]) == ["4990", "4991", "4992"]
    last = web.get(f"{path}/events", limit=20)
    assert (len(last["events"]), last["before"]) == (10, None)


def test_one_event_comes_whole(web: Web) -> None:
    path = web.topic("whole")
    value = "x" * 100_000
    at = web.publish(path, "k", value, headers=[["h", "1"], ["none", None]])
    page = web.get(f"{path}/events")
    assert page["events"][0]["value"] == {"as": "text", "data": value[:65536], "size": 100_000, "truncated": True}
    event = web.get(f"{path}/partitions/0/events/{at['offset']}")
    assert event["value"] == {"as": "text", "data": value, "size": 100_000}
    assert event["headers"] == [
        {"name": "h", "value": {"as": "text", "data": "1", "size": 1}},
        {"name": "none", "value": None},
    ]
    assert (event["key"]["data"], event["timestamp"], event["tombstone"]) == ("k", at["timestamp"], False)
    assert web.get(f"{path}/partitions/0/events/7", status=400)["code"] == "OFFSET_OUT_OF_RANGE"
    assert web.get(f"{path}/partitions/3/events/0", status=404)["code"] == "UNKNOWN_PARTITION"


def test_bytes_are_shown_as_they_are_asked_for(web: Web) -> None:
    path = web.topic("forms")
    binary = base64.b64encode(b"\xff\x00").decode()
    web.publish(path, "text", {"json": {"a": [1, None]}})
    web.publish(path, {"base64": binary}, "not json")
    text, raw = web.get(f"{path}/events")["events"]
    assert (text["value"]["as"], text["value"]["data"]) == ("text", '{"a":[1,null]}')
    assert (raw["key"]["as"], raw["key"]["data"]) == ("base64", binary)
    as_json, plain = web.get(f"{path}/events", values="json")["events"]
    assert (as_json["value"]["as"], as_json["value"]["data"]) == ("json", {"a": [1, None]})
    assert (plain["value"]["as"], plain["value"]["data"]) == ("text", "not json")
    forced = web.get(f"{path}/events", values="base64", keys="text")["events"][1]
    assert forced["value"]["data"] == base64.b64encode(b"not json").decode()
    assert forced["key"]["as"] == "text"


def test_msgpack_has_bytes_as_bytes(web: Web) -> None:
    path = web.topic("packed")
    body = msgspec.msgpack.encode({"key": {"bytes": b"\xff"}, "value": {"bytes": b"\x00\x01"}})
    headers = {**CHANGES, "content-type": "application/msgpack", "accept": "application/msgpack"}
    answer = web.client.post(api(f"{path}/events"), content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/msgpack")
    assert msgspec.msgpack.decode(answer.content)["offset"] == 0
    page = web.client.get(api(f"{path}/events"), headers={"accept": "application/msgpack, application/json;q=0.5"})
    (event,) = msgspec.msgpack.decode(page.content)["events"]
    assert event["key"] == {"as": "bytes", "data": b"\xff", "size": 1}
    refusal = web.client.get(api("/topics/nothing"), headers={"accept": "application/msgpack"})
    assert refusal.headers["content-type"] == "application/problem+msgpack"
    assert msgspec.msgpack.decode(refusal.content)["code"] == "UNKNOWN_TOPIC"


def test_a_tombstone_is_said(web: Web) -> None:
    path = web.topic("stone")
    web.publish(path, "k", None)
    assert web.get(f"{path}/events")["events"][0]["tombstone"]
    assert "tombstone" in web.post(f"{path}/events", {"key": "k"}, status=400)["detail"]
    both = {"key": "k", "value": "v", "tombstone": True}
    assert web.post(f"{path}/events", both, status=400)["code"] == "INVALID_REQUEST"
    assert web.post(f"{path}/events", {"value": None, "tombstone": True}, status=400)["code"] == "INVALID_REQUEST"


def test_an_event_is_published_on_a_condition(web: Web) -> None:
    path = web.topic("conditional")
    first = web.publish(path, "k", "1", expect="absent")
    web.publish(path, "k", "2", expect=first["offset"])
    refused = web.post(f"{path}/events", {"key": "k", "value": "3", "expect": 0}, status=412)
    assert (refused["code"], refused["details"]["current"]) == ("OFFSET_MISMATCH", 1)
    assert web.post(f"{path}/events", {"value": "3", "expect": 0}, status=400)["code"] == "INVALID_REQUEST"


def test_an_empty_key_is_a_key(web: Web) -> None:
    """A key of zero bytes is everywhere another thing than no key."""
    path = web.topic("empty-keys")
    with web.live(f"{path}/tail", key="") as tail, web.live(f"{path}/watch") as watch:
        next(tail), next(watch)
        web.publish(path, None, "none")
        web.publish(path, "", "empty")
        web.publish(path, "", None)
        web.publish(path, "", "again", expect=2, timestamp=5)
        events = web.get(f"{path}/events")["events"]
        assert [each["key"] and each["key"]["size"] for each in events] == [None, 0, 0, 0]
        assert [each["tombstone"] for each in events] == [False, False, True, False]
        seen: list[Any] = []
        while len(seen) < 3:
            seen += next(tail).data["events"]
        assert [each["offset"] for each in seen] == [1, 2, 3]
        told: list[Any] = []
        while len(told) < 3:
            told += next(watch).data["entries"]
        assert [each["state"] for each in told] == ["value", "deleted", "value"]
    found = web.get(f"{path}/table/entry", key="")
    assert (found["state"], found["offset"], found["timestamp"]) == ("value", 3, 5)
    assert web.post(f"{path}/table/lookup", {"keys": [""]})["entries"][0]["offset"] == 3
    assert [each["offset"] for each in web.get(f"{path}/table/history", key="")["entries"]] == [1, 2, 3]
    assert len(web.get(f"{path}/table", prefix="")["entries"]) == 1
    assert web.get(f"{path}/table", end="")["entries"] == []


@pytest.mark.parametrize("timestamp", [-1, -2, -(2**63), -(2**64), 2**63, 0.5, "now", True])
def test_an_invalid_timestamp_is_refused(web: Web, timestamp: Any) -> None:
    web.post("/topics", {"name": "untimely"}, status=201 if "untimely" not in str(web.get("/topics")) else 409)
    refused = web.post("/topics/untimely/events", {"value": "v", "timestamp": timestamp}, status=400)
    assert "timestamp" in refused["detail"], refused
    assert web.get("/topics/untimely/events")["events"] == []


def test_a_condition_that_does_not_hold_tells_where_the_key_is(web: Web) -> None:
    path = web.topic("conditions")
    web.publish(path, "k", "v", expect="absent")
    for expect in ("absent", 5):
        refused = web.post(f"{path}/events", {"key": "k", "value": "x", "expect": expect}, status=412)
        assert (refused["code"], refused["details"]["current"]) == ("OFFSET_MISMATCH", 0)
    web.publish(path, "k", None, expect=0)
    refused = web.post(f"{path}/events", {"key": "k", "value": "x", "expect": 0}, status=412)
    assert refused["details"]["current"] is None, "it is absent"


@pytest.mark.parametrize(
    "given", [{}, {"text": "a", "json": 1}, {"base64": "?"}, {"nothing": 1}, 5, ["a"]], ids=lambda given: str(given)
)
def test_a_key_that_cannot_be_read_is_refused(web: Web, given: Any) -> None:
    web.post("/topics", {"name": "unread"}, status=201 if "unread" not in str(web.get("/topics")) else 409)
    assert web.post("/topics/unread/events", {"key": given, "value": "v"}, status=400)["code"] == "INVALID_REQUEST"


@pytest.mark.parametrize("cursor", ["", "!", "AA", "gQA", "x" * 5000])
def test_an_invalid_cursor_is_refused(web: Web, numbered: str, cursor: str) -> None:
    found = web.get(f"{numbered}/events", after=cursor, status=400)
    assert found["code"] == "INVALID_REQUEST"
