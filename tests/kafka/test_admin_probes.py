"""What admin tools and web consoles, and clients that are set to authenticate, ask of any broker, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.records import batch
from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.kafka.raw import Raw
from tests.process import BrokerProcess


def versions(key: ApiKey) -> range:
    low, high = RANGES[key]
    return range(low, high + 1)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_what_partitions_take_on_the_disk(raw: Raw, broker: BrokerProcess, version: int) -> None:
    raw.make("big")
    raw.make("small")
    raw.produce("big", batch.encode([b"k"], [b"v" * 5000], timestamps=1_000))

    def ask(topics: list[dict[str, Any]] | None) -> tuple[dict[str, Any], dict[str, dict[int, int]]]:
        answer = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": topics}, version)
        assert answer["error_code"] == 0
        [found] = answer["results"]
        sizes = {
            topic["name"]: {each["partition_index"]: each["partition_size"] for each in topic["partitions"]}
            for topic in found["topics"]
        }
        return found, sizes

    found, sizes = ask(None)
    assert found["error_code"] == 0
    assert found["log_dir"] == str(broker.data / "topics")
    assert sizes["big"][0] > 5000
    assert sizes["small"] == {0: 0}
    if version >= 4:
        assert 0 < found["usable_bytes"] < found["total_bytes"]
    some = [{"topic": "small", "partitions": [0, 9]}, {"topic": "absent", "partitions": [0]}]
    assert ask(some)[1] == {"small": {0: 0}}
    assert ask([])[1] == {}
    assert ask([{"topic": "big", "partitions": []}])[1] == {}


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
def test_there_are_no_acls(raw: Raw, version: int) -> None:
    anything = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
    answer = raw.ask(ApiKey.DESCRIBE_ACLS, anything, version)
    assert (answer["error_code"], answer["resources"]) == (Code.SECURITY_DISABLED, [])
    assert "No Authorizer" in answer["error_message"]


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_no_acls_can_be_made_or_taken_away(raw: Raw, version: int) -> None:
    some = [{"resource_type": 2, "resource_name": "t", "principal": "User:ada", "host": "*", "operation": 3}] * 2
    made = raw.ask(ApiKey.CREATE_ACLS, {"creations": some}, version)["results"]
    gone = raw.ask(ApiKey.DELETE_ACLS, {"filters": [{"resource_type_filter": 1}]}, version)["filter_results"]
    assert [len(made), len(gone)] == [2, 1]
    for answer in (*made, *gone):
        assert answer["error_code"] == Code.SECURITY_DISABLED
        assert "No Authorizer" in answer["error_message"]


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CLIENT_QUOTAS))
def test_a_quota_is_set_and_removed(raw: Raw, version: int) -> None:
    who = [{"entity_type": "user", "entity_name": None}]
    for remove in (False, True):
        change = {"key": "producer_byte_rate", "value": 1e12, "remove": remove}
        asked = {"entries": [{"entity": who, "ops": [change]}], "validate_only": False}
        [answer] = raw.ask(ApiKey.ALTER_CLIENT_QUOTAS, asked, version)["entries"]
        assert answer == {"error_code": 0, "error_message": None, "entity": who}


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
def test_features_are_at_the_level_there_is(raw: Raw, version: int) -> None:
    told = raw.ask(ApiKey.API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"})
    levels = {each["name"]: each["max_version"] for each in told["supported_features"]}
    assert levels == {each["name"]: each["max_version_level"] for each in told["finalized_features"]}
    assert levels["group.version"] == 1

    def update(**levels: int) -> list[int]:
        updates = [{"feature": name.replace("_", "."), "max_version_level": level} for name, level in levels.items()]
        answer = raw.ask(ApiKey.UPDATE_FEATURES, {"feature_updates": updates}, version)
        codes = [answer["error_code"]]
        assert (answer["error_code"] == 0) == (answer["error_message"] is None)
        return codes if version >= 2 else codes + [each["error_code"] for each in answer["results"]]

    wrong = Code.INVALID_UPDATE_VERSION
    assert update(group_version=1) == ([0] if version >= 2 else [0, 0])
    for levels in ({"group_version": 2}, {"group_version": 0}, {"no_such": 1}):
        assert update(**levels) == [wrong]


def test_no_partition_moves(raw: Raw) -> None:
    for topics in (None, [{"name": "any", "partition_indexes": [0]}]):
        answer = raw.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": topics})
        assert (answer["error_code"], answer["topics"]) == (0, [])


def test_a_partition_may_be_told_to_stay_and_not_to_go(raw: Raw) -> None:
    raw.make("moved")
    [node] = raw.ask(ApiKey.METADATA, {"topics": []})["brokers"]
    here = node["node_id"]

    def ask(name: str, index: int, replicas: list[int] | None) -> int:
        partition = {"partition_index": index, "replicas": replicas}
        answer = raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": [{"name": name, "partitions": [partition]}]})
        assert answer["error_code"] == 0
        [topic] = answer["responses"]
        [found] = topic["partitions"]
        assert (topic["name"], found["partition_index"]) == (name, index)
        assert (found["error_message"] is None) == (found["error_code"] == 0)
        return int(found["error_code"])

    assert ask("moved", 0, [here]) == 0
    for impossible in ([], [here, here], [here + 1], [here, here + 1]):
        assert ask("moved", 0, impossible) == Code.INVALID_REPLICA_ASSIGNMENT
    assert ask("moved", 0, None) == Code.NO_REASSIGNMENT_IN_PROGRESS
    for name, index in (("moved", 1), ("moved", -1), ("absent", 0)):
        assert ask(name, index, [here]) == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_REPLICA_LOG_DIRS))
def test_a_replica_may_be_told_to_stay_in_its_folder(raw: Raw, broker: BrokerProcess, version: int) -> None:
    raw.make("kept")
    here = str(broker.data / "topics")

    def ask(path: str, name: str, *indexes: int) -> list[tuple[int, int]]:
        place = {"path": path, "topics": [{"name": name, "partitions": list(indexes)}]}
        [topic] = raw.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": [place]}, version)["results"]
        assert topic["topic_name"] == name
        return [(each["partition_index"], each["error_code"]) for each in topic["partitions"]]

    assert ask(here, "kept", 0, 1) == [(0, 0), (1, Code.UNKNOWN_TOPIC_OR_PARTITION)]
    assert ask(here, "absent", 0) == [(0, Code.UNKNOWN_TOPIC_OR_PARTITION)]
    assert ask("/elsewhere", "kept", 0) == [(0, Code.LOG_DIR_NOT_FOUND)]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLIENT_QUOTAS))
def test_nobody_has_a_quota(raw: Raw, version: int) -> None:
    components = [{"entity_type": kind, "match_type": 2, "match": None} for kind in ("user", "client-id", "ip")]
    for some in ([], components[:2], components[2:]):
        answer = raw.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": some, "strict": False}, version)
        assert (answer["error_code"], answer["entries"]) == (0, [])
    wrong = [{"entity_type": "planet", "match_type": 0, "match": "mars"}]
    answer = raw.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": wrong, "strict": True}, version)
    assert (answer["error_code"], answer["entries"]) == (Code.UNSUPPORTED_VERSION, None)
    assert "planet" in answer["error_message"]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_QUORUM))
def test_the_quorum_is_this_broker(raw: Raw, version: int) -> None:
    asked = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}, {"partition_index": 1}]},
        {"topic_name": "other", "partitions": [{"partition_index": 0}]},
    ]
    answer = raw.ask(ApiKey.DESCRIBE_QUORUM, {"topics": asked}, version)
    assert answer["error_code"] == 0
    (mine, second), (other,) = [topic["partitions"] for topic in answer["topics"]]
    assert (mine["error_code"], mine["leader_id"]) == (0, 0)
    assert [each["replica_id"] for each in mine["current_voters"]] == [0]
    assert [second["error_code"], other["error_code"]] == [Code.UNKNOWN_TOPIC_OR_PARTITION] * 2
    if version >= 2:
        assert [each["node_id"] for each in answer["nodes"]] == [0]


@pytest.mark.parametrize("version", versions(ApiKey.SASL_HANDSHAKE))
def test_there_is_no_sasl_handshake(raw: Raw, version: int) -> None:
    answer = raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, version)
    assert answer == {"error_code": Code.ILLEGAL_SASL_STATE, "mechanisms": []}
    assert raw.make("after-handshake")  # the connection can still be used


@pytest.mark.parametrize("version", versions(ApiKey.SASL_AUTHENTICATE))
def test_there_is_nothing_to_authenticate(raw: Raw, version: int) -> None:
    answer = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0user\0secret"}, version)
    assert answer["error_code"] == Code.ILLEGAL_SASL_STATE
    assert "PLAINTEXT" in answer["error_message"]
    assert answer["auth_bytes"] == b""


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_no_election_is_needed(raw: Raw, version: int) -> None:
    raw.make("elected")
    asked = [{"topic": "elected", "partitions": [0, 7]}, {"topic": "absent", "partitions": [0]}]
    answer = raw.ask(ApiKey.ELECT_LEADERS, {"topic_partitions": asked, "timeout_ms": 1000}, version)
    assert answer["error_code"] == 0
    assert [
        (topic["topic"], [(each["partition_id"], each["error_code"]) for each in topic["partition_result"]])
        for topic in answer["replica_election_results"]
    ] == [("elected", [(0, Code.ELECTION_NOT_NEEDED), (7, 3)]), ("absent", [(0, 3)])]
    every = raw.ask(ApiKey.ELECT_LEADERS, {"topic_partitions": None}, version)
    assert (every["error_code"], every["replica_election_results"]) == (0, [])


def test_nobody_has_credentials(raw: Raw) -> None:
    assert raw.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})["results"] == []
    answer = raw.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": [{"name": "ada"}]})
    assert answer["error_code"] == 0
    [one] = answer["results"]
    assert (one["user"], one["error_code"], one["credential_infos"]) == ("ada", Code.RESOURCE_NOT_FOUND, [])


def test_what_has_settings(raw: Raw) -> None:
    raw.make("listed")

    def ask(types: list[int], version: int = 1) -> tuple[int, set[tuple[str, int]]]:
        answer = raw.ask(ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": types}, version)
        return answer["error_code"], {(e["resource_name"], e["resource_type"]) for e in answer["config_resources"]}

    assert ask([], 0) == (0, set())  # client metrics
    code, found = ask([])
    assert code == 0
    assert {("listed", 2), ("0", 4)} <= found
    assert ask([4]) == (0, {("0", 4)})
    assert ask([16, 32]) == (0, set())
    assert ask([3]) == (Code.UNSUPPORTED_VERSION, set())


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_transactions_are_listed_and_described(raw: Raw, version: int) -> None:
    raw.make("txn")
    name, topics = f"t-{version}", [{"name": "txn", "partitions": [0]}]
    begun = raw.ask(ApiKey.INIT_PRODUCER_ID, {"transactional_id": name, "transaction_timeout_ms": 60_000})
    producer = {"producer_id": begun["producer_id"], "producer_epoch": begun["producer_epoch"]}

    def listed(**filters: Any) -> dict[str, str]:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = raw.ask(ApiKey.LIST_TRANSACTIONS, asked, version)
        assert answer["error_code"] == 0
        assert answer["unknown_state_filters"] == [s for s in asked["state_filters"] if s == "Asleep"]
        rows = [each for each in answer["transaction_states"] if each["transactional_id"] == name]
        assert all(each["producer_id"] == begun["producer_id"] for each in rows)
        return {each["transactional_id"]: each["transaction_state"] for each in rows}

    def described() -> dict[str, Any]:
        answer = raw.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name, "nobody", name]})
        known, unknown = answer["transaction_states"]
        assert (unknown["transactional_id"], unknown["error_code"]) == ("nobody", Code.TRANSACTIONAL_ID_NOT_FOUND)
        assert {key: known[key] for key in producer} == producer
        assert (known["error_code"], known["transaction_timeout_ms"]) == (0, 60_000)
        return dict(known)

    assert listed() == {name: "Empty"}
    assert described()["topics"] == []
    asked = {"transactional_id": name, "topics": topics, **producer}
    added = raw.ask(ApiKey.ADD_PARTITIONS_TO_TXN, {f"v3_and_below_{key}": value for key, value in asked.items()}, 3)
    [partition] = added["results_by_topic_v3_and_below"][0]["results_by_partition"]
    assert partition["partition_error_code"] == 0
    assert listed(state_filters=["Ongoing", "Asleep"]) == {name: "Ongoing"}
    assert listed(state_filters=["Asleep"]) == listed(state_filters=["Empty"]) == {}
    assert listed(producer_id_filters=[begun["producer_id"], 99]) == {name: "Ongoing"}
    assert listed(producer_id_filters=[99]) == {}
    if version >= 1:
        assert listed(duration_filter=600_000) == {}
    if version >= 2:
        assert listed(transactional_id_pattern=f"[st]-{version}|x") == {name: "Ongoing"}
        assert listed(transactional_id_pattern="t-") == {}  # a pattern matches whole ids
        assert listed(transactional_id_pattern="") == {name: "Ongoing"}
        wrong = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "("}
        code = raw.ask(ApiKey.LIST_TRANSACTIONS, wrong, version)["error_code"]
        assert code == Code.INVALID_REGULAR_EXPRESSION
    state = described()
    assert state["transaction_state"] == "Ongoing"
    assert state["transaction_start_time_ms"] > 0
    assert state["topics"] == [{"topic": "txn", "partitions": [0]}]


def test_everybody_may_do_everything(raw: Raw) -> None:
    """As by Kafka without an authorizer: the bits of AclOperation are told to those who ask."""
    on_topic, on_cluster, on_group, untold = 0x0DF8, 0x1FA0, 0x0D48, -(2**31)
    raw.make("free")
    topics = [{"name": "free"}]
    for asked, told in ((True, on_topic), (False, untold)):
        found = raw.ask(ApiKey.METADATA, {"topics": topics, "include_topic_authorized_operations": asked})
        assert found["topics"][0]["topic_authorized_operations"] == told
    for asked, told in ((True, on_cluster), (False, untold)):
        both = {"topics": [], "include_cluster_authorized_operations": asked}
        assert raw.ask(ApiKey.METADATA, both, 10)["cluster_authorized_operations"] == told
        assert raw.ask(ApiKey.DESCRIBE_CLUSTER, both)["cluster_authorized_operations"] == told
    for asked, told in ((True, on_group), (False, untold)):
        groups = {"groups": ["g"], "group_ids": ["g"], "include_authorized_operations": asked}
        assert raw.ask(ApiKey.DESCRIBE_GROUPS, groups, 5)["groups"][0]["authorized_operations"] == told
        assert raw.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, groups)["groups"][0]["authorized_operations"] == told
    [topic] = raw.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": topics})["topics"]
    assert topic["topic_authorized_operations"] == on_topic
