"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, over the bare protocol."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.settings.topic_table import SETTINGS
from krappy.wire import messages as m
from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw
from tests.process import BrokerProcess

VERSIONS = {key: range(low, high + 1) for key, (low, high) in RANGES.items()}
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def topic(raw: Raw, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with one setting."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]
    configs = [{"name": "retention.ms", "value": "1000"}]
    asked = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    [made] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [asked]})["topics"]
    assert made["error_code"] == 0
    return name


def describe(
    raw: Raw, kind: int, name: str, keys: list[str] | None = None, version: int | None = None, **more: Any
) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    [found] = raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource], **more}, version)["results"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    return dict(found)


def settings(raw: Raw, name: str) -> dict[str, str]:
    """The settings that a topic has of its own."""
    entries = describe(raw, TOPIC, name)["configs"]
    return {each["name"]: each["value"] for each in entries if each["config_source"] == 1}


def resources(changes: dict[str, Any], name: str, kind: int = TOPIC) -> list[dict[str, Any]]:
    configs = []
    for key, given in changes.items():
        operation, value = given if isinstance(given, tuple) else (SET, given)
        configs.append({"name": key, "config_operation": operation, "value": value})
    return [{"resource_type": kind, "resource_name": name, "configs": configs}]


def change(
    raw: Raw, api: ApiKey, asked: list[dict[str, Any]], version: int | None = None, **more: Any
) -> list[tuple[int, str | None]]:
    responses = raw.ask(api, {"resources": asked, **more}, version)["responses"]
    return [(each["error_code"], each["error_message"]) for each in responses]


def increment(raw: Raw, name: str, **more: Any) -> tuple[int, str | None]:
    changes = {key.replace("_", "."): value for key, value in more.items()}
    [result] = change(raw, ApiKey.INCREMENTAL_ALTER_CONFIGS, resources(changes, name))
    return result


# --- DescribeConfigs


@pytest.mark.parametrize("version", VERSIONS[ApiKey.DESCRIBE_CONFIGS])
def test_all_settings_of_a_topic_in_every_version(raw: Raw, topic: str, version: int) -> None:
    shown: dict[str, Any] = {"include_synonyms": True, "include_documentation": True}
    found = describe(raw, TOPIC, topic, version=version, **shown)
    assert (found["error_code"], found["error_message"]) == (0, None)
    entries = {each["name"]: each for each in found["configs"]}
    assert entries.keys() == SETTINGS.keys()
    assert not any(each["read_only"] or each["is_sensitive"] for each in entries.values())
    given, default = entries["retention.ms"], entries["segment.bytes"]
    assert (given["value"], given["config_source"]) == ("1000", 1)
    assert given["synonyms"] == [
        {"name": "retention.ms", "value": "1000", "source": 1},
        {"name": "log.retention.ms", "value": "-1", "source": 5},
    ]
    assert (default["value"], default["config_source"]) == ("1073741824", 5)
    assert default["synonyms"] == [{"name": "log.segment.bytes", "value": "1073741824", "source": 5}]
    if version >= 3:
        kinds = {name: each["config_type"] for name, each in entries.items()}
        assert kinds["retention.ms"] == 5
        assert (kinds["cleanup.policy"], kinds["min.cleanable.dirty.ratio"], kinds["view.enable"]) == (7, 6, 1)
        assert all(each["documentation"] for each in entries.values())


def test_only_what_is_asked_for(raw: Raw, topic: str) -> None:
    found = describe(raw, TOPIC, topic, ["segment.ms", "retention.ms", "no.such"])
    assert [each["name"] for each in found["configs"]] == ["retention.ms", "segment.ms"]
    assert all(each["synonyms"] == [] and each["documentation"] is None for each in found["configs"])
    assert describe(raw, TOPIC, topic, [])["configs"] == []


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "absent", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", Code.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "a/b", Code.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "a" * 250, Code.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", Code.INVALID_REQUEST),
        (BROKER, "zero", Code.INVALID_REQUEST),
        (LOGGER, "0", Code.INVALID_REQUEST),
        (0, "x", Code.INVALID_REQUEST),
        (-128, "x", Code.INVALID_REQUEST),
        (BROKER, "", 0),
        (GROUP, "", Code.INVALID_REQUEST),
        (METRICS, "mine", 0),
    ],
)
def test_resources_that_have_no_settings(raw: Raw, kind: int, name: str, code: int) -> None:
    found = describe(raw, kind, name)
    assert (found["error_code"], found["configs"]) == (code, [])
    assert (found["error_message"] is None) == (code == 0)


