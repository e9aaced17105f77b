"""Internal topics belong to the broker. Whoever may do everything to topics can read them, but no protocol changes
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy import errors
from krappy.broker.audit_topic import AuditTopic
from krappy.broker.topics.internal_topics import INTERNAL, JOBS, OFFSETS
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.records import batch
from krappy.settings.server import load
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw as Kafka
from tests.process import wait_until
from tests.security.guarded import ADMIN, USER, Guarded, guarded_broker, rule

AUDIT = "__krappy_audit"
ALL = (*INTERNAL, AUDIT)
NATIVE: dict[str, Callable[[Native, str], Any]] = {
    "create": lambda n, name: n.call(m.CreateTopic(name, config={"max.message.bytes": 10})),
    "alter": lambda n, name: n.call(m.AlterTopic(name, {"max.message.bytes": 10})),
    "add partitions": lambda n, name: n.call(m.AlterTopic(name, None, 60)),
    "delete": lambda n, name: n.call(m.DeleteTopic(name)),
    "empty": lambda n, name: n.call(m.DeleteRecords(name, [(0, 1)])),
    "produce": lambda n, name: n.call(m.ProducerRegistration(name)),
    "stage": lambda n, name: n.call(m.Stage(topic=name, job="j", task="0", attempt="a", ttl_ms=60_000)),
    "dead letters": lambda n, name: n.call(m.ConsumerRegistration(["t"], group="g", dead_letter=name)),
}
WEB: dict[str, tuple[str, str, Any]] = {
    "create": ("POST", "/topics", lambda name: {"name": name}),
    "alter": ("PATCH", "/topics/{}", lambda name: {"config": {"max.message.bytes": "10"}}),
    "add partitions": ("PATCH", "/topics/{}", lambda name: {"partitions": 60}),
    "delete": ("DELETE", "/topics/{0}?confirm={0}", lambda name: None),
    "empty": ("POST", "/topics/{}/delete-records", lambda name: {"before": {"0": 1}, "confirm": name}),
    "produce": ("POST", "/topics/{}/events", lambda name: {"value": "forged"}),
}


def everything_but_the_cluster() -> list[dict[str, Any]]:
    return [rule(kind, "*", Op.ALL) for kind in (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("internal"), audit_log=f"topic:{AUDIT}") as made:
        made.allow(*everything_but_the_cluster())
        made.admin.make("t")
        wait_until(lambda: lines(made) != [], "the audit topic is there")
        yield made


def lines(guarded: Guarded) -> list[dict[str, Any]]:
    asked = {"topics": [{"name": AUDIT}], "allow_auto_topic_creation": False}
    if guarded.admin.ask(ApiKey.METADATA, asked)["topics"][0]["error_code"]:
        return []
    return [json.loads(each or b"") for each in guarded.admin.values(AUDIT)]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("what", NATIVE)
@pytest.mark.parametrize("source", [USER, ADMIN])
def test_the_native_protocol_changes_none(guarded: Guarded, what: str, name: str, source: str) -> None:
    wanted: tuple[type[Exception], ...] = (errors.InvalidTopic,)
    if what == "create":
        wanted = (errors.InvalidTopic, errors.TopicExists)
    with guarded.native(source) as native, pytest.raises(wanted):
        NATIVE[what](native, name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("what", WEB)
def test_the_http_api_changes_none(guarded: Guarded, what: str, name: str) -> None:
    method, path, body = WEB[what]
    with guarded.web() as web:
        answer = web.client.request(
            method, "/api/v1" + path.format(name), json=body(name), headers={"Krappy-Request": "1"}
        )
    allowed = {"INVALID_TOPIC", "TOPIC_EXISTS"} if what == "create" else {"INVALID_TOPIC"}
    assert answer.json()["code"] in allowed, answer.text


@pytest.mark.parametrize("name", ALL)
def test_kafkas_protocol_changes_none(guarded: Guarded, name: str) -> None:
    refused = Code.INVALID_TOPIC_EXCEPTION
    with guarded.kafka() as raw:

        def code(key: ApiKey, body: dict[str, Any], rows: str) -> int:
            [found] = raw.ask(key, {"timeout_ms": 1000, "validate_only": False, **body})[rows]
            return int(found["error_code"])

        new = {"name": name, "num_partitions": 1, "replication_factor": 1}
        assert code(ApiKey.CREATE_TOPICS, {"topics": [new]}, "topics") == Code.TOPIC_ALREADY_EXISTS
        answer = raw.produce(name, batch.encode([b"k"], [b"v"], timestamps=1))
        assert (answer["error_code"], "internal" in answer["error_message"]) == (refused, True)
        assert code(ApiKey.DELETE_TOPICS, {"topics": [{"name": name}]}, "responses") == refused
        assert code(ApiKey.CREATE_PARTITIONS, {"topics": [{"name": name, "count": 60}]}, "results") == refused
        for key, change in (
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, {"name": "retention.ms", "config_operation": 0, "value": "1"}),
            (ApiKey.ALTER_CONFIGS, {"name": "retention.ms", "value": "1"}),
        ):
            resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
            assert code(key, {"resources": [resource]}, "responses") == refused
        deleted = {"name": name, "partitions": [{"partition_index": 0, "offset": -1}]}
        [topic] = raw.ask(ApiKey.DELETE_RECORDS, {"topics": [deleted]})["topics"]
        assert topic["partitions"][0]["error_code"] == refused
        got = raw.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": "tx", "transaction_timeout_ms": 60_000}, 3)
        body = {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": got["producer_id"],
            "v3_and_below_producer_epoch": got["producer_epoch"],
            "v3_and_below_topics": [{"name": name, "partitions": [0]}],
        }
        [topic] = raw.ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, 3)["results_by_topic_v3_and_below"]
        [partition] = topic["results_by_partition"]
        assert partition["partition_error_code"] == Code.TOPIC_AUTHORIZATION_FAILED  # as in Kafka


def test_what_was_staged_and_buried_before_is_not_published(tmp_path: Path) -> None:
    """A job was staged for a topic, and a group has named it for its dead letters. Then a setting makes the topic
    internal."""
    said: list[tuple[str, dict[str, Any]]] = []

    def failed(why: str) -> bool:
        return any(event == "dead_letter_failed" and why in facts["error"] for event, facts in said)

    def report(event: str, **facts: Any) -> None:
        said.append((event, facts))

    with run_broker(tmp_path, report=report, durability="os") as broker, Native(broker.address) as native:
        for name in ("t", AUDIT):
            native.call(m.CreateTopic(name))
        producer = native.producer("t")
        native.call(m.Message(producer.handle, b"forged by a dead letter"))
        staged = native.call(m.Stage(topic=AUDIT, job="j", task="0", attempt="a", ttl_ms=600_000))
        native.call(m.Batch(staged.handle, 0, batch.encode([None], [b"forged by a job"], timestamps=1)))
        token = native.call(m.SealStaged("j", staged.stage, 1)).token
        native.call(m.AlterTopic(AUDIT, {"max.message.bytes": 10}))  # so that the event stays dead
        member = native.call(m.ConsumerRegistration(["t"], group="g", dead_letter=AUDIT, max_deliveries=1))
        [lease] = native.call(m.Poll(member.handle, max_wait=60_000)).leases
        native.call(m.Nack(member.handle, [tuple(lease[:4])]))
        wait_until(lambda: failed("max.message.bytes"), "it is too large")
    settings = {"durability": "os", "audit_log": f"topic:{AUDIT}", "authorizer": "none"}
    with run_broker(tmp_path, report=report, **settings) as broker, Native(broker.address) as native:
        wait_until(lambda: failed("internal topic"), "it is refused")
        with pytest.raises(errors.InvalidTopic):
            native.call(m.CommitStaged("j", [token]))
        native.call(m.AbortStaged("j"))


def test_the_broker_makes_its_audit_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can make the topic before the broker does, with settings of his own."""
    said: list[str] = []
    too_early, make = True, AuditTopic._topic

    async def made_later(topic: AuditTopic) -> Any:
        if too_early:
            raise errors.StorageError("not yet")
        return await make(topic)

    monkeypatch.setattr(AuditTopic, "_topic", made_later)
    settings = {"durability": "os", "audit_log": f"topic:{AUDIT}", "authorizer": "none", "auto_create_topics": True}
    with (
        run_broker(tmp_path, report=lambda event, **facts: said.append(event), **settings) as broker,
        Native(broker.address) as native,
        Kafka(broker.kafka_address) as raw,
    ):
        for what in ("create", "alter", "produce", "stage"):
            with pytest.raises(errors.InvalidTopic):
                NATIVE[what](native, AUDIT)
        new = {"name": AUDIT, "num_partitions": 5, "replication_factor": 1}
        [answer] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [new], "timeout_ms": 1000})["topics"]
        assert answer["error_code"] == Code.INVALID_TOPIC_EXCEPTION
        asked = {"topics": [{"name": AUDIT}], "allow_auto_topic_creation": True}
        assert raw.ask(ApiKey.METADATA, asked)["topics"][0]["error_code"] == Code.INVALID_TOPIC_EXCEPTION
        native.call(m.CreateTopic("t"))
        too_early = False
        wait_until(lambda: "topic_created" in said and said.count("topic_created") == 2, "the broker has made it")
        [told] = native.call(m.DescribeTopics([AUDIT])).topics
        assert (len(told["partitions"]), told["config"]["retention.ms"]) == (2, "31536000000")
        wait_until(lambda: raw.values(AUDIT) != [], "it is written")


