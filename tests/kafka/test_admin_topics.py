"""CreateTopics, CreatePartitions, DeleteTopics and DescribeTopicPartitions, over the bare protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.handlers.kafka.topics import create_partitions, create_topics, delete_topics
from krappy.records import batch
from krappy.testing.sessions import kafka_session
from krappy.wire.kafka import RANGES, UUID_ZERO, ApiKey, Code
from tests.broker.engine import running
from tests.kafka.raw import Raw
from tests.process import BrokerProcess

PATIENT_MS = 600_000  # making a topic takes some syncs of a disk that others may keep busy
VERSIONS = {key: range(low, high + 1) for key, (low, high) in RANGES.items()}


def new(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


def create(raw: Raw, *topics: dict[str, Any], version: int | None = None, **more: Any) -> list[dict[str, Any]]:
    answer = raw.ask(ApiKey.CREATE_TOPICS, {"topics": list(topics), "timeout_ms": 30_000, **more}, version)
    found: list[dict[str, Any]] = answer["topics"]
    return found


def refused(raw: Raw, topic: dict[str, Any], **more: Any) -> Code:
    """Asserts that a topic is refused with words, and is not there; returns the error code."""
    [answer] = create(raw, topic, **more)
    assert answer["error_message"]
    assert answer["topic_id"] == UUID_ZERO
    return Code(answer["error_code"])


def delete(raw: Raw, *names: str | None, version: int | None = None) -> list[tuple[str | None, int]]:
    body = {"topics": [{"name": name} for name in names], "topic_names": list(names), "timeout_ms": PATIENT_MS}
    answer = raw.ask(ApiKey.DELETE_TOPICS, body, version)
    return [(each["name"], each["error_code"]) for each in answer["responses"]]


def partitions(raw: Raw, name: str) -> int | None:
    [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": name}], "allow_auto_topic_creation": False})["topics"]
    return None if topic["error_code"] else len(topic["partitions"])


def assigned(*brokers: list[int]) -> dict[str, Any]:
    rows = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(brokers)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": rows}


# --- CreateTopics


@pytest.mark.parametrize("version", VERSIONS[ApiKey.CREATE_TOPICS])
def test_a_topic_is_made_in_every_version(raw: Raw, version: int) -> None:
    name = f"made-{version}"
    configs = [{"name": "retention.ms", "value": "1000"}, {"name": "cleanup.policy", "value": None}]
    [made] = create(raw, new(name, 2, configs=configs), version=version)
    assert (made["name"], made["error_code"], made["error_message"]) == (name, 0, None)
    if version >= 5:
        assert (made["num_partitions"], made["replication_factor"]) == (2, 1)
        told = {each["name"]: (each["value"], each["config_source"]) for each in made["configs"]}
        assert told["retention.ms"] == ("1000", 1)
        assert told["cleanup.policy"] == ("delete", 5)
        assert told["segment.bytes"] == ("1073741824", 5)
    assert made["topic_id"] == (raw.topic_id(name) if version >= 7 else UUID_ZERO)
    assert partitions(raw, name) == 2
    [again] = create(raw, new(name), version=version)
    assert (again["error_code"], again["error_message"]) == (36, f"Topic '{name}' already exists.")


@pytest.mark.parametrize("factor", [-1, 1])
def test_the_brokers_defaults(raw: Raw, factor: int) -> None:
    [made] = create(raw, new(f"defaults{factor}", -1, factor))
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, 1, 1)


@pytest.mark.parametrize("factor", [0, -2, 2, 3, 32767])
def test_a_replication_factor_that_one_broker_does_not_have(raw: Raw, factor: int) -> None:
    assert refused(raw, new("replicated", 1, factor)) is Code.INVALID_REPLICATION_FACTOR
    assert partitions(raw, "replicated") is None


@pytest.mark.parametrize("count", [0, -2, -(2**31)])
def test_a_number_of_partitions_that_can_not_be(raw: Raw, count: int) -> None:
    assert refused(raw, new("parted", count)) is Code.INVALID_PARTITIONS


@pytest.mark.parametrize("counts", [[2**31 - 1], [10_001], [6_000, 6_000]])
def test_more_partitions_than_one_request_may_make(raw: Raw, counts: list[int]) -> None:
    answers = create(raw, *(new(f"huge-{at}", count) for at, count in enumerate(counts)))
    assert [each["error_code"] for each in answers] == [Code.POLICY_VIOLATION] * len(counts)
    assert partitions(raw, "huge-0") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "é", "a\0", "users@latest", "a" * 30_000])
def test_names_that_a_topic_may_not_have(raw: Raw, name: str) -> None:
    assert refused(raw, new(name)) is Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a" * 249, "A.-1", "..."])
def test_names_that_it_may(raw: Raw, name: str) -> None:
    assert create(raw, new(name))[0]["error_code"] == 0


def test_names_that_are_the_same_to_metrics(raw: Raw) -> None:
    answers = create(raw, new("col.li_de"), new("col_li.de"))
    assert [each["error_code"] for each in answers] == [0, Code.INVALID_TOPIC_EXCEPTION]
    assert "col.li_de" in answers[1]["error_message"]
    assert refused(raw, new("col_li_de")) is Code.INVALID_TOPIC_EXCEPTION
    assert create(raw, new("col-li-de"))[0]["error_code"] == 0


def test_a_name_twice_in_one_request(raw: Raw) -> None:
    answers = create(raw, new("twin"), new("alone"), new("twin"))
    assert {each["name"]: each["error_code"] for each in answers} == {"twin": Code.INVALID_REQUEST, "alone": 0}
    assert partitions(raw, "twin") is None


def test_nothing_is_made_that_is_only_to_be_checked(raw: Raw) -> None:
    answers = create(raw, new("checked", 4), new("", 1), new("checked2", 1, 3), validate_only=True)
    assert [each["error_code"] for each in answers] == [0, 17, 38]
    assert answers[0]["num_partitions"] == 4
    assert partitions(raw, "checked") is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retention.m", "1", "retention.ms"),
        ("retention.ms", "soon", "whole number"),
        ("remote.storage.enable", "true", "tiered"),
        ("compression.type", "brotli", "producer"),
        ("cleanup.policy", "", "compact"),
    ],
)
def test_settings_that_are_refused(raw: Raw, name: str, value: str, said: str) -> None:
    [answer] = create(raw, new("unset", configs=[{"name": name, "value": value}]))
    assert answer["error_code"] == Code.INVALID_CONFIG
    assert said in answer["error_message"]
    assert partitions(raw, "unset") is None


def test_a_manual_assignment_to_the_one_broker(raw: Raw) -> None:
    [made] = create(raw, {"name": "manual", **assigned([0], [0], [0])})
    assert (made["error_code"], made["num_partitions"]) == (0, 3)
    assert partitions(raw, "manual") == 3


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (assigned([1]), Code.INVALID_REPLICA_ASSIGNMENT),
        (assigned([0, 0]), Code.INVALID_REPLICA_ASSIGNMENT),
        (assigned([0], []), Code.INVALID_REPLICA_ASSIGNMENT),
        (assigned([0], [0, 1]), Code.INVALID_REPLICA_ASSIGNMENT),
        ({**assigned([0]), "num_partitions": 1}, Code.INVALID_REQUEST),
        ({**assigned([0]), "replication_factor": 1}, Code.INVALID_REQUEST),
        (
            {**assigned([0]), "assignments": [{"partition_index": 1, "broker_ids": [0]}]},
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {**assigned([0]), "assignments": [{"partition_index": 0, "broker_ids": [0]}] * 2},
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_manual_assignments_that_can_not_be(raw: Raw, topic: dict[str, Any], code: Code) -> None:
    assert refused(raw, {"name": "assigned", **topic}) is code


def test_a_thousand_topics_in_one_request(broker: BrokerProcess) -> None:
    with Raw(broker.kafka, timeout=PATIENT_MS / 1000) as raw:
        names = [f"thousand-{number}" for number in range(1000)]
        answers = create(raw, *map(new, names), timeout_ms=PATIENT_MS)
        assert [(each["name"], each["error_code"]) for each in answers] == [(name, 0) for name in names]
        assert sorted(delete(raw, *names)) == sorted((name, 0) for name in names)


def test_what_the_time_was_too_short_for_is_not_begun(raw: Raw) -> None:
    answers = create(raw, *(new(f"late-{number}") for number in range(300)), timeout_ms=1)
    codes = [each["error_code"] for each in answers]
    assert set(codes) <= {0, Code.REQUEST_TIMED_OUT}
    assert codes == sorted(codes)  # the topics that are made come first
    for each in (answers[0], answers[-1]):
        assert (partitions(raw, each["name"]) is None) == (each["error_code"] != 0)
    made = [each["name"] for each in answers if not each["error_code"]]
    assert all(code == 0 for _, code in delete(raw, *made))


# --- CreatePartitions


def grow(raw: Raw, *topics: dict[str, Any], version: int | None = None, **more: Any) -> list[tuple[str, int]]:
    answer = raw.ask(ApiKey.CREATE_PARTITIONS, {"topics": list(topics), "timeout_ms": 30_000, **more}, version)
    for each in answer["results"]:
        assert (each["error_message"] is None) == (each["error_code"] == 0)
    return [(each["name"], each["error_code"]) for each in answer["results"]]


def to(name: str, count: int, *brokers: list[int], manual: bool = False) -> dict[str, Any]:
    assignments = [{"broker_ids": ids} for ids in brokers] if manual or brokers else None
    return {"name": name, "count": count, "assignments": assignments}


@pytest.mark.parametrize("version", VERSIONS[ApiKey.CREATE_PARTITIONS])
def test_partitions_are_added_in_every_version(raw: Raw, version: int) -> None:
    name = f"grown-{version}"
    create(raw, new(name, 2))
    assert grow(raw, to(name, 3), version=version, validate_only=True) == [(name, 0)]
    assert partitions(raw, name) == 2
    assert grow(raw, to(name, 3), version=version) == [(name, 0)]
    assert grow(raw, to(name, 5, [0], [0]), version=version) == [(name, 0)]
    assert partitions(raw, name) == 5
    assert raw.produce(name, batch.encode([b"k"], [b"v"], timestamps=1_000), index=4)["error_code"] == 0


def test_partitions_that_can_not_be_added(raw: Raw) -> None:
    create(raw, new("fixed", 2))
    for topic, code in [
        (to("fixed", 2), Code.INVALID_PARTITIONS),
        (to("fixed", 1), Code.INVALID_PARTITIONS),
        (to("fixed", 0), Code.INVALID_PARTITIONS),
        (to("fixed", -1), Code.INVALID_PARTITIONS),
        (to("fixed", 2**31 - 1), Code.POLICY_VIOLATION),
        (to("absent", 3), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (to("", 3), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (to("fixed", 4, [0]), Code.INVALID_REPLICA_ASSIGNMENT),
        (to("fixed", 3, [1]), Code.INVALID_REPLICA_ASSIGNMENT),
        (to("fixed", 3, [0, 1]), Code.INVALID_REPLICA_ASSIGNMENT),
        (to("fixed", 3, []), Code.INVALID_REPLICA_ASSIGNMENT),
        (to("fixed", 3, manual=True), Code.INVALID_REPLICA_ASSIGNMENT),
    ]:
        assert grow(raw, topic) == [(topic["name"], code)], topic
    assert grow(raw, to("fixed", 3), to("fixed", 4)) == [("fixed", Code.INVALID_REQUEST)]
    assert partitions(raw, "fixed") == 2


# --- DeleteTopics


@pytest.mark.parametrize("version", VERSIONS[ApiKey.DELETE_TOPICS])
def test_a_topic_is_deleted_in_every_version(raw: Raw, version: int) -> None:
    name = f"deleted-{version}"
    create(raw, new(name))
    assert delete(raw, name, "absent", version=version) == [(name, 0), ("absent", 3)]
    assert partitions(raw, name) is None
    assert create(raw, new(name))[0]["error_code"] == 0  # it may be made again at once


def test_by_id(raw: Raw) -> None:
    create(raw, new("by-id"))
    uuid = raw.topic_id("by-id")

    def ask(*topics: dict[str, Any]) -> list[tuple[str | None, bytes, int]]:
        answer = raw.ask(ApiKey.DELETE_TOPICS, {"topics": list(topics), "timeout_ms": 30_000})
        return [(each["name"], bytes(each["topic_id"]), each["error_code"]) for each in answer["responses"]]

    other = bytes(range(16))
    assert ask({"name": None, "topic_id": other}) == [(None, other, Code.UNKNOWN_TOPIC_ID)]
    assert ask({"name": "by-id", "topic_id": uuid}) == [("by-id", uuid, Code.INVALID_REQUEST)]
    assert ask({"name": None, "topic_id": UUID_ZERO}) == [(None, UUID_ZERO, Code.INVALID_REQUEST)]
    assert ask({"name": None, "topic_id": uuid}, {"name": "by-id"}) == [(None, uuid, Code.INVALID_REQUEST)]
    assert partitions(raw, "by-id") == 1
    assert ask({"name": None, "topic_id": uuid}) == [("by-id", uuid, 0)]
    assert ask({"name": None, "topic_id": uuid}) == [(None, uuid, Code.UNKNOWN_TOPIC_ID)]


def test_a_deletion_twice_in_one_request(raw: Raw) -> None:
    create(raw, new("twice"))
    assert delete(raw, "twice", "twice") == [("twice", Code.INVALID_REQUEST)]
    assert partitions(raw, "twice") == 1


# --- DescribeTopicPartitions


def page(raw: Raw, names: list[str], limit: int, cursor: tuple[str, int] | None = None) -> tuple[list[Any], Any]:
    body = {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    answer = raw.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, body)
    following = answer["next_cursor"]
    return (
        [(t["name"], t["error_code"], [p["partition_index"] for p in t["partitions"]]) for t in answer["topics"]],
        None if following is None else (following["topic_name"], following["partition_index"]),
    )


def test_topics_come_a_page_at_a_time(raw: Raw) -> None:
    create(raw, new("page-a", 3), new("page-b", 2), new("page-c", 1))
    names = ["page-c", "page-a", "page-b"]
    assert page(raw, names, 2) == ([("page-a", 0, [0, 1])], ("page-a", 2))
    assert page(raw, names, 2, ("page-a", 2)) == ([("page-a", 0, [2]), ("page-b", 0, [0])], ("page-b", 1))
    assert page(raw, names, 2, ("page-b", 1)) == ([("page-b", 0, [1]), ("page-c", 0, [0])], None)
    assert page(raw, names, 3) == ([("page-a", 0, [0, 1, 2])], ("page-b", 0))
    assert page(raw, names, 100) == ([("page-a", 0, [0, 1, 2]), ("page-b", 0, [0, 1]), ("page-c", 0, [0])], None)
    assert page(raw, names, -5)[1] == ("page-a", 1)
    assert page(raw, ["page-x", "page-c"], 9) == ([("page-c", 0, [0]), ("page-x", 3, [])], None)
    assert page(raw, names, 9, ("page-b", 7)) == ([("page-b", 0, []), ("page-c", 0, [0])], None)
    every, _ = page(raw, [], 2000)
    assert {"page-a", "page-b", "page-c"} <= {name for name, _, _ in every}


def test_who_leads_a_partition(raw: Raw) -> None:
    create(raw, new("led"))
    [topic] = raw.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": "led"}]})["topics"]
    assert topic["topic_id"] == raw.topic_id("led")
    [partition] = topic["partitions"]
    assert (partition["leader_id"], partition["replica_nodes"], partition["isr_nodes"]) == (0, [0], [0])


# --- many at once


@pytest.mark.parametrize("done", ["create_topic", "alter_topic", "delete_topic"])
def test_topics_of_one_request_do_not_wait_for_each_other(tmp_path: Path, done: str) -> None:
    """Each change waits in the broker until three of them are there."""
    names = ["a", "b", "c"]
    requests = {
        "create_topic": (create_topics, {"topics": [new(name, assignments=[], configs=[]) for name in names]}),
        "alter_topic": (create_partitions, {"topics": [to(name, 3) for name in names]}),
        "delete_topic": (delete_topics, {"topics": [{"name": name, "topic_id": UUID_ZERO} for name in names]}),
    }

    async def main() -> None:
        async with running(tmp_path) as broker:
            for name in names if done != "create_topic" else ():
                await broker.create_topic(name, 2, {})
            real, come, all_there = getattr(broker, done), list[str](), trio.Event()

            async def late(name: str, *rest: Any, **more: Any) -> Any:
                come.append(name)
                if len(come) == len(names):
                    all_there.set()
                await all_there.wait()
                return await real(name, *rest, **more)

            setattr(broker, done, late)
            handler, request = requests[done]
            session: Any = kafka_session(broker)
            with trio.fail_after(20):
                answer = await handler(session, {"timeout_ms": 0, "validate_only": False, **request}, 6)
            [answers] = answer.values()
            assert [(each["name"], each["error_code"]) for each in answers] == [(name, 0) for name in names]
            assert come == names

    trio.run(main)
