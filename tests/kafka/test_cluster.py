"""Which broker one talks to: ApiVersions, Metadata, FindCoordinator, DescribeCluster."""

from __future__ import annotations

import base64
import re

import pytest

from krappy.handlers.kafka import registry
from krappy.wire.kafka import RANGES, UUID_ZERO, ApiKey, Code, encode_request
from tests.kafka.raw import Raw, create
from tests.process import BrokerProcess


def test_what_is_advertised_is_what_the_codec_speaks(raw: Raw) -> None:
    answer = raw.ask(ApiKey.API_VERSIONS, {"client_software_name": "raw", "client_software_version": "1.0"})
    assert answer["error_code"] == 0
    served = {key["api_key"]: (key["min_version"], key["max_version"]) for key in answer["api_keys"]}
    assert served[ApiKey.METADATA] == (0, 13)
    for key, (low, high) in served.items():
        assert RANGES[ApiKey(key)][0] <= low <= high <= RANGES[ApiKey(key)][1]
    assert list(served) == sorted(served)
    assert served == {key: (low, high) for key, low, high in registry().ranges()}


@pytest.mark.parametrize("version", range(5))
def test_api_versions_in_each_version(raw: Raw, version: int) -> None:
    answer = raw.ask(
        ApiKey.API_VERSIONS, {"client_software_name": "raw", "client_software_version": "1"}, version=version
    )
    assert ApiKey.API_VERSIONS in [key["api_key"] for key in answer["api_keys"]]


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(raw: Raw) -> None:
    raw.send_bytes(b"\0\0\0\x0f" + b"\0\x12\0\x63" + b"\0\0\0\x07" + b"\0\x05hello")
    frame = bytes(raw.receive_frame())
    assert frame[:6] == b"\0\0\0\x07\0\x23"  # correlation id, error 35
    assert int.from_bytes(frame[6:10], "big") == len(list(registry().ranges()))
    assert raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]


@pytest.mark.parametrize("broken", [b"\xff" * 4, b"\0\0\0\x0a" + b"\x03\xe7" + bytes(8)], ids=["size", "api"])
def test_what_came_together_with_a_frame_that_can_not_be_read_is_answered(raw: Raw, broken: bytes) -> None:
    """It is answered before the connection ends; once, the answer was made and never sent."""
    raw.send_bytes(encode_request(ApiKey.METADATA, 12, 7, "raw", {"topics": []}) + broken)
    assert bytes(raw.receive_frame()[:4]) == b"\0\0\0\x07"
    assert raw.closed()


def test_a_client_names_its_software_properly(raw: Raw) -> None:
    answer = raw.ask(ApiKey.API_VERSIONS, {"client_software_name": "-", "client_software_version": "1"})
    assert answer["error_code"] == Code.INVALID_REQUEST


def test_metadata_of_very_many_partitions(raw: Raw, broker: BrokerProcess) -> None:
    """There are more than are described in one turn, and one topic ends where a turn does."""
    sizes = {"wide-0": 249, "wide-1": 1, "wide-2": 3}
    for name, size in sizes.items():
        create(broker, name, size)
    names = [*sizes, "nowhere", "wide-2", "wide-2"]
    request = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    for version in (4, 8, 12):
        answer = raw.ask(ApiKey.METADATA, request, version)
        assert [topic["name"] for topic in answer["topics"]] == [*sizes, "nowhere"], "each once"
        for topic in answer["topics"]:
            indexes = [partition["partition_index"] for partition in topic["partitions"]]
            assert indexes == list(range(sizes.get(topic["name"], 0)))
        everything = {topic["name"]: topic for topic in raw.ask(ApiKey.METADATA, {"topics": None}, version)["topics"]}
        assert {name: len(everything[name]["partitions"]) for name in sizes} == sizes


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_this_broker_as_leader_of_everything(raw: Raw, broker: BrokerProcess, version: int) -> None:
    raw.make("led")
    answer = raw.ask(ApiKey.METADATA, {"topics": [{"name": "led"}]}, version)
    (node,) = answer["brokers"]
    assert f"{node['host']}:{node['port']}" == broker.kafka
    (topic,) = answer["topics"]
    assert (topic["name"], topic["error_code"]) == ("led", 0)
    (partition,) = topic["partitions"]
    assert partition["leader_id"] == node["node_id"] == 0
    assert partition["replica_nodes"] == partition["isr_nodes"] == [0]
    assert partition["offline_replicas"] == []
    if version >= 1:
        assert answer["controller_id"] == 0
    if version >= 2:
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", answer["cluster_id"])
        assert len(base64.urlsafe_b64decode(answer["cluster_id"] + "==")) == 16
    if version >= 7:
        assert partition["leader_epoch"] == 0
    if version >= 10:
        assert topic["topic_id"] != UUID_ZERO


