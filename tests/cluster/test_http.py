"""The HTTP API at any broker of a cluster. Each partition of the topics has only one replica."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from krappy.blocking import connect
from krappy.partitioner import home_of
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.consumers import commit
from tests.cluster.test_cluster import leaders
from tests.cluster.test_native_groups import coordinator
from tests.console.web import Sent, Web
from tests.process import wait_until

PARTITIONS = 6
KEYS = [f"k{number:02}" for number in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path_factory.mktemp("http"), shared=shared_processes) as made:
        yield made


@pytest.fixture
def webs(cluster: ClusterProcesses) -> Iterator[dict[int, Web]]:
    """A client of the HTTP API for each broker, by its id."""
    clients = {id: httpx.Client(base_url=f"http://{each.http}", timeout=30) for id, each in cluster.brokers.items()}
    yield {id: Web(client) for id, client in clients.items()}
    for client in clients.values():
        client.close()


def make(
    cluster: ClusterProcesses, name: str, *replicas: tuple[int, ...], count: int = PARTITIONS, view: bool = True
) -> str:
    """Makes a topic; returns its path in the API. The partitions take the entries of `replicas` in turn as their
    replicas."""
    assigned = [list(replicas[index % len(replicas)]) for index in range(count)]
    config = {"view.enable": str(view).lower()}
    [made] = cluster.admin.create_topics([NewTopic(name, count, replica_assignment=assigned, config=config)]).values()
    made.result(30)
    for id in cluster.brokers:
        wait_until(
            lambda id=id: any(each["topic"] == name for each in cluster.events(id, "topic_created")),  # type: ignore[misc]
            f"broker {id} knows {name}",
        )
    wait_until(lambda: sorted(leaders(cluster, name)) == sorted(each[0] for each in assigned), "they are led")
    return f"/topics/{name}"


def values(page: Any) -> dict[str, str]:
    return {each["key"]["data"]: each["value"]["data"] for each in page["entries"]}


def test_what_is_written_at_one_broker_is_read_at_any(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    topic = make(cluster, "t", (1,), (2,), (3,))
    rows = {}
    for number, key in enumerate(KEYS):
        rows[key] = webs[number % 3 + 1].publish(topic, key, f"v {key}")
    assert {row["partition"] for row in rows.values()} == set(range(PARTITIONS))
    for web in webs.values():
        for key in KEYS:
            entry = web.get(f"{topic}/table/entry", key=key)
            assert (entry["state"], entry["value"]["data"]) == ("value", f"v {key}")
            assert (entry["partition"], entry["offset"]) == (rows[key]["partition"], rows[key]["offset"])
        assert web.get(f"{topic}/table/entry", key="nobody")["state"] == "absent"
        found = web.post(f"{topic}/table/lookup", {"keys": [*KEYS, "nobody"]})["entries"]
        assert [each["key"]["data"] for each in found] == [*KEYS, "nobody"]
        assert [each["state"] for each in found] == ["value"] * len(KEYS) + ["absent"]
        pages = list(web.pages(f"{topic}/table", "cursor", "cursor", limit=7))
        assert [each["key"]["data"] for page in pages for each in page["entries"]] == KEYS
        assert set(values(web.get(f"{topic}/table", prefix="k1"))) == {key for key in KEYS if key.startswith("k1")}
        told = web.get(topic)
        assert [each["partition"] for each in told["partitions"]] == list(range(PARTITIONS))
        assert sum(each["stable"] for each in told["partitions"]) == told["summary"]["events"] == len(KEYS)
        [listed] = web.get("/topics", filter="t")["topics"]
        assert listed["events"] == len(KEYS)


def test_events_are_read_page_by_page_at_any_broker(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    topic = make(cluster, "paged", (1,), (2,), (3,))
    for number in range(60):
        webs[1].publish(topic, None, f"{number}", partition=number % PARTITIONS, timestamp=1000 + number)
    wanted = [str(number) for number in range(60)]
    for web in webs.values():
        seen: list[str] = []
        page = web.get(f"{topic}/events", start="earliest", limit=13)
        while page["events"]:
            seen += [each["value"]["data"] for each in page["events"]]
            page = web.get(f"{topic}/events", after=page["after"], limit=13)
        assert page["at_end"]
        assert seen == wanted
        page = web.get(f"{topic}/events", limit=10)
        assert [each["value"]["data"] for each in page["events"]] == wanted[-10:]
        page = web.get(f"{topic}/events", before=page["before"], limit=10)
        assert [each["value"]["data"] for each in page["events"]] == wanted[-20:-10]
        page = web.get(f"{topic}/events", start="timestamp", at=1030)
        assert [each["value"]["data"] for each in page["events"]] == wanted[30:]
        for partition in range(PARTITIONS):
            event = web.get(f"{topic}/partitions/{partition}/events/3")
            assert event["value"]["data"] == str(18 + partition)
            web.get(f"{topic}/partitions/{partition}/events/99", status=400)
        page = web.get(f"{topic}/events", start="offset", at=8, partition=4)
        assert [each["value"]["data"] for each in page["events"]] == ["52", "58"]


def test_conditions_and_histories_at_any_broker(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    topic = make(cluster, "conditions", (1,), (2,), (3,))
    for id, web in webs.items():
        for key in (f"{id}-{number}" for number in range(12)):
            first = web.publish(topic, key, "1", expect="absent")
            given = {"key": key, "value": "2", "expect": "absent"}
            refused = web.post(f"{topic}/events", given, status=412)
            assert (refused["code"], refused["details"]["current"]) == ("OFFSET_MISMATCH", first["offset"])
            web.publish(topic, key, "2", expect=first["offset"])
            web.publish(topic, key, None)
            for other in webs.values():
                assert other.get(f"{topic}/table/entry", key=key)["state"] == "deleted"
                history = other.get(f"{topic}/table/history", key=key)
                assert [each["state"] for each in history["entries"]] == ["value", "value", "deleted"]
                history = other.get(f"{topic}/table/history", key=key, limit=2)
                assert len(history["entries"]) == 2
                history = other.get(f"{topic}/table/history", key=key, offset=history["next"])
                assert [each["state"] for each in history["entries"]] == ["deleted"]
        assert (
            web.get(f"{topic}/table/entry", key=f"{id}-0", min_offset=10**6, status=400)["code"]
            == "OFFSET_OUT_OF_RANGE"
        )


def test_events_are_deleted_at_any_broker(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    topic = make(cluster, "deleted", (1,), (2,), (3,))
    for number in range(60):
        webs[2].publish(topic, None, f"{number}", partition=number % PARTITIONS)
    for id, web in webs.items():
        body = {"confirm": "deleted", "before": {str(index): 2 * id for index in range(PARTITIONS)}}
        told = web.post(f"{topic}/delete-records", body)["start"]
        assert told == {str(index): 2 * id for index in range(PARTITIONS)}
        for other in webs.values():
            assert [each["start"] for each in other.get(topic)["partitions"]] == [2 * id] * PARTITIONS
    body = {"confirm": "deleted", "before": {str(index): 99 for index in range(PARTITIONS)}}
    assert webs[1].post(f"{topic}/delete-records", body, status=400)["code"] == "OFFSET_OUT_OF_RANGE"


def test_a_topic_is_changed_and_deleted_at_once_at_a_broker_that_did_not_make_it(
    cluster: ClusterProcesses, webs: dict[int, Web]
) -> None:
    """Often that broker has not heard of the topic yet."""
    for number in range(10):
        made, other, topic = number % 3 + 1, (number + 1) % 3 + 1, f"new{number}"
        webs[made].topic(topic, 3)
        if number % 2:
            webs[other].patch(f"/topics/{topic}", {"config": {"retention.ms": 1000}})
            other = (number + 2) % 3 + 1
        webs[other].delete(f"/topics/{topic}", confirm=topic)
        webs[made].topic(f"{topic}-too")
        with cluster.asked(other) as raw:
            named = {"name": f"{topic}-too", "topic_id": bytes(16)}
            body = {"topics": [named], "topic_names": [], "timeout_ms": 30_000}
            assert [each["error_code"] for each in raw.ask(ApiKey.DELETE_TOPICS, body)["responses"]] == [0]
    assert webs[1].delete("/topics/none", status=404, confirm="none")["code"] == "UNKNOWN_TOPIC"


def test_kafkas_clients_change_a_topic_at_once_at_a_broker_that_did_not_make_it(
    cluster: ClusterProcesses, webs: dict[int, Web]
) -> None:
    with cluster.asked(2) as second, cluster.asked(3) as third:
        for number in range(20):
            webs[1].topic(topic := f"changed{number}")
            config = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
            changed = {"resource_type": 2, "resource_name": topic, "configs": [config]}
            body = {"resources": [changed], "validate_only": False}
            assert [each["error_code"] for each in second.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)["responses"]] == [
                0
            ]
            larger = {"name": topic, "count": 2, "assignments": None}
            more = {"topics": [larger], "timeout_ms": 30_000, "validate_only": False}
            assert [each["error_code"] for each in third.ask(ApiKey.CREATE_PARTITIONS, more)["results"]] == [0]


def test_kafkas_clients_delete_a_topic_by_its_id_at_once_at_a_broker_that_did_not_make_it(
    cluster: ClusterProcesses,
) -> None:
    with cluster.asked(1) as first, cluster.asked(2) as second:
        for number in range(20):
            shape = {"num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
            body = {"topics": [{"name": f"by-id{number}", **shape}], "timeout_ms": 30_000, "validate_only": False}
            [made] = first.ask(ApiKey.CREATE_TOPICS, body)["topics"]
            meant = {"name": None, "topic_id": made["topic_id"]}
            [deleted] = second.ask(ApiKey.DELETE_TOPICS, {"topics": [meant], "timeout_ms": 30_000})["responses"]
            assert (deleted["name"], deleted["error_code"]) == (made["name"], 0)


def test_groups_at_any_broker(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    topic = make(cluster, "shared", (1, 2, 3))
    for key in KEYS:
        webs[1].publish(topic, key, "1")
    names = [f"group-{number}" for number in range(6)]
    with ExitStack() as stack:
        client = stack.enter_context(connect(cluster.native))
        for name in names:
            consumer = stack.enter_context(client.consumer("shared", group=name))
            events = consumer.poll(30)
            while len(events) < 2:
                events += consumer.poll(30)
            consumer.ack(events[0], wait=True)
            for web in webs.values():
                [listed] = web.get("/groups", filter=name)["groups"]
                assert (listed["kind"], listed["topics"], listed["lag"]) == ("shared", ["shared"], len(KEYS) - 1)
                told = web.get(f"/groups/{name}")
                assert sum(each["lag"] for each in told["partitions"]) == told["lag"] == len(KEYS) - 1
                [member] = told["members"]
                leased = sum(each["last"] - each["first"] + 1 for each in member["leases"])
                assert leased == member["leased"] == sum(each["leased"] for each in told["partitions"]) > 0
    coordinators = {coordinator(cluster, name) for name in names}
    assert len(coordinators) > 1
    for name, web in zip(names, [*webs.values()] * 2, strict=True):
        wait_until(lambda web=web, name=name: web.get(f"/groups/{name}")["members"] == [], "its member has left")  # type: ignore[misc]
        body = {"to": "latest", "topic": "shared", "dry_run": False}
        moved = web.post(f"/groups/{name}/reset", body)["positions"]
        assert len(moved) == PARTITIONS
        for other in webs.values():
            assert other.get(f"/groups/{name}")["lag"] == 0
        web.get(f"/groups/{name}x", status=404)
        web.delete(f"/groups/{name}", confirm=name)
        for other in webs.values():
            other.get(f"/groups/{name}", status=404)


def test_groups_of_kafka_at_any_broker(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    """The broker that coordinates native groups of this name, and knows none, answers, too."""
    make(cluster, "consumed", (3, 2), count=1)
    with connect(cluster.native) as client, client.consumer("consumed", group="native"):
        pass  # the topic for native groups is made
    names = (f"kafka-{number}" for number in count())
    name = next(each for each in names if cluster.coordinator(each) != coordinator(cluster, each))
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": name})
    commit(consumer, [TopicPartition("consumed", 0, 0)])
    consumer.close()
    for web in webs.values():
        assert web.get(f"/groups/{name}")["partitions"][0]["position"] == 0
        assert web.post(f"/groups/{name}/reset", {"to": "earliest"})["group"] == name
    webs[coordinator(cluster, name)].delete(f"/groups/{name}", confirm=name)
    for web in webs.values():
        web.get(f"/groups/{name}", status=404)


def test_what_is_written_to_a_topic_that_was_made_anew(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    """All brokers know the new topic. Each broker also refuses what the topic's leader would refuse."""
    for value in ("old", "new"):
        topic = make(cluster, "anew", (2,), (3,), view=False)
        for id, web in webs.items():
            for partition in range(2):
                web.publish(topic, None, f"{value} {id}", partition=partition)
            assert web.get(f"{topic}/watch", status=409)["code"] == "VIEW_DISABLED"
        for web in webs.values():
            found = {each["value"]["data"] for each in web.get(f"{topic}/events", start="earliest")["events"]}
            assert found == {f"{value} {id}" for id in webs}
        if value == "old":
            webs[1].delete(topic, confirm="anew")


