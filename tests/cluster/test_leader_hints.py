"""A broker that refuses a client because it does not lead the partition says who does (KIP-951)."""

from __future__ import annotations

from functools import partial
from typing import Any

from confluent_kafka.admin import NewTopic

from krappy.wire.kafka import ApiKey, Code
from tests.batches import Row, encode_rows
from tests.cluster.brokers import ClusterProcesses
from tests.kafka.raw import Raw, fetch, produce
from tests.process import wait_until

NONE = {"leader_id": -1, "leader_epoch": -1}


def address(cluster: ClusterProcesses, id: int) -> str:
    return str(cluster.brokers[id].settings["listen_kafka"])


def ask_both(raw: Raw, id: bytes, **more: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(partition, endpoints) of the answer to Produce, and of the answer to Fetch, both in the newest version."""
    body = produce("t", encode_rows([Row(None, b"x")]))
    body["topic_data"][0]["topic_id"] = id
    produced = raw.ask(ApiKey.PRODUCE, body)
    fetched = raw.ask(ApiKey.FETCH, fetch([(id, 0, 0)], **more))
    return [
        (produced["responses"][0]["partition_responses"][0], produced["node_endpoints"]),
        (fetched["responses"][0]["partitions"][0], fetched["node_endpoints"]),
    ]


def row_of(fetched: dict[str, Any]) -> dict[str, Any]:
    """The only partition of an answer to Fetch."""
    [topic] = fetched["responses"]
    [row] = topic["partitions"]
    return dict(row)


def test_the_leader_is_named_with_its_address(cluster: ClusterProcesses) -> None:
    [made] = cluster.admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])]).values()
    made.result(30)
    cluster.until_in_sync("t")
    with Raw(address(cluster, 3)) as raw:
        id = raw.topic_id("t")

        def told(leader: int) -> None:
            for row, nodes in ask_both(raw, id):
                assert row["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
                assert row["current_leader"]["leader_id"] == leader
                host, _, port = address(cluster, leader).rpartition(":")
                assert nodes == [{"node_id": leader, "host": host, "port": int(port), "rack": None}]

        told(1)
        before = ask_both(raw, id)[0][0]["current_leader"]["leader_epoch"]
        assert before == cluster_epoch(raw)
        cluster.brokers[1].kill()
        wait_until(lambda: ask_both(raw, id)[0][0]["current_leader"]["leader_id"] == 2, "broker 2 leads")
        told(2)
        epoch = ask_both(raw, id)[0][0]["current_leader"]["leader_epoch"]
        assert epoch > before
        with Raw(address(cluster, 2)) as leader:
            ask = partial(leader.ask, ApiKey.FETCH, fetch([(id, 0, 0)], current_leader_epoch=before))
            wait_until(lambda: row_of(ask())["error_code"] == Code.FENCED_LEADER_EPOCH, "broker 2 has taken the lead")
            fenced = ask()
        row = row_of(fenced)
        assert row["current_leader"] == {"leader_id": 2, "leader_epoch": epoch}
        assert [each["node_id"] for each in fenced["node_endpoints"]] == [2]
        cluster.brokers[2].kill()
        wait_until(lambda: ask_both(raw, id)[0][0]["current_leader"] == NONE, "nobody leads")
        assert all(row["current_leader"] == NONE and not nodes for row, nodes in ask_both(raw, id))


def cluster_epoch(raw: Raw) -> int:
    [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})["topics"]
    return int(topic["partitions"][0]["leader_epoch"])


def test_the_leader_is_named_only_where_the_client_is_wrong(cluster: ClusterProcesses) -> None:
    """The leader is not named in its own answers, nor for partitions that do not exist, nor in versions without a field
    for it."""
    [made] = cluster.admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])]).values()
    made.result(30)
    cluster.until_in_sync("t")
    with Raw(address(cluster, 1)) as raw:
        wait_until(lambda: not any(row["error_code"] for row, _ in ask_both(raw, raw.topic_id("t"))), "broker 1 leads")
        assert all(row["current_leader"] == NONE and not nodes for row, nodes in ask_both(raw, raw.topic_id("t")))
    assert cluster.partitions("t")[0].leader == 1, "all know it"
    with Raw(address(cluster, 3)) as raw:
        id = raw.topic_id("t")
        assert raw.produce("t", encode_rows([Row(None, b"x")]), version=9)["current_leader"] == NONE
        assert raw.produce("t", encode_rows([Row(None, b"x")]), version=10)["current_leader"]["leader_id"] == 1
        assert raw.ask(ApiKey.FETCH, fetch([(id, 0, 0)]), 15)["responses"][0]["partitions"][0]["current_leader"] == NONE
        beyond = raw.ask(ApiKey.FETCH, fetch([(id, 7, 0)]))
        assert beyond["responses"][0]["partitions"][0]["current_leader"] == NONE
        assert not beyond["node_endpoints"]


def test_whoever_compares_replicas_reads_from_followers(cluster: ClusterProcesses) -> None:
    """kafka-replica-verification.sh does so, with the replica id -2. It gets what is committed."""
    [made] = cluster.admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])]).values()
    made.result(30)
    cluster.until_in_sync("t")
    with Raw(address(cluster, 1)) as raw:
        wait_until(lambda: raw.produce("t", encode_rows([Row(None, b"x")]))["error_code"] == Code.NONE, "it is written")
    comparing = {"replica_id": -2, "replica_epoch": -1}

    def read(id: int) -> dict[str, Any]:
        with Raw(address(cluster, id)) as raw:
            # The tool of Kafka 4.3 does not ask which versions the broker supports.
            answer = raw.ask(ApiKey.FETCH, fetch([(raw.topic_id("t"), 0, 0)], replica_state=comparing), 18)
        row: dict[str, Any] = answer["responses"][0]["partitions"][0]
        return row

    wait_until(lambda: len(read(2)["records"] or b"") > 0, "the follower knows that it is committed")
    assert bytes(read(2)["records"]) == bytes(read(1)["records"])
    assert read(3)["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
