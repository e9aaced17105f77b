"""Kafka's internal topics as clients find them: they can be read, are empty, and nobody can change them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy.errors import InvalidTopic
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw
from tests.peer import Peer
from tests.process import BrokerProcess, Launcher, broker_process

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
BOTH = pytest.mark.parametrize("name", [OFFSETS, TRANSACTIONS])


def listed(raw: Raw) -> dict[str, bool]:
    """All topics, and whether they are internal."""
    paged = raw.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [], "response_partition_limit": 2000})["topics"]
    whole = raw.ask(ApiKey.METADATA, {"topics": None})["topics"]
    found = {topic["name"]: topic["is_internal"] for topic in whole}
    assert {topic["name"]: topic["is_internal"] for topic in paged} == found
    return found


@pytest.fixture
def fresh(tmp_path: Path, launcher: Launcher) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "data", launch=launcher, durability="os") as running:
        yield running


def test_they_are_listed_once_they_are_looked_for(fresh: BrokerProcess) -> None:
    with Raw(fresh.kafka) as raw:
        assert listed(raw) == {}
        for kind, seen in ((0, {OFFSETS: True}), (1, {OFFSETS: True, TRANSACTIONS: True})):
            raw.ask(ApiKey.FIND_COORDINATOR, {"key_type": kind, "coordinator_keys": ["any"]})
            assert listed(raw) == seen
        raw.make("mine")
        assert listed(raw) == {"mine": False, OFFSETS: True, TRANSACTIONS: True}
        commit = {"partition_index": 0, "committed_offset": 1}
        topics = [{"name": "mine", "partitions": [commit]}]
        raw.ask(ApiKey.OFFSET_COMMIT, {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}, 9)
        before = raw.topic_id(OFFSETS)
    assert fresh.stop() == 0
    fresh.start()
    with Raw(fresh.kafka) as raw:
        assert listed(raw) == {"mine": False, OFFSETS: True}, "a group is there"
        assert raw.topic_id(OFFSETS) == before
    with Peer(fresh.address) as peer:
        assert set(peer.topics()) == {"mine"}


@BOTH
def test_nobody_writes_to_them(raw: Raw, name: str) -> None:
    """kafka-transactions.sh find-hanging asks for the producers of every topic, and hangs if one is refused."""
    raw.ask(ApiKey.FIND_COORDINATOR, {"key_type": 1, "coordinator_keys": ["any"]})
    body = {"topics": [{"name": name, "partition_indexes": [0, 49, 50]}]}
    first, last, beyond = raw.ask(ApiKey.DESCRIBE_PRODUCERS, body)["topics"][0]["partitions"]
    assert (first["error_code"], first["active_producers"]) == (last["error_code"], []) == (Code.NONE, [])
    assert beyond["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


@BOTH
def test_they_are_read_and_empty(raw: Raw, name: str) -> None:
    uuid = raw.topic_id(name)
    [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"topic_id": uuid, "name": None}]})["topics"]
    assert (topic["name"], topic["is_internal"], len(topic["partitions"])) == (name, True, 50)
    for time in (-1, -2, -3, 0):
        asked = {"name": name, "partitions": [{"partition_index": 49, "timestamp": time}]}
        [found] = raw.ask(ApiKey.LIST_OFFSETS, {"replica_id": -1, "topics": [asked]})["topics"][0]["partitions"]
        assert (found["error_code"], found["offset"]) == (0, 0 if time in (-1, -2) else -1)
    got = raw.fetch(name, 0, 49)
    assert (got["error_code"], got["high_watermark"], bytes(got["records"])) == (0, 0, b"")
    assert raw.fetch(name, 0, 0, max_wait_ms=1)["error_code"] == 0
    assert raw.fetch(name, 1, 0)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    assert raw.fetch(name, 0, 50)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": None}
    [described] = raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})["results"]
    settings = {each["name"]: each["value"] for each in described["configs"]}
    assert (settings["cleanup.policy"], settings["segment.bytes"]) == ("compact", "104857600")


@BOTH
def test_they_cannot_be_changed(raw: Raw, broker: BrokerProcess, name: str) -> None:
    refused = Code.INVALID_TOPIC_EXCEPTION
    record = batch.encode([b"k"], [b"v"], timestamps=1)
    answer = raw.produce(name, record)
    assert (answer["error_code"], "internal" in answer["error_message"]) == (refused, True)

    def code(key: ApiKey, body: dict[str, Any], rows: str) -> int:
        [found] = raw.ask(key, {"timeout_ms": 1000, "validate_only": False, **body})[rows]
        return int(found["error_code"])

    new = {"name": name, "num_partitions": 1, "replication_factor": 1}
    assert code(ApiKey.CREATE_TOPICS, {"topics": [new]}, "topics") == Code.TOPIC_ALREADY_EXISTS
    assert code(ApiKey.DELETE_TOPICS, {"topics": [{"name": name}]}, "responses") == refused
    assert code(ApiKey.CREATE_PARTITIONS, {"topics": [{"name": name, "count": 60}]}, "results") == refused
    change = {"name": "retention.ms", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
    assert code(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]}, "responses") == refused
    deleted = {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}
    [topic] = raw.ask(ApiKey.DELETE_RECORDS, {"topics": [deleted]})["topics"]
    assert topic["partitions"][0]["error_code"] == refused
    with Peer(broker.address) as peer, pytest.raises(InvalidTopic):
        peer.ask(m.CreateTopic(name), m.TopicCreated)


def test_names_that_tools_take_for_the_same(raw: Raw, broker: BrokerProcess) -> None:
    """However a topic is made: by an admin's request, by a producer's, or by a native client's."""
    raw.make("alike.one_two")
    new = {"num_partitions": 1, "replication_factor": 1}
    for only_asking in (True, False):
        body = {"topics": [{"name": "alike_one.two", **new}], "timeout_ms": 1000, "validate_only": only_asking}
        [answer] = raw.ask(ApiKey.CREATE_TOPICS, body)["topics"]
        assert (answer["error_code"], answer["name"]) == (Code.INVALID_TOPIC_EXCEPTION, "alike_one.two")
        assert "alike.one_two" in answer["error_message"]
    [told] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "alike_one_two"}]})["topics"]
    assert told["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    with Peer(broker.address) as peer:
        with pytest.raises(InvalidTopic):
            peer.ask(m.CreateTopic("alike.one.two"), m.TopicCreated)
        with pytest.raises(InvalidTopic):
            peer.producer("alike_one_two")
        peer.ask(m.DeleteTopic("alike.one_two"), m.TopicDeleted)
        peer.ask(m.CreateTopic("alike.one.two"), m.TopicCreated)