def test_all_topics_and_none(raw: Raw) -> None:
    raw.make("one")
    assert "one" in [topic["name"] for topic in raw.ask(ApiKey.METADATA, {"topics": None})["topics"]]
    assert "one" in [topic["name"] for topic in raw.ask(ApiKey.METADATA, {"topics": []}, version=0)["topics"]]
    assert raw.ask(ApiKey.METADATA, {"topics": []}, version=1)["topics"] == []


def test_a_topic_is_created_only_when_the_client_allows_it(raw: Raw) -> None:
    asked = {"topics": [{"name": "not-yet"}], "allow_auto_topic_creation": False}
    (topic,) = raw.ask(ApiKey.METADATA, asked)["topics"]
    assert (topic["error_code"], topic["partitions"]) == (Code.UNKNOWN_TOPIC_OR_PARTITION, [])
    (topic,) = raw.ask(ApiKey.METADATA, {**asked, "allow_auto_topic_creation": True})["topics"]
    assert topic["error_code"] == 0
    assert len(topic["partitions"]) == 1


def test_what_no_topic_can_be_called(raw: Raw) -> None:
    (good, bad) = raw.ask(ApiKey.METADATA, {"topics": [{"name": "good"}, {"name": "no/such"}]})["topics"]
    assert good["error_code"] == 0
    assert (bad["name"], bad["error_code"]) == ("no/such", Code.INVALID_TOPIC_EXCEPTION)


@pytest.mark.parametrize("name", [None, ""])  # Java's clients send an empty one
def test_a_topic_by_its_id(raw: Raw, name: str | None) -> None:
    uuid = raw.make("by-id")
    (found, unknown) = raw.ask(
        ApiKey.METADATA, {"topics": [{"name": name, "topic_id": uuid}, {"name": name, "topic_id": b"x" * 16}]}
    )["topics"]
    assert (found["name"], found["topic_id"], found["error_code"]) == ("by-id", uuid, 0)
    assert (unknown["error_code"], unknown["topic_id"]) == (Code.UNKNOWN_TOPIC_ID, b"x" * 16)
    assert unknown["name"] is None


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("kind", [0, 1])
def test_the_coordinator_of_everything_is_this_broker(raw: Raw, broker: BrokerProcess, version: int, kind: int) -> None:
    answer = raw.ask(ApiKey.FIND_COORDINATOR, {"key": "g", "coordinator_keys": ["g", "h"], "key_type": kind}, version)
    found = answer["coordinators"] if version >= 4 else [answer]
    for node in found:
        assert (node["error_code"], node["node_id"], f"{node['host']}:{node['port']}") == (0, 0, broker.kafka)
    if version >= 4:
        assert [node["key"] for node in found] == ["g", "h"]


def test_no_coordinator_for_what_is_not_served(raw: Raw) -> None:
    (node,) = raw.ask(ApiKey.FIND_COORDINATOR, {"coordinator_keys": ["s"], "key_type": 2})["coordinators"]
    assert (node["error_code"], node["node_id"]) == (Code.INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(raw: Raw, broker: BrokerProcess, version: int) -> None:
    answer = raw.ask(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": 1}, version)
    (node,) = answer["brokers"]
    assert (node["broker_id"], f"{node['host']}:{node['port']}", answer["controller_id"]) == (0, broker.kafka, 0)
    assert answer["cluster_id"] == raw.ask(ApiKey.METADATA, {"topics": []})["cluster_id"]


def test_a_broker_is_no_controller(raw: Raw) -> None:
    answer = raw.ask(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": 2})
    assert (answer["error_code"], answer["brokers"]) == (Code.MISMATCHED_ENDPOINT_TYPE, [])