def grow(cluster: ClusterProcesses, name: str, *leaders: int) -> None:
    """Adds partitions to a topic that has one."""
    [made] = cluster.admin.create_partitions(
        [NewPartitions(name, 1 + len(leaders), [[each] for each in leaders])]
    ).values()
    made.result(30)
    wait_until(lambda: len(cluster.partitions(name)) == 1 + len(leaders), "all know of them")
    wait_until(lambda: [each.leader for each in cluster.partitions(name).values()][1:] == [*leaders], "they are led")


def test_histories_of_keys_that_were_there_before_partitions_were_added(
    cluster: ClusterProcesses, webs: dict[int, Web]
) -> None:
    """A key stands in its old partition, or in its new one, or in both."""
    topic, keys = make(cluster, "grown", (2,), count=1), KEYS[:12]
    for key in keys:
        webs[1].publish(topic, key, "old")
    grow(cluster, "grown", 3, 1)
    at = {key: webs[1].publish(topic, key, "new")["partition"] for key in keys[:6]}
    assert {each == 0 for each in at.values()} == {True, False}
    for web in webs.values():
        for key in keys:
            assert web.get(f"{topic}/table/entry", key=key)["value"]["data"] == ("new" if key in at else "old")
            both = at.get(key, 0) != 0
            told = web.get(f"{topic}/table/history", key=key, status=400 if both else 200)
            if both:
                assert told["code"] == "INVALID_REQUEST"
            else:
                assert [each["value"]["data"] for each in told["entries"]] == ["old", "new"][: 1 + (key in at)]


