"""A topic as a table over HTTP."""

from __future__ import annotations

import base64

import pytest

from krappy.testing.running import RunningBroker
from tests.console.web import Web, texts


def test_a_key_has_a_value_was_deleted_or_is_absent(web: Web) -> None:
    path = web.topic("three")
    web.publish(path, "k", "old")
    web.publish(path, "k", "new")
    web.publish(path, "gone", "x")
    web.publish(path, "gone", None)
    found = web.get(f"{path}/table/entry", key="k")
    assert (found["state"], found["value"]["data"], found["offset"]) == ("value", "new", 1)
    gone = web.get(f"{path}/table/entry", key="gone")
    assert (gone["state"], gone["value"], gone["offset"]) == ("deleted", None, 3)
    assert web.get(f"{path}/table/entry", key="never")["state"] == "absent"
    assert web.get(f"{path}/table/entry", key="k", min_offset=3)["offset"] == 1
    assert web.get(f"{path}/table/entry", key="k", min_offset=4, status=400)["code"] == "OFFSET_OUT_OF_RANGE"


def test_many_keys_are_looked_up_in_their_order(web: Web) -> None:
    path = web.topic("many", 4)
    for number in range(10):
        web.publish(path, f"k{number}", str(number))
    asked = ["k7", "none", {"base64": base64.b64encode(b"k1").decode()}]
    found = web.post(f"{path}/table/lookup", {"keys": asked})["entries"]
    assert [each["state"] for each in found] == ["value", "absent", "value"]
    assert texts(found) == ["7", None, "1"]


def test_a_scan_is_in_the_order_of_keys_across_partitions(web: Web) -> None:
    path = web.topic("ordered", 4)
    keys = [f"{prefix}{number:02}" for prefix in "abc" for number in range(20)]
    for key in keys:
        web.publish(path, key, key.upper())
    found: list[str] = []
    for page in web.pages(f"{path}/table", "cursor", "cursor", limit=7):
        found += texts(page["entries"], "key")
    assert found == keys
    assert texts(web.get(f"{path}/table", prefix="b")["entries"], "key") == keys[20:40]
    assert texts(web.get(f"{path}/table", start="a18", end="b02")["entries"], "key") == keys[18:22]
    assert sum(web.get(f"{path}/table")["offsets"].values()) == len(keys)
    only = web.get(f"{path}/table", partition=2)["entries"]
    assert {each["partition"] for each in only} == {2}


def test_tombstones_are_shown_when_asked_for(web: Web) -> None:
    path = web.topic("stones")
    web.publish(path, "a", "1")
    web.publish(path, "b", None)
    assert texts(web.get(f"{path}/table")["entries"], "key") == ["a"]
    both = web.get(f"{path}/table", tombstones=True)["entries"]
    assert [(each["key"]["data"], each["state"]) for each in both] == [("a", "value"), ("b", "deleted")]


def test_large_values_make_small_pages_and_nothing_is_missed(web: Web, console: RunningBroker) -> None:
    path = web.topic("large", 3)
    with console.connect() as client, client.producer("large") as producer:
        for number in range(24):
            producer.send(b"x" * 300_000, key=f"k{number:02}")
    pages = [texts(page["entries"], "key") for page in web.pages(f"{path}/table", "cursor", "cursor")]
    found = [key for page in pages for key in page]
    assert found == [f"k{number:02}" for number in range(24)]
    assert len(pages) > 3


def test_the_history_of_a_key_is_its_raw_events(web: Web) -> None:
    path = web.topic("past", 2)
    for number in range(5):
        web.publish(path, "k", str(number))
        web.publish(path, "other", "x")
    web.publish(path, "k", None)
    first = web.get(f"{path}/table/history", key="k", limit=4)
    assert texts(first["entries"]) == ["0", "1", "2", "3"]
    rest = web.get(f"{path}/table/history", key="k", limit=4, offset=first["next"])
    assert [each["state"] for each in rest["entries"]] == ["value", "deleted"]
    assert rest["next"] is None


def test_a_topic_without_a_view_has_no_table(web: Web) -> None:
    path = web.topic("viewless", view_enable="false")
    for asked in ("table", "table/entry", "watch"):
        query = {"key": "k"} if asked == "table/entry" else {}
        assert web.get(f"{path}/{asked}", status=409, **query)["code"] == "VIEW_DISABLED"


@pytest.mark.parametrize("query", [{"prefix": "a", "start": "b"}, {"cursor": "x"}, {"limit": 0}, {"limit": "many"}])
def test_a_scan_that_makes_no_sense_is_refused(web: Web, query: dict[str, str]) -> None:
    web.post("/topics", {"name": "sense"}, status=409 if web.get("/topics", filter="sense")["total"] else 201)
    assert web.get("/topics/sense/table", status=400, **query)["code"] == "INVALID_REQUEST"


def test_a_prefix_of_the_highest_bytes_has_no_end(web: Web) -> None:
    path = web.topic("highest")
    key = base64.b64encode(b"\xff\xff1").decode()
    web.publish(path, {"base64": key}, "v")
    web.publish(path, "a", "v")
    prefix = base64.b64encode(b"\xff\xff").decode()
    found = web.get(f"{path}/table", prefix=prefix, key_encoding="base64")["entries"]
    assert texts(found, "key") == [key]


def test_a_page_is_watched_from_where_it_was_read(web: Web) -> None:
    path = web.topic("watched-page", 2)
    for at in range(4):
        web.publish(path, f"k{at}", "old")
    page = web.get(f"{path}/table")
    web.publish(path, "k2", "new")
    with web.live(f"{path}/watch", after=page["watch"], start="k1", end="k3") as sent:
        assert next(sent).event == "start"
        changes = next(sent)
        assert changes.event == "changes"
        assert texts(changes.data["entries"]) == ["new"]