def test_only_brokers_read_what_jobs_stage(guarded: Guarded) -> None:
    """`__staged_jobs` has events of all topics. Other internal topics can be read by whoever may READ them."""
    with guarded.kafka() as raw:
        assert raw.fetch(JOBS, 0)["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert raw.fetch(OFFSETS, 0)["error_code"] == Code.NONE
        assert raw.fetch(AUDIT, 0)["error_code"] == Code.NONE
    guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION))
    with guarded.kafka() as raw:
        assert raw.fetch(JOBS, 0)["error_code"] == Code.NONE


def test_topics_that_stage_makes_and_deleted_records_are_told(guarded: Guarded) -> None:
    with guarded.native() as native, guarded.kafka() as raw, guarded.web() as web:
        native.call(m.Stage(topic="by-stage", job="tells", task="0", attempt="a", ttl_ms=60_000))
        raw.make("shorter")
        for _ in range(3):
            raw.produce("shorter", batch.encode([b"k"], [b"v"], timestamps=1))
        native.call(m.DeleteRecords("shorter", [(0, 1)]))
        deleted = {"name": "shorter", "partitions": [{"partition_index": 0, "offset": 2}]}
        raw.ask(ApiKey.DELETE_RECORDS, {"topics": [deleted], "timeout_ms": 9000})
        body = {"before": {"0": 3}, "confirm": "shorter"}
        web.client.post("/api/v1/topics/shorter/delete-records", json=body, headers={"Krappy-Request": "1"})

    def starts() -> list[tuple[int, int, str]]:
        found = [each for each in lines(guarded) if each.get("name") == "shorter-0"]
        assert all((each["kind"], each["host"]) == ("records", USER) for each in found)
        return [(each["before"]["start"], each["after"]["start"], each["api"]) for each in found]

    wait_until(lambda: len(starts()) == 3, "all are told")
    assert [each[:2] for each in starts()] == [(0, 1), (1, 2), (2, 3)]
    [made] = [each for each in lines(guarded) if each.get("name") == "by-stage"]
    assert (made["kind"], made["host"], made["after"]["partitions"]) == ("topic", USER, 1)


@pytest.mark.parametrize("name", INTERNAL)
def test_the_audit_log_goes_to_no_coordinators_topic(name: str) -> None:
    with pytest.raises(errors.ConfigError, match="audit_log"):
        load({"audit_log": f"topic:{name}"}, {})
