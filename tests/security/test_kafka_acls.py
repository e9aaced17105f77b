"""CreateAcls, DescribeAcls and DeleteAcls, and what they do to requests, over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from krappy import errors
from krappy.clients.acls import AclInfo
from krappy.core.security.acl import Acl
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.records import batch
from krappy.wire.kafka import RANGES, ApiKey, Code
from tests.kafka.raw import Raw, fetch
from tests.process import krappy
from tests.security.guarded import NOBODY, Guarded, filtered, rule

ONE = batch.encode([b"k"], [b"v"], timestamps=1_000)


def versions(key: ApiKey) -> range:
    low, high = RANGES[key]
    return range(low, high + 1)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_an_acl_is_made_shown_and_taken_away(guarded: Guarded, version: int) -> None:
    made = rule(Resource.TOPIC, f"v{version}", Op.READ, principal="User:ada", host="10.0.0.1", deny=True, prefixed=True)
    ask = guarded.admin.ask
    for _ in range(2):  # the second time the ACL is there already
        assert ask(ApiKey.CREATE_ACLS, {"creations": [made]}, version)["results"][0]["error_code"] == 0
    only = filtered(resource_name_filter=f"v{version}")
    entry = {"principal": "User:ada", "host": "10.0.0.1", "operation": Op.READ, "permission_type": 2}
    answer = ask(ApiKey.DESCRIBE_ACLS, only, version)
    assert answer["resources"] == [
        {"resource_type": 2, "resource_name": f"v{version}", "pattern_type": 4, "acls": [entry]}
    ]
    [deleted] = ask(ApiKey.DELETE_ACLS, {"filters": [only]}, version)["filter_results"]
    [match] = deleted["matching_acls"]
    assert deleted["error_code"] == match["error_code"] == 0
    assert match["principal"] == "User:ada"
    assert ask(ApiKey.DESCRIBE_ACLS, only, version)["resources"] == []


def test_acls_that_can_not_be_are_refused_and_the_others_made(guarded: Guarded) -> None:
    good = rule(Resource.TOPIC, "good", Op.READ)
    bad = [
        {**good, "resource_type": 1},
        {**good, "resource_type": 99},
        {**good, "resource_pattern_type": 2},
        {**good, "operation": 1},
        {**good, "permission_type": 1},
        {**good, "principal": "ada"},
        {**good, "resource_name": ""},
        {**good, "resource_type": 4},
    ]
    results = guarded.admin.ask(ApiKey.CREATE_ACLS, {"creations": [*bad, good]})["results"]
    assert [each["error_code"] for each in results] == [Code.INVALID_REQUEST] * len(bad) + [0]
    only = filtered(resource_name_filter="good")
    assert len(guarded.admin.ask(ApiKey.DESCRIBE_ACLS, only)["resources"]) == 1
    guarded.take_away()


@pytest.mark.parametrize("host", ["10.0.0.0/8", "localhost", " 10.0.0.7", "10.0.0.07", "[2001:db8::1]", "10.0.0.*"])
def test_a_host_that_no_peer_has_is_refused(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """An ACL with such a host would deny nothing, although its maker thinks that it does. An ACL that is already stored
    can be shown and removed."""
    deny = rule(Resource.TOPIC, "hosts", Op.READ, host=host, deny=True)
    [told] = guarded.admin.ask(ApiKey.CREATE_ACLS, {"creations": [deny]})["results"]
    assert told["error_code"] == Code.INVALID_REQUEST
    assert f"'{host}' is no IP address" in told["error_message"]
    native = AclInfo("topic", "hosts", "User:ada", "read", "deny", host=host)
    with guarded.broker.connect() as client, pytest.raises(errors.InvalidRequest, match="is no IP address"):
        client.add_acls([native])
    command = ("acl", "add", "ada", "-o", "read", "--topic", "hosts", "--deny", "--host", host)
    done = krappy(*command, "--address", guarded.broker.address)
    assert done.returncode
    assert b"is no IP address" in done.stderr
    only = filtered(resource_name_filter="hosts")
    assert guarded.admin.ask(ApiKey.DESCRIBE_ACLS, only)["resources"] == []
    with monkeypatch.context() as before:
        before.setattr(Acl, "check", lambda self: None)
        guarded.allow(deny)
    [stored] = guarded.admin.ask(ApiKey.DESCRIBE_ACLS, only)["resources"]
    assert [each["host"] for each in stored["acls"]] == [host]
    [deleted] = guarded.admin.ask(ApiKey.DELETE_ACLS, {"filters": [{**only, "host_filter": host}]})["filter_results"]
    assert [each["error_code"] for each in deleted["matching_acls"]] == [0]
    assert guarded.admin.ask(ApiKey.DESCRIBE_ACLS, only)["resources"] == []


def test_who_may_not_is_refused(guarded: Guarded) -> None:
    with guarded.kafka(NOBODY) as raw:
        answer = raw.ask(ApiKey.DESCRIBE_ACLS, filtered())
        assert (answer["error_code"], answer["resources"]) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])
        [made] = raw.ask(ApiKey.CREATE_ACLS, {"creations": [rule(Resource.TOPIC, "t", Op.READ)]})["results"]
        assert made["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
        [deleted] = raw.ask(ApiKey.DELETE_ACLS, {"filters": [filtered()]})["filter_results"]
        assert (deleted["error_code"], deleted["matching_acls"]) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])
    assert len(guarded.admin.ask(ApiKey.DESCRIBE_ACLS, filtered())["resources"]) >= 4


def test_produce_and_fetch(guarded: Guarded) -> None:
    guarded.admin.make("pf")
    with guarded.kafka() as raw:
        assert raw.produce("pf", ONE)["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        guarded.allow(rule(Resource.TOPIC, "pf", Op.WRITE))
        assert raw.produce("pf", ONE)["error_code"] == 0
        assert raw.fetch("pf", 0)["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        guarded.allow(rule(Resource.TOPIC, "p", Op.READ, prefixed=True))
        assert raw.values("pf") == [b"v"]
        guarded.allow(rule(Resource.TOPIC, "*", Op.READ, deny=True))
        assert raw.fetch("pf", 0)["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert raw.produce("pf", ONE)["error_code"] == 0
    guarded.take_away()


def test_who_has_read_a_topic_by_its_id_is_told_that_the_right_is_gone(guarded: Guarded) -> None:
    """Whether the topic is still there or not. Others are told that the id is unknown."""
    id = guarded.admin.make("read-once")
    deleted = {"topics": [{"name": "read-once", "topic_id": bytes(16)}], "timeout_ms": 10_000}
    newest = RANGES[ApiKey.FETCH][1]

    def fetched(raw: Raw) -> int:
        [answer] = raw.ask(ApiKey.FETCH, fetch([(id, 0, 0)]), newest)["responses"]
        return int(answer["partitions"][0]["error_code"])

    with guarded.kafka() as raw, guarded.kafka() as other:
        assert fetched(raw) == Code.UNKNOWN_TOPIC_ID
        guarded.allow(rule(Resource.TOPIC, "read-once", Op.READ))
        assert fetched(raw) == 0
        guarded.take_away()
        assert (fetched(raw), fetched(other)) == (Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_ID)
        [gone] = guarded.admin.ask(ApiKey.DELETE_TOPICS, deleted)["responses"]
        assert gone["error_code"] == 0
        assert (fetched(raw), fetched(other)) == (Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_ID)
        guarded.allow(rule(Resource.TOPIC, "read-once", Op.READ))
        assert fetched(raw) == Code.UNKNOWN_TOPIC_ID
    guarded.take_away()


def test_a_topic_is_shown_to_those_who_may_describe_it(guarded: Guarded) -> None:
    id = guarded.admin.make("shown")
    with guarded.kafka() as raw:
        ask = {"topics": None}
        assert raw.ask(ApiKey.METADATA, ask)["topics"] == []
        [named] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "shown"}]})["topics"]
        assert named["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        [by_id] = raw.ask(ApiKey.METADATA, {"topics": [{"name": None, "topic_id": id}]})["topics"]
        assert (by_id["error_code"], by_id["name"]) == (Code.UNKNOWN_TOPIC_ID, None)
        guarded.allow(rule(Resource.TOPIC, "shown", Op.READ))
        assert [each["name"] for each in raw.ask(ApiKey.METADATA, ask)["topics"]] == ["shown"]
        asked = {"topics": [{"name": None, "topic_id": id}], "include_topic_authorized_operations": True}
        [by_id] = raw.ask(ApiKey.METADATA, asked)["topics"]
        assert (by_id["error_code"], by_id["name"]) == (0, "shown")
        assert by_id["topic_authorized_operations"] == (1 << Op.READ) + (1 << Op.DESCRIBE)
    guarded.take_away()


def test_a_topic_is_made_by_those_who_may(guarded: Guarded) -> None:
    made = {"topics": [{"name": "made", "num_partitions": 1, "replication_factor": 1}]}
    with guarded.kafka() as raw:
        [refused] = raw.ask(ApiKey.CREATE_TOPICS, made)["topics"]
        assert refused["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        guarded.allow(rule(Resource.TOPIC, "made", Op.DESCRIBE))
        [asked] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "made"}]})["topics"]
        assert asked["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        guarded.allow(rule(Resource.TOPIC, "made", Op.CREATE))
        [there] = raw.ask(ApiKey.CREATE_TOPICS, made)["topics"]
        assert there["error_code"] == 0
        assert there["topic_config_error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.CREATE))
        other = {"topics": [{"name": "other", "num_partitions": 1, "replication_factor": 1}]}
        assert raw.ask(ApiKey.CREATE_TOPICS, other)["topics"][0]["error_code"] == 0
    guarded.take_away()


def test_acls_stay_over_a_restart_and_hosts_tell_apart(guarded: Guarded) -> None:
    """The broker of these tests was started again after its first ACLs were made."""
    found = guarded.admin.ask(ApiKey.DESCRIBE_ACLS, filtered(host_filter="127.0.0.1"))["resources"]
    assert {each["resource_type"] for each in found} == {2, 3, 4, 5}


def test_a_pattern_matches_what_its_member_may_describe(guarded: Guarded) -> None:
    """The broker resolves the pattern (KIP-848), and resolves it again when the ACLs change."""
    ids = {name: guarded.admin.make(name) for name in ("rx-1", "rx-2")}
    guarded.allow(rule(Resource.GROUP, "rx", Op.READ), rule(Resource.TOPIC, "rx-1", Op.DESCRIBE))
    with guarded.kafka() as raw:
        member, epoch, assigned = "m", 0, set[bytes]()

        def beat(**more: object) -> None:
            nonlocal epoch
            who = {"group_id": "rx", "member_id": member, "member_epoch": epoch, "topic_partitions": None}
            answer = raw.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, {**who, "subscribed_topic_names": None, **more})
            assert answer["error_code"] == 0, answer
            epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                assigned.clear()
                assigned.update(each["topic_id"] for each in answer["assignment"]["topic_partitions"])

        beat(subscribed_topic_regex="rx-.*", rebalance_timeout_ms=60_000, topic_partitions=[])
        assert assigned == {ids["rx-1"]}
        guarded.allow(rule(Resource.TOPIC, "rx-2", Op.READ))
        beat(topic_partitions=[{"topic_id": ids["rx-1"], "partitions": [0]}])
        beat(topic_partitions=[{"topic_id": ids["rx-1"], "partitions": [0]}])
        assert assigned == set(ids.values())
        guarded.allow(rule(Resource.TOPIC, "rx-1", Op.DESCRIBE, deny=True))
        beat(topic_partitions=[{"topic_id": id, "partitions": [0]} for id in ids.values()])
        assert assigned == {ids["rx-2"]}
    guarded.take_away()


@pytest.mark.parametrize("topics", [1, 300], ids=["few", "many"])  # many are looked at in several turns
def test_who_may_not_use_the_group_is_told_that_instead_of_something_of_its_topics(
    guarded: Guarded, topics: int
) -> None:
    """As in Kafka: Java's consumers name in the error what the client has no right to."""
    position = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    asked = {"group_id": "not-his", "topics": [{"name": f"nor-{at}", "partitions": [position]} for at in range(topics)]}
    transactional = {"transactional_id": "not-his", "producer_id": 1, "producer_epoch": 0}

    def codes(key: ApiKey, version: int, **more: Any) -> set[int]:
        told = raw.ask(key, {**asked, **more}, version)["topics"]
        return {each["error_code"] for topic in told for each in topic["partitions"]}

    with guarded.kafka() as raw:
        assert codes(ApiKey.OFFSET_COMMIT, 8) == {Code.GROUP_AUTHORIZATION_FAILED}
        assert codes(ApiKey.TXN_OFFSET_COMMIT, 3, **transactional) == {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        guarded.allow(rule(Resource.TRANSACTIONAL_ID, "not-his", Op.WRITE))
        assert codes(ApiKey.TXN_OFFSET_COMMIT, 3, **transactional) == {Code.GROUP_AUTHORIZATION_FAILED}
        guarded.allow(rule(Resource.GROUP, "not-his", Op.READ))
        assert codes(ApiKey.OFFSET_COMMIT, 8) == {Code.TOPIC_AUTHORIZATION_FAILED}
        assert codes(ApiKey.TXN_OFFSET_COMMIT, 3, **transactional) == {Code.TOPIC_AUTHORIZATION_FAILED}
    guarded.take_away()


def test_who_may_describe_the_cluster_is_told_all_groups(guarded: Guarded) -> None:
    """As in Kafka: a tool that lists groups needs no right to each of them. It needs one to describe them."""
    named = {"group_id": "listed", "generation_id_or_member_epoch": -1, "topics": []}
    guarded.admin.ask(ApiKey.OFFSET_COMMIT, {**named, "topics": [_position(guarded.admin.make("listed-t"))]})
    with guarded.kafka() as raw:

        def listed() -> set[str]:
            return {each["group_id"] for each in raw.ask(ApiKey.LIST_GROUPS, {})["groups"]}

        assert "listed" not in listed()
        guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE))
        assert "listed" in listed()
        [told] = raw.ask(ApiKey.DESCRIBE_GROUPS, {"groups": ["listed"]})["groups"]
        assert told["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
    guarded.take_away()


def _position(topic: bytes) -> dict[str, object]:
    return {"topic_id": topic, "partitions": [{"partition_index": 0, "committed_offset": 0}]}


def test_a_hanging_transaction_is_aborted_by_who_may_alter_the_cluster(guarded: Guarded) -> None:
    """As kafka-transactions.sh asks for it (KIP-664)."""
    guarded.admin.make("hanging")
    topics = [{"name": "hanging", "partition_indexes": [0]}]
    aborted = {"producer_id": 1 << 40, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    with guarded.kafka() as raw:
        for allowed in (Op.ALTER_CONFIGS, Op.ALTER, Op.CLUSTER_ACTION):
            guarded.allow(rule(Resource.CLUSTER, CLUSTER_NAME, allowed))
            [told] = raw.ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [{**aborted, "topics": topics}]})["markers"]
            [[row]] = [each["partitions"] for each in told["topics"]]
            denied = row["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
            assert denied == (allowed is Op.ALTER_CONFIGS)
            guarded.take_away()


def test_a_reassignment_that_is_denied_has_an_answer_for_each_partition(guarded: Guarded) -> None:
    """Else Java's clients tell of an answer that is too short, and of no right that lacks."""
    parts = [{"partition_index": index, "replicas": [0]} for index in (0, 1)]
    with guarded.kafka() as raw:
        told = raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": [{"name": "moved", "partitions": parts}]})
    assert told["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
    [[first, second]] = [each["partitions"] for each in told["responses"]]
    assert first["error_code"] == second["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED
