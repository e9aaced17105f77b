"""When an ACL is deleted, what waits or is open by it ends: polls, watches, members, scans, live pages, Fetches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    SnapshotGone,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import fetch
from tests.kafka.shares import Member
from tests.process import Stopwatch
from tests.security.guarded import Guarded, rule

ONE = batch.encode([b"k"], [b"v"], timestamps=1_000)
SOON = 1.0  # seconds
WAIT = 60_000  # ms: much longer than SOON


def topic(guarded: Guarded, name: str, *ops: Op) -> str:
    guarded.admin.make(name)
    guarded.admin.produce(name, ONE)
    guarded.allow(*(rule(Resource.TOPIC, name, op) for op in ops))
    return name


@contextmanager
def soon() -> Iterator[None]:
    """Checks that the body of the `with` takes less than SOON."""
    watch = Stopwatch()
    yield
    assert watch.seconds < SOON


@contextmanager
def taken_away(guarded: Guarded) -> Iterator[None]:
    """Deletes USER's ACLs, and checks that the body of the `with` takes less than SOON afterwards."""
    guarded.take_away()
    with soon():
        yield


def test_a_poll_that_waits_and_those_to_come(guarded: Guarded) -> None:
    topic(guarded, "polled", Op.READ)
    with guarded.native() as raw:
        reader = raw.call(m.ConsumerRegistration(["polled"], start="latest"))
        waiting = raw.send(m.Poll(reader.handle, max_wait=WAIT))
        with taken_away(guarded), pytest.raises(TopicAuthorizationFailed):
            raw.receive(waiting)
        with pytest.raises(TopicAuthorizationFailed):
            raw.call(m.Poll(reader.handle))
        with pytest.raises(TopicAuthorizationFailed):
            raw.call(m.Seek(reader.handle, "polled", 0, "earliest"))
        raw.call(m.Unregister(reader.handle))


@pytest.mark.parametrize("missing", [Resource.TOPIC, Resource.GROUP])
def test_a_member(guarded: Guarded, missing: Resource) -> None:
    name = topic(guarded, f"shared-{missing.name}")
    others = [rule(Resource.TOPIC, name, Op.READ), rule(Resource.GROUP, name, Op.READ)]
    guarded.allow(*others, rule(Resource.TOPIC, f"{name}.{name}.dead", Op.ALL))
    error = TopicAuthorizationFailed if missing is Resource.TOPIC else GroupAuthorizationFailed
    with guarded.native() as raw:
        member = raw.call(m.ConsumerRegistration([name], group=name))
        assert raw.call(m.Poll(member.handle, max_wait=WAIT)).leases
        waiting = raw.send(m.Poll(member.handle, max_wait=WAIT))
        with soon():
            guarded.allow(rule(missing, name, Op.READ, deny=True))
            with pytest.raises(error):
                raw.receive(waiting)
        with pytest.raises(error):
            raw.call(m.Ack(member.handle, [(name, 0, 0, 0)]))
        raw.call(m.Unregister(member.handle, unseen=[], polls=1))
    guarded.take_away()
    with guarded.native("127.0.0.1") as raw:  # the member's lease was given back
        member = raw.call(m.ConsumerRegistration([name], group=name))
        assert raw.call(m.Poll(member.handle, max_wait=WAIT)).leases


@pytest.mark.parametrize("missing", [Resource.TOPIC, Resource.GROUP])
def test_a_share_fetch_that_waits(guarded: Guarded, missing: Resource) -> None:
    """The fetch ends, and the events that its member had acquired go to other members."""
    name = topic(guarded, f"shares-{missing.name}")
    guarded.allow(*(rule(kind, name, Op.READ) for kind in (Resource.TOPIC, Resource.GROUP)))
    with guarded.kafka("127.0.0.1") as admin, guarded.kafka() as raw:
        setting = {"name": "share.auto.offset.reset", "value": "earliest", "config_operation": 0}
        resources = [{"resource_type": 32, "resource_name": name, "configs": [setting]}]
        admin.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": resources})
        one = Member(raw, name, "one", name)
        assert one.acquired() == [(0, 0, 1)]
        limits = {"max_wait_ms": WAIT, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100}
        raw.send(ApiKey.SHARE_FETCH, one.body([], **limits))
        with soon():
            guarded.allow(rule(missing, name, Op.READ, deny=True))
            answer = raw.receive()
        if missing is Resource.GROUP:
            assert answer["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
        else:
            (part,) = answer["responses"][0]["partitions"]
            assert (answer["error_code"], part["error_code"]) == (0, Code.TOPIC_AUTHORIZATION_FAILED)
            assert not part["records"]
            one.epoch += 1
            assert one.acknowledge((0, 0, [1])) == Code.TOPIC_AUTHORIZATION_FAILED
    guarded.take_away()


def test_a_watch(guarded: Guarded) -> None:
    topic(guarded, "watched", Op.READ)
    with guarded.native() as raw:
        watch = raw.send(m.Watch("watched"))
        assert raw.receive(watch).event == "snapshot"
        with taken_away(guarded), pytest.raises(TopicAuthorizationFailed):
            list(iter(lambda: raw.receive(watch).more, False))


def test_a_producer_and_a_scan(guarded: Guarded) -> None:
    topic(guarded, "written", Op.READ, Op.WRITE)
    guarded.admin.produce("written", batch.encode([b"k2"], [b"v"], timestamps=1_000))
    with guarded.native() as raw:
        producer = raw.producer("written")
        page = raw.call(m.Scan("written", max_entries=1))
        assert page.cursor is not None
        raw.call(m.Batch(producer.handle, 0, ONE))
        guarded.take_away()
        for request in (
            m.Batch(producer.handle, 0, ONE),
            m.Message(producer.handle, b"v"),
            m.Scan(cursor=page.cursor),
            m.Get("written", b"k"),
        ):
            with pytest.raises(TopicAuthorizationFailed):
                raw.call(request)


def test_a_stager(guarded: Guarded) -> None:
    topic(guarded, "staged", Op.WRITE)
    guarded.allow(rule(Resource.TRANSACTIONAL_ID, "the-job", Op.WRITE))
    with guarded.native() as raw:
        stager = raw.call(m.Stage("staged", "the-job", "1", "1", WAIT))
        raw.call(m.Batch(stager.handle, 0, ONE))
        guarded.allow(rule(Resource.TRANSACTIONAL_ID, "the-job", Op.WRITE, deny=True))
        with pytest.raises(TransactionalIdAuthorizationFailed):
            raw.call(m.Batch(stager.handle, 0, ONE))
    guarded.take_away()


def test_an_attempt_for_another_topic_is_no_way_around(guarded: Guarded) -> None:
    """A request that goes on with a stage names a topic, but the stage already has one. Both are checked."""
    topic(guarded, "others")
    topic(guarded, "own", Op.WRITE)
    guarded.allow(rule(Resource.TRANSACTIONAL_ID, "a-job", Op.WRITE))
    with guarded.native("127.0.0.1") as admin, guarded.native() as raw:
        stage = admin.call(m.Stage("others", "a-job", "1", "1", WAIT)).stage
        with pytest.raises(TopicAuthorizationFailed):
            raw.call(m.Stage("own", "a-job", "1", "1", WAIT, stage=stage))
        with pytest.raises(TopicAuthorizationFailed):
            raw.call(m.CommitStaged("a-job", []))
    guarded.take_away()


def test_a_snapshot(guarded: Guarded) -> None:
    topic(guarded, "frozen", Op.READ)
    with guarded.native() as raw:
        snapshot = raw.call(m.OpenSnapshot("frozen", ttl_ms=WAIT)).snapshot
        assert raw.call(m.ReadSnapshot(snapshot, 0)).rows == 1
        guarded.take_away()
        for request in (m.ReadSnapshot(snapshot, 0), m.KeepSnapshot(snapshot)):
            with pytest.raises(SnapshotGone):
                raw.call(request)
        raw.call(m.CloseSnapshot(snapshot))
    with guarded.native("127.0.0.1") as raw:
        assert raw.call(m.ReadSnapshot(snapshot, 0)).rows == 1


def test_a_held_backup(guarded: Guarded) -> None:
    guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION))
    with guarded.native() as raw:
        held = raw.call(m.HoldBackup())
        guarded.take_away()
        raw.call(m.Unregister(held.handle))
        with pytest.raises(ClusterAuthorizationFailed):
            raw.call(m.HoldBackup())


def test_a_fetch_that_waits(guarded: Guarded) -> None:
    topic(guarded, "fetched", Op.READ)
    with guarded.kafka() as raw:
        raw.send(ApiKey.FETCH, fetch([("fetched", 0, 1)], max_wait_ms=WAIT, min_bytes=1), 12)
        with taken_away(guarded):
            [answer] = raw.receive()["responses"][0]["partitions"]
        assert answer["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED


def test_a_change_for_others_ends_nothing(guarded: Guarded) -> None:
    topic(guarded, "going", Op.READ)
    with guarded.native() as raw, guarded.kafka() as kafka:
        reader = raw.call(m.ConsumerRegistration(["going"], start="latest"))
        waiting = raw.send(m.Poll(reader.handle, max_wait=WAIT))
        kafka.send(ApiKey.FETCH, fetch([("going", 0, 1)], max_wait_ms=WAIT, min_bytes=1), 12)
        guarded.allow(rule(Resource.TOPIC, "going", Op.READ, "10.9.9.9", deny=True))
        guarded.admin.produce("going", ONE)
        assert raw.receive(waiting).parts
        [answer] = kafka.receive()["responses"][0]["partitions"]
        assert answer["error_code"] == 0
    guarded.take_away("10.9.9.9")
    guarded.take_away()


@pytest.mark.parametrize("path", ["tail", "watch"])
def test_a_live_page(guarded: Guarded, path: str) -> None:
    topic(guarded, f"live-{path}", Op.READ)
    with guarded.web() as web, web.live(f"/topics/live-{path}/{path}") as events:
        next(events)
        with taken_away(guarded):
            last = list(events)[-1]
        assert last.event == "problem"
        assert last.data["code"] == "TOPIC_AUTHORIZATION_FAILED"


def test_the_live_changes_of_the_cluster(guarded: Guarded) -> None:
    guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE))
    with guarded.web() as web, web.live("/cluster/changes", after=0) as events:
        taken = threading.Timer(0.2, guarded.take_away)
        taken.start()
        last = list(events)[-1]
        taken.join()  # the page ends before the answer comes, which nobody else may read
        assert last.data["code"] == "CLUSTER_AUTHORIZATION_FAILED"


def test_connections_are_shown_without_the_names_that_may_not_be(guarded: Guarded) -> None:
    topic(guarded, "unseen")
    guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE))
    with guarded.native("127.0.0.1") as raw, guarded.web() as web:
        raw.call(m.ConsumerRegistration(["unseen"], group="unseen-group"))

        def told() -> str:
            return json.dumps(web.get("/connections")["connections"])

        assert "unseen" not in told()
        assert web.get("/connections", filter="unseen")["total"] == 0
        assert web.get("/cluster")["settings"] == {}
        guarded.allow(rule(Resource.TOPIC, "unseen", Op.DESCRIBE), rule(Resource.GROUP, "unseen-group", Op.DESCRIBE))
        guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE_CONFIGS))
        assert "unseen-group" in told()
        assert web.get("/cluster")["settings"] != {}
    guarded.take_away()
