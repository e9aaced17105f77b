"""A read that waits for an event or for a quota ends when its client may not read any more."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from krappy import arrow_layout
from krappy.broker.authorizer import Authorizer
from krappy.broker.broker import LocalBroker
from krappy.broker.tables.snapshots import LeasedSnapshot
from krappy.console import events
from krappy.core.security.acl import Acl, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.core.security.principal import Principal
from krappy.errors import AuthorizationFailed, TopicAuthorizationFailed
from krappy.handlers.kafka import share_fetch
from krappy.handlers.kafka.fetch import fetch as kafka_fetch
from krappy.handlers.native import registry
from krappy.records import batch
from krappy.server.session import Session
from krappy.testing.sessions import kafka_session, native_session
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code, encode_request, read_request
from tests.broker.engine import running
from tests.kafka.raw import fetch as fetch_body
from tests.security.guarded import Guarded, rule

WRITE = Acl(Resource.TOPIC, Pattern.LITERAL, "t", "User:eve", "*", Op.WRITE, Permission.ALLOW)
MEMBER = [  # of the group g, whose dead letters go to t.g.dead
    Acl(Resource.GROUP, Pattern.LITERAL, "g", "User:eve", "*", Op.READ, Permission.ALLOW),
    Acl(Resource.TOPIC, Pattern.PREFIXED, "t.g", "User:eve", "*", Op.ALL, Permission.ALLOW),
]
ALLOW = Acl(Resource.TOPIC, Pattern.LITERAL, "t", "User:eve", "*", Op.READ, Permission.ALLOW)
BODY_AT = 15  # where the body begins in a request without a client id
COLUMN = arrow_layout.binary([b"k"])


def record(value: bytes) -> bytes:
    return batch.encode([b"k"], [value], timestamps=1_000)


@pytest.mark.parametrize(
    "ask",
    [
        lambda topic: m.Get(topic, b"k", min_offset=1),
        lambda topic: m.MultiGet(topic, [b"k"], min_offsets=[(0, 1)]),
        lambda topic: m.Scan(topic, min_offsets=[(0, 1)]),
    ],
    ids=["Get", "MultiGet", "Scan"],
)
def test_what_is_written_later_is_not_told(
    guarded: Guarded, ask: Callable[[str], Any], request: pytest.FixtureRequest
) -> None:
    topic = f"later-{request.node.callspec.id}"
    guarded.admin.make(topic)
    guarded.admin.produce(topic, record(b"old"))
    guarded.allow(rule(Resource.TOPIC, topic, Op.READ))
    with guarded.native() as eve:
        asked = eve.send(ask(topic))
        eve.call(m.Ping())  # the read waits now
        guarded.take_away()
        guarded.admin.produce(topic, record(b"new"))
        with pytest.raises(TopicAuthorizationFailed):
            eve.receive(asked)


async def asked(session: Session, request: Any) -> Any:
    handler, _, _ = registry().served[type(request)]
    answer: Any = handler(session, request)
    return answer if isinstance(answer, m.Answer) else await answer


@pytest.mark.parametrize(
    "ask",
    [
        lambda handle, _: m.GetColumns("t", COLUMN.offsets, COLUMN.data),
        lambda handle, _: m.History("t", b"k"),
        lambda handle, _: m.ReadLog("t", 0, 0, 1),
        lambda handle, _: m.Poll(handle),
        lambda handle, snapshot: m.ReadSnapshot(snapshot, 0),
    ],
    ids=["GetColumns", "History", "ReadLog", "Poll", "ReadSnapshot"],
)
@trio_test
async def test_who_waits_for_his_quota_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[int, str], Any]
) -> None:
    waits, may_read = trio.Event(), trio.Event()

    @asynccontextmanager
    async def reading(limit: int) -> AsyncIterator[None]:
        waits.set()
        await may_read.wait()
        yield

    async def refused(request: Any) -> None:
        with pytest.raises(TopicAuthorizationFailed):
            await asked(session, request)

    async with running(tmp_path, authorizer="acl", super_users="User:ada") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await topic.led(0).publish(record(b"old")).wait()
        await broker.authorizer.add([ALLOW])
        session = native_session(broker)
        session.principal = Principal(name="eve")
        handle = (await asked(session, m.ConsumerRegistration(["t"]))).handle
        snapshot = (await asked(session, m.OpenSnapshot("t"))).snapshot
        monkeypatch.setattr(session, "reading", reading)
        monkeypatch.setattr(type(session), "ready", False)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused, ask(handle, snapshot))
                await waits.wait()
                await broker.authorizer.remove([ALLOW])
                await topic.led(0).publish(record(b"new")).wait()
                may_read.set()


@trio_test
async def test_no_snapshot_is_left_of_who_waits_for_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that nobody knows of would count for its user as long as it lives."""
    waits = trio.Event()

    async def wait_for_views(*_: object) -> None:
        waits.set()
        await trio.sleep_forever()

    async def refused(request: Any) -> None:
        with pytest.raises(TopicAuthorizationFailed):
            await asked(session, request)

    async with running(tmp_path, authorizer="acl", super_users="User:ada") as broker:
        await broker.create_topic("t", 1, {})
        await broker.authorizer.add([ALLOW])
        session = native_session(broker)
        session.principal = Principal(name="eve")
        monkeypatch.setattr(broker, "wait_for_views", wait_for_views)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused, m.OpenSnapshot("t", ttl_ms=86_400_000))
                await waits.wait()
                await broker.authorizer.remove([ALLOW])
        assert len(broker.snapshots) == 0


