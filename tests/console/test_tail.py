"""Live views: a stream as it comes, a table and its changes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import msgpack
import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.console.web import Sent, Web, api, texts


def values(sent: Iterator[Sent], count: int) -> list[str]:
    """The values of the next `count` events, which may come together or one by one."""
    found: list[str] = []
    while len(found) < count:
        found += texts(next(sent).data["events"])
    return found


def test_a_tail_shows_events_as_they_come(web: Web) -> None:
    path = web.topic("tailed", 2)
    web.publish(path, None, "before")
    with web.live(f"{path}/tail") as sent:
        assert next(sent).event == "start"
        for number in range(3):
            web.publish(path, "k", str(number))
            event = next(sent)
            assert (event.event, texts(event.data["events"])) == ("events", [str(number)])


def test_a_tail_goes_on_where_it_was(web: Web) -> None:
    path = web.topic("resumed")
    with web.live(f"{path}/tail") as sent:
        place = next(sent).id
    assert place
    for number in range(3):
        web.publish(path, None, str(number))
    with web.live(f"{path}/tail", headers={"Last-Event-ID": place}) as sent:
        assert next(sent).event == "start"
        first = next(sent)
        assert texts(first.data["events"])[0] == "0"
    page = web.get(f"{path}/events", start="earliest", limit=1)
    with web.live(f"{path}/tail", after=page["after"]) as sent:
        next(sent)
        assert texts(next(sent).data["events"])[0] == "1"


def test_a_tail_is_filtered_by_key_and_by_text(web: Web) -> None:
    path = web.topic("sifted")
    with web.live(f"{path}/tail", key="a") as by_key, web.live(f"{path}/tail", text="ürf") as by_text:
        next(by_key), next(by_text)
        web.publish(path, "b", "würfel")
        web.publish(path, "a", "x")
        web.publish(path, "ab", "y")
        web.publish(path, "b", "z", headers=[["h", "würfel"]])
        web.publish(path, "a", "last würfel")
        assert values(by_key, 2) == ["x", "last würfel"]
        assert values(by_text, 3) == ["würfel", "z", "last würfel"]


def test_a_tail_says_what_it_skips(web: Web, console: RunningBroker) -> None:
    """Every offset is either shown or said to be skipped."""
    path = web.topic("flood")
    count = 20_000
    with web.live(f"{path}/tail", rate=50) as sent:
        assert next(sent).data["offsets"] == {"0": 0}
        with console.connect() as client, client.producer("flood") as producer:
            for number in range(count):
                producer.send(b"x" * 100, key=str(number))
        at = shown = skipped = 0
        while at < count:
            event = next(sent)
            if event.event == "skipped":
                told = event.data
                assert (told["partition"], told["start"], told["reason"]) == (0, at, "rate")
                assert told["events"] == told["end"] - told["start"]
                skipped += told["events"]
                at = told["end"]
            else:
                offsets = [each["offset"] for each in event.data["events"]]
                assert offsets == list(range(at, at + len(offsets)))
                shown += len(offsets)
                at += len(offsets)
        assert shown + skipped == count
        assert skipped > 0
        assert shown > 0


def test_a_tail_of_many_partitions_shows_as_many_as_its_rate_allows(web: Web) -> None:
    path = web.topic("even", 6)
    with web.live(f"{path}/tail") as sent:
        place = next(sent).id
    for number in range(60):
        web.publish(path, None, str(number), partition=number % 6)
    with web.live(f"{path}/tail", after=place, rate=60) as sent:
        assert next(sent).event == "start"
        assert sorted(values(sent, 60), key=int) == [str(number) for number in range(60)]


def test_a_filter_that_lets_too_much_through_says_so(web: Web, console: RunningBroker) -> None:
    path = web.topic("matching")
    with web.live(f"{path}/tail", rate=5, text="hit") as sent:
        next(sent)
        with console.connect() as client, client.producer("matching") as producer:
            for number in range(1000):
                producer.send("hit" if number % 2 else "miss")
        counted = 0
        while counted < 500:
            event = next(sent)
            counted += event.data["events"] if event.event == "skipped" else len(event.data["events"])
        assert counted == 500


def test_who_is_cut_off_before_a_filter_says_what_it_skips_is_told_later(web: Web, console: RunningBroker) -> None:
    path = web.topic("cut")
    with web.live(f"{path}/tail") as sent:
        place = next(sent).id
    with console.connect() as client, client.producer("cut") as producer:
        for number in range(10):
            producer.send(f"hit {number}")
    with web.live(f"{path}/tail", after=place, rate=4, text="hit") as sent:
        assert next(sent).event == "start"
        shown = next(sent)
    with web.live(f"{path}/tail", after=place, headers={"Last-Event-ID": shown.id}, rate=10, text="hit") as sent:
        assert next(sent).event == "start"
        seen = texts(shown.data["events"])
        assert seen + values(sent, 10 - len(seen)) == [f"hit {number}" for number in range(10)]


def test_a_tail_that_goes_on_behind_the_end_says_so(web: Web) -> None:
    """Of a broker that was restored from a backup, say. It would show nothing until there are as many events again."""
    path = web.topic("older")
    with web.live(f"{path}/tail") as sent:
        id, offsets = msgpack.unpackb(base64.urlsafe_b64decode(f"{next(sent).id}=="), strict_map_key=False)
    assert offsets == {0: 0}
    for at in (0, 1):
        later = base64.urlsafe_b64encode(msgpack.packb((id, {0: at}))).decode().rstrip("=")
        with web.live(f"{path}/tail", after=later) as sent:
            assert next(sent).event == "start"
            if at:
                told = next(sent)
                assert (told.event, told.data["code"]) == ("problem", "OFFSET_OUT_OF_RANGE")


def test_a_watch_is_the_table_then_its_changes(web: Web) -> None:
    path = web.topic("watched", 2)
    web.publish(path, "a1", "1")
    web.publish(path, "a2", "2")
    web.publish(path, "b", "no")
    with web.live(f"{path}/watch", prefix="a") as sent:
        table: dict[str, str] = {}
        event = next(sent)
        while event.event == "snapshot":
            table |= {each["key"]["data"]: each["value"]["data"] for each in event.data["entries"]}
            event = next(sent)
        assert (event.event, table) == ("end_of_snapshot", {"a1": "1", "a2": "2"})
        place = event.id
        web.publish(path, "b", "still not")
        web.publish(path, "a1", None)
        change = next(each for each in sent if each.data["entries"])  # other changes only tell how far the watch is
        assert (change.event, change.data["lag"]) == ("changes", 0)
        assert [(each["key"]["data"], each["state"]) for each in change.data["entries"]] == [("a1", "deleted")]
    web.publish(path, "a3", "3")
    with web.live(f"{path}/watch", prefix="a", headers={"Last-Event-ID": place}) as sent:
        assert next(sent).event == "start"
        again: set[str] = set()
        while len(again) < 2:
            again |= {each["key"]["data"] for each in next(sent).data["entries"]}
        assert again == {"a1", "a3"}


@pytest.mark.parametrize("view", ["tail", "watch"])
def test_a_live_view_as_msgpack(web: Web, view: str) -> None:
    path = web.topic(f"packed-{view}")
    with web.client.stream("GET", api(f"{path}/{view}"), headers={"Accept": "application/msgpack"}) as answer:
        assert answer.headers["content-type"] == "application/msgpack"
        unpacker = msgpack.Unpacker()

        def told() -> Iterator[dict[str, Any]]:
            for piece in answer.iter_bytes():
                unpacker.feed(piece)
                yield from unpacker

        sent = told()
        assert next(sent)["event"] in ("start", "end_of_snapshot")
        web.publish(path, {"base64": "/w=="}, {"base64": "/v8="})
        event = next(each for each in sent if (each["data"] or {}).get("events") or (each["data"] or {}).get("entries"))
        [shown] = event["data"].get("events") or event["data"]["entries"]
        assert (shown["key"]["data"], shown["value"]["data"]) == (b"\xff", b"\xfe\xff")
        assert event["id"]


def test_partitions_that_are_added_are_seen(web: Web) -> None:
    """Whoever watches all partitions sees them; whoever has chosen some goes on with those."""
    path = web.topic("growing", 1)
    with (
        web.live(f"{path}/tail") as tail,
        web.live(f"{path}/watch", snapshot="false") as watch,
        web.live(f"{path}/tail", partition=0) as chosen,
    ):
        place = next(tail).id
        next(watch), next(chosen)
        web.patch(path, {"partitions": 3})
        web.publish(path, "n", "new", partition=2)
        event = next(tail)
        assert [(each["partition"], each["value"]["data"]) for each in event.data["events"]] == [(2, "new")]
        change = next(each for each in watch if each.data["entries"])
        assert (change.data["partition"], change.data["lag"], texts(change.data["entries"])) == (2, 0, ["new"])
        web.publish(path, "k", "old", partition=0)
        assert texts(next(chosen).data["events"]) == ["old"]
    with web.live(f"{path}/watch", after=place) as resumed:
        assert next(resumed).event == "start"
        found: list[str] = []
        while len(found) < 2:
            found += texts(next(resumed).data["entries"])
        assert sorted(found) == ["new", "old"]
    with web.live(f"{path}/tail", headers={"Last-Event-ID": place}) as resumed:
        assert next(resumed).data["offsets"] == {"0": 0, "1": 0, "2": 0}
        assert sorted(values(resumed, 2)) == ["new", "old"]


@pytest.mark.parametrize("view", ["tail", "watch"])
def test_a_view_does_not_go_on_in_another_topic_of_the_same_name(web: Web, view: str) -> None:
    """A browser that lost its connection asks from the place that it had come to."""
    path = web.topic(f"anew-{view}")
    web.publish(path, "k", "old")
    with web.live(f"{path}/{view}") as sent:
        place = next(each for each in sent if each.id).id
    web.delete(path, confirm=f"anew-{view}")
    web.topic(f"anew-{view}")
    web.publish(path, "k", "new")
    assert place is not None
    by_query = web.client.get(api(f"{path}/{view}"), params={"after": place})
    by_header = web.client.get(api(f"{path}/{view}"), headers={"last-event-id": place})
    for answer in (by_query, by_header):
        assert (answer.status_code, answer.json()["code"]) == (404, "UNKNOWN_TOPIC")


def test_a_deleted_topic_ends_its_live_views(web: Web) -> None:
    path = web.topic("mortal")
    with web.live(f"{path}/tail") as tail, web.live(f"{path}/watch", snapshot="false") as watch:
        next(tail), next(watch)
        web.delete(path, confirm="mortal")
        for sent in (tail, watch):
            event = next(sent)
            assert (event.event, event.data["code"]) == ("problem", "UNKNOWN_TOPIC")
            assert list(sent) == []


def test_a_broker_that_stops_ends_live_views_and_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with httpx.Client(timeout=60.0, trust_env=False) as client:
        with run_broker(tmp_path_factory.mktemp("stop"), listen_http="127.0.0.1:0") as broker:
            client.base_url = httpx.URL(f"http://{broker.http_address}")
            web = Web(client)
            path = web.topic("t")
            live = web.live(f"{path}/tail")
            sent = live.__enter__()
            assert next(sent).event == "start"
        event = next(sent)
        assert (event.event, event.data["code"]) == ("problem", "SHUTTING_DOWN")
        assert list(sent) == []


def test_live_views_that_readers_left_are_gone(web: Web) -> None:
    path = web.topic("left")
    for _ in range(120):  # more than may be open at a time
        with web.live(f"{path}/tail") as sent:
            next(sent)
