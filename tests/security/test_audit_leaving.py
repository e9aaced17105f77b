"""Every change by every protocol has one line in the audit log, whether its sender waits for the answer or leaves.

When a sender leaves, his request is cancelled wherever it waits. So each test sends its request again and again. The
sender leaves at the request's first step, then at its second, and so on, until the request ends before he leaves. Each
time the change was made and has its line, or neither. The broker is alone, but its store waits like that of a cluster,
which sees its own writes a moment later.
"""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
import trio

from krappy import errors
from krappy.broker.groups.group_writer import GroupWriter
from krappy.broker.groups.share_keepers import ShareKeepers
from krappy.broker.kafka_groups.keeper import LocalKeeper
from krappy.broker.local_store import LocalStore
from krappy.core.security.operations import Op, Resource
from krappy.core.security.scram import ScramCredential
from krappy.server.channel import Channel
from krappy.testing.running import RunningBroker, run_broker
from krappy.waiting import Later
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.handlers.raw import Raw as Native
from tests.handlers.test_registries import SERVED
from tests.kafka.raw import Raw
from tests.process import wait_until
from tests.security.guarded import filtered, rule

CREDENTIAL = ScramCredential.of("SCRAM-SHA-512", "a-secret", b"s" * 16).text()
CHANGES = {Op.CREATE, Op.ALTER, Op.DELETE, Op.ALTER_CONFIGS}
NO_CHANGE = {  # operations that need such a right, but change nothing that is told; or other tests test them
    **dict.fromkeys(("UPDATE_FEATURES", "ALTER_REPLICA_LOG_DIRS"), "there is one level, and one folder"),
    **dict.fromkeys(("ELECT_LEADERS", "POST /api/v1/cluster/elections"), "a broker alone has no other leaders"),
    **dict.fromkeys(("KeepSnapshot", "CloseSnapshot"), "a reader's own"),
    "ConsumerRegistration": "dead letters, later",
}


class Leaving:
    """What the broker does with requests whose sender leaves. `lines`: the audit lines of changes since the last
    look."""

    def __init__(self) -> None:
        self.step = 0  # the step of the request at which its sender leaves; 0: he stays
        self.over: queue.SimpleQueue[bool] = queue.SimpleQueue()  # for each request that waited: had its sender left?
        self.lines: list[dict[str, Any]] = []
        self.engine: Any = None
        self.broker: RunningBroker

    def report(self, event: str, **facts: Any) -> None:
        if event == "changed":
            self.lines.append(facts)

    def state(self) -> Any:
        """All state that the changes of this module may change."""
        engine = self.engine
        return (
            {name: (topic.id, topic.count, dict(topic.given)) for name, topic in engine.topics.items()},
            dict(engine.image.acls),
            {kind: dict(held) for kind, held in engine.image.configs.items()},
            {topic.name: [part.start_offset for part in topic.all_led()] for topic in engine.topics.values()},
            {each["group"]: engine.groups.positions(each["group"]) for each in engine.groups.each_group()},
            engine.staging.list(),
        )


class Step(trio.abc.Instrument):
    def __init__(self, step: int, leave: Callable[[], None]) -> None:
        self._task = trio.lowlevel.current_task()
        self._left, self._leave = step, leave

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._leave()


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leaving]:
    found = Leaving()
    until, multi = Channel._until_it_leaves, LocalStore.multi

    @contextmanager
    def until_it_leaves(channel: Channel) -> Iterator[None]:
        found.engine = channel._server.broker
        instrument = Step(found.step, channel._leave)
        with until(channel):
            trio.lowlevel.add_instrument(instrument)
            try:
                yield
            finally:
                trio.lowlevel.remove_instrument(instrument)
                found.over.put(channel._waits.ended)

    async def seen_later(store: LocalStore, operations: Any) -> Any:
        image = await multi(store, operations)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        return image

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Channel, "_until_it_leaves", until_it_leaves)
        patched.setattr(LocalStore, "multi", seen_later)
        with run_broker(
            tmp_path_factory.mktemp("leaving"),
            durability="os",
            authorizer="acl",
            super_users="User:ANONYMOUS",
            listen_http="127.0.0.1:0",
            auto_create_topics=True,
            report=found.report,
        ) as found.broker:
            topic(found.broker, "first")  # this request sets `engine`
            yield found


# --- the changes


class Case(NamedTuple):
    """`ask(name)`: the body of a request that changes the thing with this name. `first`: makes that thing."""

    ask: Callable[[str], Any]
    first: Callable[[RunningBroker, str], None] = lambda broker, name: None


def topic(broker: RunningBroker, name: str) -> None:
    with broker.connect() as client:
        client.create_topic(name)


def acl(broker: RunningBroker, name: str) -> None:
    with Raw(broker.kafka_address) as raw:
        raw.ask(ApiKey.CREATE_ACLS, a_rule(name))


def group_topic(broker: RunningBroker, name: str) -> None:
    with broker.connect() as client:
        client.create_topic(name)
        with client.producer(name) as producer:
            producer.send("x").result()


def group(broker: RunningBroker, name: str) -> None:
    group_topic(broker, name)
    with Native(broker.address) as raw:
        raw.call(m.Commit(name, [(name, 0, 0)]))


def kafka_group(broker: RunningBroker, name: str) -> None:
    group_topic(broker, name)
    with Raw(broker.kafka_address) as raw:
        raw.ask(ApiKey.OFFSET_COMMIT, committed(name), 8)


def shared_group(broker: RunningBroker, name: str) -> None:
    group_topic(broker, name)
    with Raw(broker.kafka_address) as raw:
        raw.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, moved(name))


def staged_job(broker: RunningBroker, name: str) -> None:
    with Native(broker.address) as raw:
        stage = raw.call(m.Stage(name, name, "task", "attempt")).stage
        raw.call(m.SealStaged(name, stage, 0))


def a_rule(name: str) -> dict[str, Any]:
    return {"creations": [rule(Resource.TOPIC, name, Op.READ, principal="User:eve")]}


def a_topic(name: str) -> dict[str, Any]:
    made = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [made], "timeout_ms": 9000, "validate_only": False}


def committed(name: str) -> dict[str, Any]:
    part = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    return {"group_id": name, "topics": [{"name": name, "partitions": [part]}]}