@pytest.mark.parametrize("wait", [0, 60_000])
@trio_test
async def test_a_fetch_that_waits_for_its_turn_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: int
) -> None:
    """The fetch waits while other answers take all memory, or while its client does not read earlier answers."""
    waits, may_answer = trio.Event(), trio.Event()

    @asynccontextmanager
    async def answering(limit: int) -> AsyncIterator[int]:
        waits.set()
        await may_answer.wait()
        yield limit

    async with running(tmp_path, authorizer="acl", super_users="User:ada") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        await topic.led(0).publish(record(b"old")).wait()
        await broker.authorizer.add([ALLOW])
        session = kafka_session(broker)
        session.principal = Principal(name="eve")
        monkeypatch.setattr(session, "answering", answering)
        monkeypatch.setattr(type(session), "ready", False)
        sent = encode_request(ApiKey.FETCH, 12, 0, None, fetch_body([("t", 0, 1)], max_wait_ms=wait))
        request, _ = read_request(ApiKey.FETCH, 12, memoryview(sent)[BODY_AT:])
        answers: list[Any] = []

        async def ask() -> None:
            found: Any = kafka_fetch(session, request, 12)
            answers.append(found if isinstance(found, dict) else await found)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                if wait:
                    await wait_all_tasks_blocked()
                    await topic.led(0).publish(record(b"between")).wait()
                await waits.wait()
                await broker.authorizer.remove([ALLOW])
                await topic.led(0).publish(record(b"new")).wait()
                may_answer.set()
        [part] = answers[0]["responses"][0]["partitions"]
        assert (part["error_code"], part["records"]) == (Code.TOPIC_AUTHORIZATION_FAILED, b"")