def test_the_brokers_own_settings_by_kafkas_names(raw: Raw, broker: BrokerProcess) -> None:
    found = describe(raw, BROKER, "0", include_synonyms=True, include_documentation=True)
    entries = {each["name"]: each for each in found["configs"]}
    changeable = {name for name, each in entries.items() if not each["read_only"]}
    assert {"log.retention.ms", "max.connections", "background.threads"} <= changeable
    assert not changeable & {"num.partitions", "listeners", "auto.create.topics.enable", "krappy.memory_bytes"}
    values = {name: each["value"] for name, each in entries.items()}
    expected = {
        "advertised.listeners": f"PLAINTEXT://{broker.kafka}",
        "auto.create.topics.enable": "true",
        "broker.id": "0",
        "default.replication.factor": "1",
        "log.retention.check.interval.ms": "300000",
        "log.retention.ms": "-1",
        "log.dirs": str(broker.data),
        "message.max.bytes": "1048588",
        "node.id": "0",
        "num.partitions": "1",
        "offsets.retention.minutes": "10080",
        "krappy.durability": "os",
    }
    assert {name: values[name] for name in expected} == expected
    assert entries["krappy.durability"]["config_source"] == 4
    assert entries["num.partitions"]["config_source"] == 5
    [only] = describe(raw, BROKER, "0", ["num.partitions"])["configs"]
    assert only["value"] == "1"


def test_a_thousand_resources_in_one_request(raw: Raw, topic: str) -> None:
    one = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    more = {**one, "configuration_keys": ["segment.ms"]}
    absent = [{**one, "resource_name": f"absent-{number}"} for number in range(1000)]
    results = raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [one, *absent, more] * 9})["results"]
    assert [each["error_code"] for each in results] == [0] + [Code.UNKNOWN_TOPIC_OR_PARTITION] * 1000
    assert [each["name"] for each in results[0]["configs"]] == ["retention.ms", "segment.ms"]  # one for each resource


# --- AlterConfigs


@pytest.mark.parametrize("version", VERSIONS[ApiKey.ALTER_CONFIGS])
def test_altering_replaces_all_that_was_set(raw: Raw, topic: str, version: int) -> None:
    asked = resources({"segment.ms": "5000", "cleanup.policy": "compact"}, topic)
    assert change(raw, ApiKey.ALTER_CONFIGS, asked, version, validate_only=True) == [(0, None)]
    assert settings(raw, topic) == {"retention.ms": "1000"}
    assert change(raw, ApiKey.ALTER_CONFIGS, asked, version) == [(0, None)]
    assert settings(raw, topic) == {"segment.ms": "5000", "cleanup.policy": "compact"}
    assert change(raw, ApiKey.ALTER_CONFIGS, resources({}, topic), version) == [(0, None)]
    assert settings(raw, topic) == {}


def test_a_null_value_is_none(raw: Raw, topic: str) -> None:
    [(code, text)] = change(raw, ApiKey.ALTER_CONFIGS, resources({"retention.ms": None}, topic))
    assert code == Code.INVALID_REQUEST
    assert "retention.ms" in str(text)
    assert settings(raw, topic) == {"retention.ms": "1000"}


# --- IncrementalAlterConfigs