def moved(name: str) -> dict[str, Any]:
    move = [{"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    return {"group_id": name, "topics": move}


def settings(kind: int, name: str, setting: str, value: str, **more: Any) -> dict[str, Any]:
    config = {"name": setting, "value": value, **more}
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": [config]}], "validate_only": False}


def quota(name: str) -> dict[str, Any]:
    entity = [{"entity_type": "user", "entity_name": name}]
    ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
    return {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}


def user(name: str) -> dict[str, Any]:
    secret = {"mechanism": 2, "iterations": 8192, "salt": b"s" * 16, "salted_password": b"p" * 64}
    return {"deletions": [], "upsertions": [{"name": name, **secret}]}


def aborted(name: str) -> dict[str, Any]:
    """As kafka-transactions.sh asks for it."""
    marker = {"producer_id": 1 << 40, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    return {"markers": [{**marker, "topics": [{"name": name, "partition_indexes": [0]}]}]}


def reassigned(name: str) -> dict[str, Any]:
    parts = [{"partition_index": 0, "replicas": [0]}]
    return {"topics": [{"name": name, "partitions": parts}], "timeout_ms": 9000}


def acl_row(name: str) -> tuple[str, str, str, str, str, str, str]:
    return "topic", "literal", name, "User:eve", "*", "read", "allow"


KAFKA: Mapping[str, Case] = {
    "METADATA": Case(lambda name: {"topics": [{"name": name}], "allow_auto_topic_creation": True}),
    "CREATE_TOPICS": Case(a_topic),
    "CREATE_PARTITIONS": Case(
        lambda name: {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout_ms": 9000}, topic
    ),
    "DELETE_TOPICS": Case(lambda name: {"topics": [{"name": name, "topic_id": bytes(16)}], "timeout_ms": 9000}, topic),
    "ALTER_CONFIGS": Case(lambda name: settings(2, name, "retention.ms", "1000"), topic),
    "INCREMENTAL_ALTER_CONFIGS": Case(
        lambda name: settings(2, name, "retention.ms", "1000", config_operation=0), topic
    ),
    "INCREMENTAL_ALTER_CONFIGS group": Case(
        lambda name: settings(32, name, "consumer.session.timeout.ms", "50000", config_operation=0)
    ),
    "INCREMENTAL_ALTER_CONFIGS broker": Case(
        lambda name: settings(4, "", "log.retention.ms", str(10**9 + len(name)), config_operation=0)
    ),
    "CREATE_ACLS": Case(a_rule),
    "DELETE_ACLS": Case(lambda name: {"filters": [filtered(resource_name_filter=name)]}, acl),
    "ALTER_USER_SCRAM_CREDENTIALS": Case(user),
    "ALTER_CLIENT_QUOTAS": Case(quota),
    "ALTER_PARTITION_REASSIGNMENTS": Case(reassigned, topic),
    "OFFSET_COMMIT": Case(committed, topic),
    "OFFSET_DELETE": Case(
        lambda name: {"group_id": name, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]},
        kafka_group,
    ),
    "DELETE_RECORDS": Case(
        lambda name: {
            "topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}],
            "timeout_ms": 9000,
        },
        group_topic,
    ),
    "DELETE_GROUPS": Case(lambda name: {"groups_names": [name]}, kafka_group),
    "DELETE_GROUPS shared": Case(lambda name: {"groups_names": [name]}, shared_group),
    "DELETE_GROUPS native": Case(lambda name: {"groups_names": [name]}, group),
    "ALTER_SHARE_GROUP_OFFSETS": Case(moved, topic),
    "DELETE_SHARE_GROUP_OFFSETS": Case(lambda name: {"group_id": name, "topics": [{"topic_name": name}]}, shared_group),
    "WRITE_TXN_MARKERS": Case(aborted, topic),
}
NATIVE: Mapping[str, Case] = {
    "CreateTopic": Case(lambda name: m.CreateTopic(name)),
    "ProducerRegistration": Case(lambda name: m.ProducerRegistration(name)),
    "AlterTopic": Case(lambda name: m.AlterTopic(name, {"retention.ms": 1000}), topic),
    "DeleteTopic": Case(lambda name: m.DeleteTopic(name), topic),
    "DeleteRecords": Case(lambda name: m.DeleteRecords(name, [(0, 1)]), group_topic),
    "Stage": Case(lambda name: m.Stage(name, name, "task", "attempt")),
    "AbortStaged": Case(lambda name: m.AbortStaged(name), staged_job),
    "CreateAcls": Case(lambda name: m.CreateAcls([acl_row(name)])),
    "DeleteAcls": Case(lambda name: m.DeleteAcls(name=name), acl),
    "AlterUser": Case(lambda name: m.AlterUser(name, {"SCRAM-SHA-512": CREDENTIAL})),
    "AlterQuotas": Case(lambda name: m.AlterQuotas({"producer_byte_rate": 1e9}, user=name)),
    "Commit": Case(lambda name: m.Commit(name, [(name, 0, 0)]), topic),
    "ResetGroup": Case(lambda name: m.ResetGroup(name, start="latest"), group),
    "ResetGroup of Kafka's": Case(lambda name: m.ResetGroup(name, start="latest"), kafka_group),
    "ResetGroup of a share group": Case(lambda name: m.ResetGroup(name, start="latest"), shared_group),
    "DeleteGroup": Case(lambda name: m.DeleteGroup(name), group),
}
HTTP: Mapping[str, Case] = {
    "POST /api/v1/topics": Case(lambda name: {"name": name, "partitions": 1}),
    "PATCH /api/v1/topics/{topic}": Case(lambda name: {"config": {"retention.ms": "1000"}}, topic),
    "DELETE /api/v1/topics/{topic}": Case(lambda name: None, topic),
    "POST /api/v1/topics/{topic}/delete-records": Case(lambda name: {"before": {"0": 1}, "confirm": name}, group_topic),
    "POST /api/v1/groups/{group}/reset": Case(lambda name: {"to": "latest", "dry_run": False}, group),
    "DELETE /api/v1/groups/{group}": Case(lambda name: None, group),
    "POST /api/v1/cluster/reassignments": Case(
        lambda name: {"moves": [{"topic": name, "partition": 0, "replicas": [0]}]}, topic
    ),
}
# Their changes are not seen in `Leaving.state`.
UNSEEN = {
    "ALTER_PARTITION_REASSIGNMENTS",
    "ALTER_SHARE_GROUP_OFFSETS",
    "DELETE_SHARE_GROUP_OFFSETS",
    "WRITE_TXN_MARKERS",
}
UNSEEN |= {"DELETE_GROUPS shared"}


def test_every_operation_that_changes_something_is_here() -> None:
    changing = {name for name, served in SERVED.items() if {need.op for need in served.needs} & CHANGES}
    known = {name.partition(" ")[0] for name in (*KAFKA, *NATIVE)} | HTTP.keys()
    assert changing - known - NO_CHANGE.keys() - {"POST /api/v1/logout"} == set()  # a logout ends sessions
    assert NO_CHANGE.keys() <= SERVED.keys()


def send(broker: RunningBroker, key: str, body: Any) -> Any:
    """Sends a request; returns its connection, with the request's id as `id`."""
    if key in KAFKA:
        raw: Any = Raw(broker.kafka_address)
        api = ApiKey[key.partition(" ")[0]]
        raw.id = raw.send(api, body, 8 if api is ApiKey.OFFSET_COMMIT else None)
    else:
        raw = Native(broker.address)
        raw.id = raw.send(body)
    return raw


def receive(raw: Any) -> Any:
    return raw.receive() if isinstance(raw, Raw) else raw.receive(raw.id)


@pytest.mark.parametrize("key", [*KAFKA, *NATIVE])
def test_a_change_is_made_and_told_or_neither(leaving: Leaving, key: str) -> None:
    case = {**KAFKA, **NATIVE}[key]
    broker = leaving.broker
    waits = True  # whether the sender can leave while the request is handled
    for step in range(200):
        name = f"{key.replace(' ', '-').replace(chr(39), '')}-{step:03}"
        case.first(broker, name)
        if "broker" in key:
            name += "x" * step  # a setting of the broker gets another value each time
        while not leaving.over.empty():
            leaving.over.get()
        leaving.lines.clear()
        before = leaving.state()
        leaving.step = step
        with send(broker, key, case.ask(name)) as raw:
            if step == 0:
                answer = receive(raw)
                waits = not leaving.over.empty()
                assert len(leaving.lines) == 1, (answer, leaving.lines)
                assert key in UNSEEN or leaving.state() != before
                if not waits:
                    break
                continue
            left = leaving.over.get(timeout=30)
            leaving.step = 0
        changed = leaving.state() != before
        assert len(leaving.lines) <= 1, leaving.lines
        if key not in UNSEEN:
            assert len(leaving.lines) == changed, f"left at step {step}: {'made' if changed else 'not made'}"
        if not left:
            assert len(leaving.lines) == 1
            return
    assert not waits


@pytest.mark.parametrize("key", HTTP)
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "leaves"])
def test_the_same_over_http(leaving: Leaving, key: str, waits: bool) -> None:
    case, broker, leaving.step = HTTP[key], leaving.broker, 0
    name = f"http-{abs(hash(key))}-{waits}"
    case.first(broker, name)
    leaving.lines.clear()
    method, _, path = key.partition(" ")
    path = path.format(topic=name, group=name) + (f"?confirm={name}" if method == "DELETE" else "")
    headers = {"Krappy-Request": "1"}
    body = case.ask(name)
    with httpx.Client(base_url=f"http://{broker.http_address}", trust_env=False, timeout=60, headers=headers) as client:
        if waits:
            answer = client.request(method, path, json=body)
            assert answer.is_success, answer.text
        else:
            request = client.build_request(method, path, json=body)
            sent = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            host, _, port = broker.http_address.rpartition(":")
            sock = socket.create_connection((host, int(port)))
            sock.sendall(f"{method} {path} HTTP/1.1\r\n{sent}\r\n".encode() + request.content)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            sock.shutdown(socket.SHUT_WR)
            sock.close()
        wait_until(lambda: bool(leaving.lines), "it is told")
        client.get("/api/v1/topics")
    assert len(leaving.lines) == 1, leaving.lines


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_change_that_may_have_been_made_is_told(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """The store is lost after the write was sent, so nobody knows whether it was done."""
    multi = LocalStore.multi

    async def lost(store: LocalStore, operations: Any) -> Any:
        if made:
            await multi(store, operations)
        raise errors.ConnectionLost("the session with ZooKeeper has ended", sent=True)

    leaving.step = 0
    leaving.lines.clear()
    monkeypatch.setattr(LocalStore, "multi", lost)
    with Raw(leaving.broker.kafka_address) as raw:
        [answer] = raw.ask(ApiKey.CREATE_ACLS, a_rule(f"unsure-{made}"))["results"]
        assert answer["error_code"] != 0
    [line] = leaving.lines
    assert (line["kind"], line["after"]["name"]) == ("acl", f"unsure-{made}")
    assert "session" in line["error"]


def test_a_reset_of_which_nobody_knows_whether_it_lasts_is_told(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker becomes the group's coordinator before the reset is replicated."""
    group(leaving.broker, "unsure")

    def deposed(*_: Any, **__: Any) -> Later[None]:
        later: Later[None] = Later()
        later.reject(errors.NotCoordinator("another broker coordinates the group"))
        return later

    leaving.step = 0
    leaving.lines.clear()
    monkeypatch.setattr(GroupWriter, "durable", deposed)
    with Native(leaving.broker.address) as raw, pytest.raises(errors.NotCoordinator):
        raw.call(m.ResetGroup("unsure", start="latest"))
    [line] = leaving.lines
    assert (line["kind"], line["name"], line["after"]) == ("positions", "unsure", {"unsure-0": 1})


@pytest.mark.parametrize("kind", ["classic", "share"])
def test_a_reset_of_a_group_of_kafkas_of_which_nobody_knows_whether_it_lasts_is_told(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its coordinator is deposed before the reset is replicated; or the broker that keeps its positions is lost."""
    name, lost = f"unsure-{kind}", errors.ConnectionLost("the link was lost")
    (kafka_group if kind == "classic" else shared_group)(leaving.broker, name)

    def deposed(*_: Any) -> Later[None]:
        later: Later[None] = Later()
        later.reject(errors.NotCoordinator("another broker coordinates the group"))
        return later

    async def unreachable(*_: Any) -> None:
        raise lost

    leaving.step = 0
    leaving.lines.clear()
    monkeypatch.setattr(LocalKeeper, "written", deposed)
    monkeypatch.setattr(ShareKeepers, "move", unreachable)
    with Native(leaving.broker.address) as raw, pytest.raises((errors.NotCoordinator, errors.ConnectionLost)):
        raw.call(m.ResetGroup(name, start="latest"))
    [line] = leaving.lines
    assert (line["kind"], line["name"], line["after"]) == ("positions", name, {f"{name}-0": 1})
    assert line.get("error") == (None if kind == "classic" else str(lost))


def test_what_was_refused_is_not_told(leaving: Leaving) -> None:
    leaving.step = 0
    topic(leaving.broker, "there")
    leaving.lines.clear()
    with Raw(leaving.broker.kafka_address) as raw:
        assert raw.ask(ApiKey.CREATE_TOPICS, a_topic("there"))["topics"][0]["error_code"] != 0
        assert raw.ask(ApiKey.CREATE_TOPICS, a_topic("not a name"))["topics"][0]["error_code"] != 0
        raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, settings(2, "there", "retention.ms", "x", config_operation=0))
        raw.ask(ApiKey.METADATA, {"topics": [{"name": "there"}], "allow_auto_topic_creation": True})
    assert leaving.lines == []


@pytest.mark.parametrize(
    ("names", "error", "told"),
    [
        (["one"], errors.RequestTimeout("no answer"), ["one"]),
        (["one"], errors.ConnectionLost("the link was lost"), ["one"]),
        (["one"], errors.OffsetOutOfRange("beyond the end"), []),
        (["one", "two"], errors.OffsetOutOfRange("beyond the end"), ["one", "two"]),  # the error is of one of them
    ],
    ids=["no answer", "lost", "refused", "refused in part"],
)
def test_a_change_at_another_broker_that_may_have_been_made_is_told(
    leaving: Leaving, names: list[str], error: errors.KrappyError, told: list[str]
) -> None:
    async def main() -> None:
        with pytest.raises(type(error)), leaving.engine.audit.change("records", names, elsewhere=True):
            raise error

    leaving.lines.clear()
    trio.run(main)
    assert [(line["name"], line["error"]) for line in leaving.lines] == [(name, str(error)) for name in told]
