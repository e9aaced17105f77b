"""Settings that are changed while the broker runs: of the broker itself, for all brokers, and of groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from krappy.errors import KrappyError
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, create
from tests.peer import Gone, Peer
from tests.process import BrokerProcess, Launcher, broker_process, wait_until

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_BROKER, OF_ALL, STATIC, DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8  # sources
HOUR = 3_600_000


@pytest.fixture
def broker(tmp_path: Path, launcher: Launcher) -> Iterator[BrokerProcess]:
    """A broker for each test, which does nothing by itself."""
    with broker_process(
        tmp_path / "data", launch=launcher, durability="os", retention_check_ms=HOUR, cleaner_backoff_ms=HOUR
    ) as running:
        yield running
        assert not running.events("internal_error"), running.last_words()
        assert running.stop() == 0


def change(raw: Raw, kind: int, name: str, setting: str, value: str | None, operation: int = SET) -> tuple[int, str]:
    config = {"name": setting, "config_operation": operation, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    body = {"resources": [resource], "validate_only": False}
    [answer] = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)["responses"]
    return answer["error_code"], answer["error_message"] or ""


def describe(raw: Raw, kind: int, name: str, *settings: str) -> dict[str, dict[str, Any]]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(settings) or None}
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    [answer] = raw.ask(ApiKey.DESCRIBE_CONFIGS, body)["results"]
    assert answer["error_code"] == 0, answer
    return {each["name"]: each for each in answer["configs"]}


def shown(raw: Raw, kind: int, name: str, setting: str) -> tuple[str, int]:
    """(value, source)"""
    found = describe(raw, kind, name, setting)[setting]
    return found["value"], found["config_source"]


THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


@pytest.mark.parametrize("name", THROTTLES)
def test_what_is_not_set_can_be_taken_back(broker: BrokerProcess, name: str) -> None:
    """kafka-reassign-partitions.sh --verify takes these back, whether anybody has set them or not."""
    with Raw(broker.kafka) as raw:
        assert change(raw, BROKER, "0", name, None, DELETE) == (Code.NONE, "")


def test_throttles_of_replication_are_kept(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw:
        for name in THROTTLES[:2]:
            assert change(raw, BROKER, "0", name, "1000")[0] == Code.NONE
            assert shown(raw, BROKER, "0", name)[0] == "1000"
            assert change(raw, BROKER, "0", name, "-1")[0] == Code.INVALID_REQUEST
            assert change(raw, BROKER, "0", name, None, DELETE)[0] == Code.NONE
            assert shown(raw, BROKER, "0", name)[0] == str(2**63 - 1)
        assert change(raw, BROKER, "0", THROTTLES[2], "1000")[0] == Code.INVALID_REQUEST, "it would not be kept"


def settings(peer: Peer, topic: str) -> dict[str, str]:
    return peer.describe(topic)["settings"]  # type: ignore[no-any-return]


def test_what_topics_get_that_set_nothing(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw, Peer(broker.address) as peer:
        raw.make("before")
        create(broker, "own", retention_ms="5")
        assert change(raw, BROKER, "", "log.retention.ms", "1000")[0] == 0
        raw.make("after")
        for topic in ("before", "after"):
            assert shown(raw, TOPIC, topic, "retention.ms") == ("1000", OF_ALL)
            assert settings(peer, topic)["retention.ms"] == "1000"
        assert shown(raw, TOPIC, "own", "retention.ms") == ("5", OF_TOPIC)
        assert change(raw, BROKER, "0", "log.retention.ms", "2000")[0] == 0, "this broker's own wins"
        chain = [(each["value"], each["source"]) for each in _synonyms(raw, "own")]
        assert chain == [("5", OF_TOPIC), ("2000", OF_BROKER), ("1000", OF_ALL), ("-1", DEFAULT)]
        assert shown(raw, BROKER, "0", "log.retention.ms") == ("2000", OF_BROKER)
        assert list(describe(raw, BROKER, "")) == ["log.retention.ms"]
    assert broker.stop() == 0
    broker.start()
    with Raw(broker.kafka) as raw, Peer(broker.address) as peer:
        assert shown(raw, TOPIC, "before", "retention.ms") == ("2000", OF_BROKER)
        assert settings(peer, "before")["retention.ms"] == "2000"
        assert change(raw, BROKER, "0", "log.retention.ms", None, DELETE)[0] == 0
        assert shown(raw, TOPIC, "before", "retention.ms") == ("1000", OF_ALL)
        assert change(raw, BROKER, "", "log.retention.ms", None, DELETE)[0] == 0
        assert shown(raw, TOPIC, "before", "retention.ms") == ("-1", DEFAULT)
        assert settings(peer, "before")["retention.ms"] == "-1"


def _synonyms(raw: Raw, topic: str) -> list[dict[str, Any]]:
    return list(describe(raw, TOPIC, topic, "retention.ms")["retention.ms"]["synonyms"])


def test_what_the_broker_was_started_with_comes_after_what_was_changed(tmp_path: Path, launcher: Launcher) -> None:
    given: dict[str, Any] = {"log_retention_ms": 7000, "log_cleanup_policy": "compact,delete"}
    with broker_process(tmp_path / "data", launch=launcher, durability="os", **given) as broker:
        with Raw(broker.kafka) as raw:
            raw.make("t")
            assert shown(raw, TOPIC, "t", "retention.ms") == ("7000", STATIC)
            assert shown(raw, TOPIC, "t", "segment.bytes") == ("1073741824", DEFAULT)
            assert shown(raw, BROKER, "0", "log.retention.ms") == ("7000", STATIC)
            assert shown(raw, BROKER, "0", "log.cleanup.policy") == ("compact,delete", STATIC)
            assert shown(raw, BROKER, "0", "log.segment.bytes") == ("1073741824", DEFAULT)
            assert describe(raw, BROKER, "") == {}
            assert change(raw, BROKER, "", "log.retention.ms", "1000")[0] == 0
            chain = [("1000", OF_ALL), ("7000", STATIC), ("-1", DEFAULT)]
            assert [(each["value"], each["source"]) for each in _synonyms(raw, "t")] == chain
            own = describe(raw, BROKER, "0", "log.retention.ms")["log.retention.ms"]
            assert [(each["value"], each["source"]) for each in own["synonyms"]] == chain
            assert not own["read_only"]
            assert change(raw, BROKER, "", "log.cleanup.policy", "delete", SUBTRACT)[0] == 0
            assert shown(raw, TOPIC, "t", "cleanup.policy") == ("compact", OF_ALL), "changed from what is in force"
        broker.settings.pop("log_retention_ms")
        assert broker.stop() == 0
        broker.start()
        with Raw(broker.kafka) as raw:
            chain = [("1000", OF_ALL), ("-1", DEFAULT)]
            assert [(each["value"], each["source"]) for each in _synonyms(raw, "t")] == chain


def test_they_are_honoured_at_once(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw:
        raw.make("limited")
        record = batch.encode([b"k"], [b"v" * 2000], timestamps=1)
        assert raw.produce("limited", record)["error_code"] == 0
        assert change(raw, BROKER, "0", "message.max.bytes", "1000")[0] == 0
        assert raw.produce("limited", record)["error_code"] == Code.MESSAGE_TOO_LARGE
        assert change(raw, BROKER, "0", "log.cleanup.policy", "compact", APPEND)[0] == 0
        assert shown(raw, TOPIC, "limited", "cleanup.policy")[0] == "compact,delete"
        assert raw.produce("limited", batch.encode(None, [b"v"], timestamps=1))["error_code"] == Code.INVALID_RECORD
        assert change(raw, BROKER, "0", "log.cleanup.policy", "compact", SUBTRACT)[0] == 0
        assert raw.produce("limited", batch.encode(None, [b"v"], timestamps=1))["error_code"] == 0


def test_how_often_is_compacted(broker: BrokerProcess) -> None:
    create(broker, "compacted", cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0")
    with Raw(broker.kafka) as raw, Peer(broker.address) as peer:
        for number in range(20):
            raw.produce("compacted", batch.encode([b"k"], [b"%0200d" % number], timestamps=1))
        assert shown(raw, BROKER, "0", "log.cleaner.backoff.ms") == (str(HOUR), STATIC)
        before = peer.describe("compacted")["partitions"][0]["size"]
        assert change(raw, BROKER, "", "log.cleaner.backoff.ms", "1")[0] == 0
        wait_until(lambda: peer.describe("compacted")["partitions"][0]["size"] < before, "compaction")


def test_how_many_may_connect(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw:
        assert change(raw, BROKER, "", "max.connections", "100")[0] == 0
        with ExitStack() as crowd:
            for _ in range(99):
                crowd.enter_context(Peer(broker.address)).ask(m.Ping(), m.Pong)
            with pytest.raises((Gone, KrappyError)), Peer(broker.address) as peer:
                peer.topics()
        assert change(raw, BROKER, "", "max.connections", "10000")[0] == 0
        with Peer(broker.address) as peer:
            assert peer.topics() == {}


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("num.partitions", "5", "Cannot update these configs dynamically: num.partitions"),
        ("no.such.setting", "5", "Cannot update these configs dynamically"),
        ("log.retention.ms", "soon", "whole number"),
        ("max.connections", "0", "at least 1"),
        ("max.connections", "99", "at least 100"),
        ("max.connections.per.ip", "9", "at least 10"),
        ("log.cleanup.policy", "compact", "'tableless' could not have these defaults"),
    ],
)
def test_changes_that_are_refused(broker: BrokerProcess, setting: str, value: str, said: str) -> None:
    create(broker, "tableless", view_enable="false")
    with Raw(broker.kafka) as raw:
        for name in ("0", ""):
            code, text = change(raw, BROKER, name, setting, value)
            assert (code, said in text) == (Code.INVALID_REQUEST, True), text
        assert describe(raw, BROKER, "") == {}
        assert describe(raw, BROKER, "0", "num.partitions")["num.partitions"]["read_only"]


def test_a_replacing_change_takes_the_others_back(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw:
        change(raw, BROKER, "", "log.retention.ms", "7")
        config = {"name": "background.threads", "value": "9"}
        resource = {"resource_type": BROKER, "resource_name": "", "configs": [config]}
        for only_asking, expected in ((True, {"log.retention.ms": "7"}), (False, {"background.threads": "9"})):
            raw.ask(ApiKey.ALTER_CONFIGS, {"resources": [resource], "validate_only": only_asking})
            assert {name: each["value"] for name, each in describe(raw, BROKER, "").items()} == expected


# --- groups

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def joined(raw: Raw, group: str) -> dict[str, Any]:
    body = {
        "group_id": group,
        "member_id": "one",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body)


def test_the_settings_of_a_group(broker: BrokerProcess) -> None:
    with Raw(broker.kafka) as raw:
        raw.make("t")
        assert shown(raw, GROUP, "g", SESSION) == ("45000", DEFAULT)
        assert change(raw, GROUP, "g", HEARTBEAT, "77")[0] == 0
        assert change(raw, GROUP, "g", SESSION, "50000")[0] == 0
        assert shown(raw, GROUP, "g", SESSION) == ("50000", OF_GROUP)
        listed = raw.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [GROUP]})["config_resources"]
        assert listed == [{"resource_name": "g", "resource_type": GROUP}]
        assert joined(raw, "g")["heartbeat_interval_ms"] == 77
        assert joined(raw, "other")["heartbeat_interval_ms"] == 5000
    assert broker.stop() == 0
    broker.start()
    with Raw(broker.kafka) as raw:
        assert shown(raw, GROUP, "g", HEARTBEAT) == ("77", OF_GROUP)
        beat = {"group_id": "g", "member_id": "one", "member_epoch": 1}
        told = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat)
        assert told["heartbeat_interval_ms"] == 77
        assert change(raw, GROUP, "g", SESSION, "100")[0] == 0
        again = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, beat | {"member_epoch": told["member_epoch"]})
        assert again["error_code"] == 0  # if it was refused, the session would stay at the 50 s of before

        def state() -> str:
            [found] = raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["g"]})["groups"]
            return str(found["group_state"])

        wait_until(lambda: state() == "Empty", "the member's session to end")
        for setting in (SESSION, HEARTBEAT):
            assert change(raw, GROUP, "g", setting, None, DELETE)[0] == 0
        assert raw.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [GROUP]})["config_resources"] == []


@pytest.mark.parametrize(
    ("group", "setting", "value", "code"),
    [
        ("", SESSION, "50000", Code.INVALID_REQUEST),
        ("g", "retention.ms", "50000", Code.INVALID_CONFIG),
        ("g", SESSION, "soon", Code.INVALID_CONFIG),
        ("g", SESSION, "0", Code.INVALID_CONFIG),
        ("g", SESSION, "5000", Code.INVALID_CONFIG),  # it is not longer than the interval between heartbeats
        ("g", HEARTBEAT, "45000", Code.INVALID_CONFIG),
    ],
)
def test_settings_of_groups_that_are_refused(
    broker: BrokerProcess, group: str, setting: str, value: str, code: Code
) -> None:
    with Raw(broker.kafka) as raw:
        found, text = change(raw, GROUP, group, setting, value)
        assert found == code
        assert text