@pytest.mark.parametrize("version", VERSIONS[ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_changes_one_by_one_in_every_version(raw: Raw, topic: str, version: int) -> None:
    asked = resources({"segment.ms": (SET, "5000"), "retention.ms": (DELETE, None)}, topic)
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    assert change(raw, api, asked, version, validate_only=True) == [(0, None)]
    assert settings(raw, topic) == {"retention.ms": "1000"}
    assert change(raw, api, asked, version) == [(0, None)]
    assert settings(raw, topic) == {"segment.ms": "5000"}
    assert change(raw, api, resources({"retention.ms": (DELETE, "x")}, topic), version) == [(0, None)]


def test_lists_grow_and_shrink(raw: Raw, topic: str) -> None:
    policy = "cleanup.policy"
    assert increment(raw, topic, cleanup_policy=(APPEND, "compact")) == (0, None)
    assert settings(raw, topic)[policy] == "compact,delete"
    assert increment(raw, topic, cleanup_policy=(APPEND, "delete,compact")) == (0, None)
    assert settings(raw, topic)[policy] == "compact,delete"
    assert increment(raw, topic, cleanup_policy=(SUBTRACT, " delete ,nothing")) == (0, None)
    assert settings(raw, topic)[policy] == "compact"
    code, _ = increment(raw, topic, cleanup_policy=(SUBTRACT, "compact"))
    assert code == Code.INVALID_CONFIG  # the list would be empty
    code, _ = increment(raw, topic, cleanup_policy=(APPEND, "erase"))
    assert code == Code.INVALID_CONFIG
    assert settings(raw, topic)[policy] == "compact"


@pytest.mark.parametrize(
    ("name", "given", "code", "said"),
    [
        ("retention.m", (SET, "1"), Code.INVALID_CONFIG, "retention.ms"),
        ("retention.m", (DELETE, None), Code.INVALID_CONFIG, "retention.ms"),
        ("retention.m", (APPEND, "1"), Code.INVALID_CONFIG, "retention.ms"),
        ("", (SET, "1"), Code.INVALID_CONFIG, "no topic setting"),
        ("x" * 30_000, (SET, "1"), Code.INVALID_CONFIG, "no topic setting"),
        ("retention.ms", (SET, "x" * 30_000), Code.INVALID_CONFIG, "whole number"),
        ("retention.ms", (SET, None), Code.INVALID_REQUEST, "Null value"),
        ("retention.ms", (APPEND, "1"), Code.INVALID_CONFIG, "not LIST"),
        ("retention.ms", (SUBTRACT, "1"), Code.INVALID_CONFIG, "not LIST"),
        ("cleanup.policy", (APPEND, None), Code.INVALID_REQUEST, "Null value"),
        ("retention.ms", (4, "1"), Code.INVALID_REQUEST, "operation 4"),
        ("retention.ms", (-1, "1"), Code.INVALID_REQUEST, "operation -1"),
        ("view.enable", (SET, "maybe"), Code.INVALID_CONFIG, "true or false"),
    ],
)
def test_changes_that_are_refused(raw: Raw, topic: str, name: str, given: Any, code: Code, said: str) -> None:
    [(found, text)] = change(raw, ApiKey.INCREMENTAL_ALTER_CONFIGS, resources({name: given}, topic))
    assert found == code
    assert said in str(text)
    assert len(str(text)) < 1000
    assert settings(raw, topic) == {"retention.ms": "1000"}


def test_of_several_changes_all_are_made_or_none(raw: Raw, topic: str) -> None:
    code, _ = increment(raw, topic, segment_ms=(SET, "7"), retention_ms=(SET, "never"))
    assert code == Code.INVALID_CONFIG
    assert settings(raw, topic) == {"retention.ms": "1000"}
    twice = resources({"segment.ms": "1"}, topic)
    twice[0]["configs"] *= 2
    [(code, _)] = change(raw, ApiKey.INCREMENTAL_ALTER_CONFIGS, twice)
    assert code == Code.INVALID_REQUEST


@pytest.mark.parametrize("api", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "absent", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", Code.INVALID_TOPIC_EXCEPTION),
        (BROKER, "0", Code.INVALID_REQUEST),
        (BROKER, "", Code.INVALID_REQUEST),
        (BROKER, "7", Code.INVALID_REQUEST),
        (LOGGER, "0", Code.INVALID_REQUEST),
        (GROUP, "mail", Code.INVALID_CONFIG),
        (GROUP, "", Code.INVALID_REQUEST),
        (METRICS, "mine", Code.INVALID_REQUEST),
        (77, "x", Code.INVALID_REQUEST),
    ],
)
def test_resources_that_can_not_be_changed(raw: Raw, api: ApiKey, kind: int, name: str, code: Code) -> None:
    [(found, text)] = change(raw, api, resources({"retention.ms": "5"}, name, kind))
    assert found == code
    assert text


def test_a_resource_twice_in_one_request(raw: Raw, topic: str) -> None:
    asked = resources({"segment.ms": "1"}, topic) + resources({"segment.ms": "2"}, topic)
    assert change(raw, ApiKey.INCREMENTAL_ALTER_CONFIGS, asked) == [
        (Code.INVALID_REQUEST, "Each resource must appear at most once.")
    ]
    assert settings(raw, topic) == {"retention.ms": "1000"}


def test_both_protocols_see_and_set_the_same(raw: Raw, broker: BrokerProcess, topic: str) -> None:
    with Native(broker.address) as native:
        [told] = native.call(m.DescribeTopics([topic])).topics
        assert told["config"] == {"retention.ms": "1000"}
        native.call(m.AlterTopic(topic, {"cleanup.policy": "compact", "retention.ms": None}))
        assert settings(raw, topic) == {"cleanup.policy": "compact"}
        assert increment(raw, topic, min_compaction_lag_ms=(SET, "9")) == (0, None)
        [told] = native.call(m.DescribeTopics([topic])).topics
        assert told["config"] == {"cleanup.policy": "compact", "min.compaction.lag.ms": "9"}
        shown = {each["name"]: each["value"] for each in describe(raw, TOPIC, topic)["configs"]}
        assert shown == told["settings"]