def test_a_page_that_waited_for_others_is_not_told(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of topics with many partitions are made one after another, so a page may wait."""
    guarded.admin.make("paged")
    guarded.admin.produce("paged", record(b"old"))
    guarded.allow(rule(Resource.TOPIC, "paged", Op.READ))
    page, waits = events._list_page, threading.Event()

    async def page_later(call: Any, *given: Any) -> Any:
        waits.set()
        while call.access.may(Resource.TOPIC, "paged", Op.READ):
            await trio.sleep(0.01)
        return await page(call, *given)

    monkeypatch.setattr(events, "_list_page", page_later)
    with guarded.web() as web, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(web.client.get, "/api/v1/topics/paged/events")
        assert waits.wait(30)
        guarded.take_away()
        answer = asked.result(30)
    assert answer.status_code == 403, answer.text
    assert answer.json()["code"] == "TOPIC_AUTHORIZATION_FAILED"


class Held:
    """What eve has open at a broker, behind so much else that a review of the ACLs does not come to it."""

    def __init__(self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.session = native_session(broker)
        self.session.principal = Principal(name="eve")

        async def review(_: Authorizer) -> None:
            broker.authorizer.seen_version()
            for signal in broker.authorizer.signals:
                signal.fire()

        monkeypatch.setattr(Authorizer, "_review", review)

    async def refused(self, request: Any) -> None:
        with pytest.raises(AuthorizationFailed):
            await asked(self.session, request)


@asynccontextmanager
async def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    async with running(tmp_path, authorizer="acl", super_users="User:ada") as broker:
        topic, _ = await broker.create_topic("t", 1, {})
        for value in (b"1", b"2"):
            await topic.led(0).publish(batch.encode([value], [value], timestamps=1_000)).wait()
        await broker.authorizer.add([ALLOW, WRITE, *MEMBER])
        made = Held(broker, monkeypatch)
        with trio.fail_after(30):
            yield made


@trio_test
async def test_what_is_open_gives_nothing_although_it_was_not_reviewed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who had 100,000 readers could poll the last of them for 12 seconds."""
    async with held(tmp_path, monkeypatch) as eve:
        reader = (await asked(eve.session, m.ConsumerRegistration(["t"]))).handle
        member = (await asked(eve.session, m.ConsumerRegistration(["t"], "g"))).handle
        cursor = (await asked(eve.session, m.Scan("t", max_entries=1))).cursor
        writer = (await asked(eve.session, m.ProducerRegistration("t"))).handle
        assert cursor is not None
        await eve.broker.authorizer.remove([ALLOW, WRITE])
        for handle in (reader, member):
            await eve.refused(m.Poll(handle))
        await eve.refused(m.Scan(cursor=cursor))
        with pytest.raises(TopicAuthorizationFailed):
            registry().served[m.Message][0](eve.session, m.Message(writer, b"3"))
        assert eve.broker.groups.describe("g")["members"] == []


@pytest.mark.parametrize("group", [None, "g"])
@trio_test
async def test_a_poll_that_waits_gives_nothing_although_it_was_not_reviewed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    async with held(tmp_path, monkeypatch) as eve:
        handle = (await asked(eve.session, m.ConsumerRegistration(["t"], group, start="latest"))).handle
        async with trio.open_nursery() as nursery:
            nursery.start_soon(eve.refused, m.Poll(handle, max_wait=60_000))
            await wait_all_tasks_blocked()
            await eve.broker.authorizer.remove([ALLOW])
            await eve.broker.topics["t"].led(0).publish(record(b"new")).wait()


@trio_test
async def test_a_wait_gives_nothing_although_it_was_not_reviewed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(tmp_path, monkeypatch) as eve, trio.open_nursery() as nursery:
        nursery.start_soon(eve.refused, m.Get("t", b"k", min_offset=2))
        await wait_all_tasks_blocked()
        await eve.broker.authorizer.remove([ALLOW])
        await eve.broker.topics["t"].led(0).publish(record(b"new")).wait()


@pytest.mark.parametrize("path", ["tail", "watch"])
def test_a_live_page_shows_nothing_although_it_was_not_reviewed_yet(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def review(_: Authorizer) -> None:
        await trio.lowlevel.checkpoint()

    topic = f"live-{path}"
    guarded.admin.make(topic)
    guarded.admin.produce(topic, record(b"old"))
    guarded.allow(rule(Resource.TOPIC, topic, Op.READ))
    with guarded.web() as web, web.live(f"/topics/{topic}/{path}") as events:
        while next(events).event not in ("start", "end_of_snapshot"):
            pass
        monkeypatch.setattr(Authorizer, "_review", review)
        guarded.take_away()
        guarded.admin.produce(topic, record(b"new"))
        told = next(events)
        assert told.event == "problem"
        assert told.data["code"] == "TOPIC_AUTHORIZATION_FAILED"


@trio_test
async def test_no_snapshot_is_left_of_who_lost_his_right_while_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(tmp_path, monkeypatch) as eve:
        ranges = LeasedSnapshot.ranges

        async def revoked_meanwhile(snapshot: LeasedSnapshot, parts: int) -> Any:
            await eve.broker.authorizer.remove([ALLOW])
            return await ranges(snapshot, parts)

        monkeypatch.setattr(LeasedSnapshot, "ranges", revoked_meanwhile)
        await eve.refused(m.OpenSnapshot("t", ttl_ms=86_400_000))
        assert len(eve.broker.snapshots) == 0


@trio_test
async def test_no_snapshot_is_left_of_who_lost_his_right_while_he_waited_for_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(tmp_path, monkeypatch) as eve:
        wait_for_views = eve.broker.wait_for_views

        async def revoked_meanwhile(*given: Any) -> Any:
            await eve.broker.authorizer.remove([ALLOW])
            return await wait_for_views(*given)

        monkeypatch.setattr(eve.broker, "wait_for_views", revoked_meanwhile)
        await eve.refused(m.OpenSnapshot("t", ttl_ms=86_400_000))
        assert len(eve.broker.snapshots) == 0


@trio_test
async def test_a_read_from_the_disk_tells_nothing_of_what_was_revoked_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(tmp_path, monkeypatch) as eve:
        handle = (await asked(eve.session, m.ConsumerRegistration(["t"]))).handle
        partition = eve.broker.topics["t"].led(0)
        read = partition.read

        def not_in_memory(*_: Any, **__: Any) -> Any:
            raise BlockingIOError

        async def revoked_meanwhile(*given: Any, **named: Any) -> Any:
            await eve.broker.authorizer.remove([ALLOW])
            return await read(*given, **named)

        monkeypatch.setattr(type(partition), "read_now", not_in_memory)
        monkeypatch.setattr(type(partition), "read", staticmethod(revoked_meanwhile))
        await eve.refused(m.Poll(handle))


@trio_test
async def test_a_watch_that_waits_for_its_quota_tells_nothing_of_what_was_revoked_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Throttled:
        """`stood`: whether each part may still be told once the quota has room for it."""

        def __init__(self) -> None:
            self.stood: list[bool] = []

        async def send(self, part: Any, stands: Callable[[], bool]) -> None:
            if self.stood:
                await eve.broker.authorizer.remove([ALLOW])
            self.stood.append(stands())

    async with held(tmp_path, monkeypatch) as eve:
        handler, _, _ = registry().served[m.Watch]
        stream = Throttled()
        with pytest.raises(AuthorizationFailed):
            await handler(eve.session, m.Watch("t"), stream)  # type: ignore[misc]
        assert stream.stood == [True, False]


@trio_test
async def test_a_share_session_ends_when_its_group_may_not_be_read_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep what its consumer forgets by the request that is refused, and records would go there."""
    monkeypatch.setattr(share_fetch, "MANY", 1)
    async with running(tmp_path, authorizer="acl", super_users="User:ada") as broker:
        topic, _ = await broker.create_topic("t", 2, {})
        await broker.authorizer.add([ALLOW, *MEMBER])
        await broker.groups.states.begin("g")
        session = kafka_session(broker)
        session.principal = Principal(name="eve")

        async def fetched(epoch: int, parts: Sequence[int] = (), forgotten: Sequence[int] = ()) -> int:
            named = [{"partition_index": part, "acknowledgement_batches": []} for part in parts]
            request = {
                **{"group_id": "g", "member_id": "m", "share_session_epoch": epoch, "is_renew_ack": False},
                "topics": [{"topic_id": topic.id, "partitions": named}],
                "forgotten_topics_data": [{"topic_id": topic.id, "partitions": list(forgotten)}],
                **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100},
            }
            code: int = (await share_fetch.share_fetch(session, request, 2))["error_code"]
            return code

        async def revoked_meanwhile() -> None:
            await broker.authorizer.remove(MEMBER)

        assert await fetched(0, parts=[0, 1]) == Code.NONE
        await broker.authorizer.add([WRITE])  # so that the rights are looked at again
        with monkeypatch.context() as patched:
            patched.setattr(session, "pause", revoked_meanwhile)
            assert await fetched(1, forgotten=[1]) == Code.GROUP_AUTHORIZATION_FAILED
        await broker.authorizer.add(MEMBER)
        assert await fetched(2) == Code.SHARE_SESSION_NOT_FOUND