class Stream:
    """A live view that is read until the `with` ends. `sent`: what it has sent so far."""

    def __init__(self, address: str, path: str, **query: Any) -> None:
        self.sent: list[Sent] = []
        self._ended = False
        self._client = httpx.Client(base_url=f"http://{address}", timeout=30)
        self._path, self._query = path, query
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._client.close()

    def _read(self) -> None:
        try:
            with Web(self._client).live(self._path, **self._query) as events:
                for each in events:
                    self.sent.append(each)
        except (httpx.HTTPError, AssertionError):  # the client was closed, or the stream has ended
            if not self._ended:
                raise

    def of(self, name: str) -> list[Any]:
        return [each.data for each in list(self.sent) if each.event == name]


def told(stream: Stream, name: str, rows: str) -> list[str]:
    """The keys that the live view has sent in events of this name, sorted."""
    return sorted(each["key"]["data"] for page in stream.of(name) for each in page[rows])


def has_all(stream: Stream, name: str, rows: str) -> bool:
    for each in ("skipped", "problem"):
        assert not stream.of(each)
    return len(told(stream, name, rows)) >= len(KEYS)


def test_live_views_at_any_broker(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    topic = make(cluster, "live", (1,), (2,), (3,))
    for key in KEYS:
        webs[1].publish(topic, key, "1")
    with ExitStack() as stack:

        def streams(view: str) -> dict[int, Stream]:
            return {
                id: stack.enter_context(Stream(each.http, f"{topic}/{view}")) for id, each in cluster.brokers.items()
            }

        tails, watches = streams("tail"), streams("watch")
        for id in webs:
            wait_until(lambda id=id: len(tails[id].of("start")) == 1, f"the tail at {id} has begun")  # type: ignore[misc]
            wait_until(lambda id=id: len(watches[id].of("end_of_snapshot")) == 1, f"the snapshot at {id} is there")  # type: ignore[misc]
            assert told(watches[id], "snapshot", "entries") == KEYS
            assert sum(watches[id].of("end_of_snapshot")[0]["offsets"].values()) == len(KEYS)
        for key in KEYS:
            webs[2].publish(topic, key, "2")
        for id in webs:
            for stream, name, rows in ((tails[id], "events", "events"), (watches[id], "changes", "entries")):
                wait_until(partial(has_all, stream, name, rows), f"{name} at {id} are told")
                assert told(stream, name, rows) == KEYS
        cursor = next((each.id for each in reversed(watches[1].sent) if each.id), None)
    for id, web in webs.items():
        with web.live(f"{topic}/watch", after=cursor) as events:
            assert next(events).event == "start"
            webs[3].publish(topic, f"again {id}", "3")
            change = next(events)
            assert (change.event, [each["key"]["data"] for each in change.data["entries"]]) == (
                "changes",
                [f"again {id}"],
            )
            cursor = change.id


def test_a_watch_without_changes_tells_how_far_it_is_at_any_broker(
    cluster: ClusterProcesses, webs: dict[int, Web]
) -> None:
    """A client that goes on there need not read all events again."""
    topic = make(cluster, "quiet", (1,), (2,), (3,))
    with ExitStack() as stack:
        streams = [
            stack.enter_context(Stream(each.http, f"{topic}/watch", prefix="other", snapshot="false"))
            for each in cluster.brokers.values()
        ]
        for stream in streams:
            wait_until(lambda stream=stream: bool(stream.of("start")), "it has begun")  # type: ignore[misc]
        ends = {row["partition"]: row["offset"] + 1 for key in KEYS if (row := webs[1].publish(topic, key, "1"))}
        for stream in streams:

            def far(stream: Stream = stream) -> bool:
                return {each["partition"]: each["next"] for each in stream.of("changes")} == ends

            wait_until(far, "it tells how far it is")
            assert not any(each["entries"] for each in stream.of("changes"))


def test_live_views_at_any_broker_grow_with_their_topic_and_end_with_it(
    cluster: ClusterProcesses, webs: dict[int, Web]
) -> None:
    """This is so at the broker that led the whole topic before, too."""
    topic = make(cluster, "living", (2,), count=1)
    keys = sorted(next(key for key in KEYS if home_of(key.encode(), 3) == index) for index in (1, 2))
    with ExitStack() as stack:

        def stream(id: int, view: str) -> Stream:
            return stack.enter_context(Stream(cluster.brokers[id].http, f"{topic}/{view}"))

        tails = {id: stream(id, "tail") for id in webs}
        watches = {id: stream(id, "watch") for id in webs}
        for id in webs:
            wait_until(lambda id=id: bool(tails[id].of("start")), f"the tail at {id} has begun")  # type: ignore[misc]
            wait_until(lambda id=id: bool(watches[id].of("end_of_snapshot")), f"the snapshot at {id} is there")  # type: ignore[misc]
        grow(cluster, "living", 3, 1)
        for key in keys:
            webs[1].publish(topic, key, "1")
        for id in webs:
            wait_until(lambda id=id: told(tails[id], "events", "events") == keys, f"the tail at {id}")  # type: ignore[misc]
            wait_until(lambda id=id: told(watches[id], "changes", "entries") == keys, f"the watch at {id}")  # type: ignore[misc]
        webs[3].delete(topic, confirm="living")
        for each in (*tails.values(), *watches.values()):
            wait_until(lambda each=each: bool(each.of("problem")), "it ends")  # type: ignore[misc]
            assert [problem["code"] for problem in each.of("problem")] == ["UNKNOWN_TOPIC"]


def test_a_leader_is_killed(cluster: ClusterProcesses, webs: dict[int, Web]) -> None:
    """The other brokers go on with the next leader. Requests for a partition whose only replica is away are refused
    with a retriable error."""
    [made] = cluster.admin.create_topics([NewTopic("killed", PARTITIONS, 3)]).values()
    made.result(30)
    cluster.until_in_sync("killed")
    lone = make(cluster, "lone", (2,))
    for key in KEYS:
        webs[1].publish("/topics/killed", key, "1")
    webs[3].publish(lone, "k", "1")
    cluster.brokers[2].kill()
    try:
        for key in KEYS:  # each request waits for the new leader
            webs[3].publish("/topics/killed", key, "2")
        for id in (1, 3):
            found = webs[id].post("/topics/killed/table/lookup", {"keys": KEYS})["entries"]
            assert {each["value"]["data"] for each in found} == {"2"}
            assert webs[id].get(f"{lone}/table/entry", key="k", status=503)["retriable"]
            assert webs[id].get(lone)["partitions"][0]["error"]
            assert [each["name"] for each in webs[id].get("/topics", filter="lone")["topics"]] == ["lone"]
    finally:
        cluster.brokers[2].start()

    def is_read() -> bool:
        with suppress(AssertionError):  # the request is refused until the broker serves the partition again
            return bool(webs[1].get(f"{lone}/table/entry", key="k")["value"]["data"] == "1")
        return False

    wait_until(is_read, "it is read again")
