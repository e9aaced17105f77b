"""The audit log in a topic of a cluster: all brokers write to it, even if its leader dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy import blocking, errors
from krappy.core.security.audit import AUDITOR
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code
from tests.batches import Row, encode_rows
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.process import wait_until

TOPIC = "__krappy_audit"


@pytest.fixture
def cluster(tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, shared=shared_processes, audit_log=f"topic:{TOPIC}") as made:
        yield made


def connect(cluster: ClusterProcesses, id: int) -> blocking.Client:
    return blocking.connect(str(cluster.brokers[id].settings["listen_native"]), timeout=30)


def change(cluster: ClusterProcesses, id: int, name: str) -> None:
    """Lets one broker make a change that it tells in the audit log."""
    with connect(cluster, id) as client:
        client.security.alter_quotas({"producer_byte_rate": 1e9}, user=name)


def told(cluster: ClusterProcesses) -> list[str]:
    """The names of the changed things, as the topic has them."""
    with connect(cluster, cluster.running[0]) as client, client.consumer(TOPIC, end="now") as consumer:
        lines = [json.loads(event.value or b"") for event in consumer]
    assert not [line for line in lines if "left_out" in line]
    return [line["name"].removeprefix("user ") for line in lines if line["kind"] == "quota"]


def test_all_write_to_it_and_it_goes_on_without_its_leader(cluster: ClusterProcesses) -> None:
    for id in cluster.brokers:
        change(cluster, id, f"by-{id}")
    wait_until(lambda: cluster.topic(TOPIC) is not None, "there is the topic")
    wait_until(lambda: set(told(cluster)) == {"by-1", "by-2", "by-3"}, "each has written")
    wait_until(lambda: sorted(cluster.partitions(TOPIC)[0].replicas) == [1, 2, 3], "it is kept three times")
    cluster.until_in_sync(TOPIC)
    partition = cluster.partitions(TOPIC)[0]
    cluster.brokers[partition.leader].kill()
    survivors = cluster.running
    for id in survivors:
        change(cluster, id, f"without-{id}")
    cluster.until_known()
    wait_until(lambda: set(told(cluster)) >= {f"without-{id}" for id in survivors}, "the others go on")
    cluster.brokers[partition.leader].begin()
    cluster.brokers[partition.leader].ready()
    change(cluster, partition.leader, "back")
    wait_until(lambda: "back" in told(cluster), "it goes on, too")
    assert {f"by-{id}" for id in cluster.brokers} <= set(told(cluster))


def test_it_gets_its_replicas_although_one_broker_made_it(tmp_path: Path, shared_processes: SharedProcesses) -> None:
    shared = shared_processes
    cluster = ClusterProcesses(tmp_path, shared.zookeeper, 3, shared.launch, audit_log=f"topic:{TOPIC}")
    try:
        cluster.brokers[1].begin()
        cluster.brokers[1].ready()
        wait_until(lambda: cluster.topic(TOPIC) is not None, "the first broker makes it")
        assert {tuple(each.replicas) for each in cluster.partitions(TOPIC).values()} == {(1,)}
        for id in (2, 3):
            cluster.brokers[id].begin()
        wait_until(
            lambda: all(sorted(each.replicas) == [1, 2, 3] for each in cluster.partitions(TOPIC).values()),
            "the others have it, too",
        )
        cluster.until_in_sync(TOPIC)
    finally:
        cluster.kill()


def test_nobody_else_changes_it_at_any_broker(cluster: ClusterProcesses) -> None:
    change(cluster, 1, "first")
    wait_until(lambda: cluster.topic(TOPIC) is not None, "there is the topic")
    wait_until(lambda: told(cluster) == ["first"], "it is written")
    partition = cluster.partitions(TOPIC)[0]
    with connect(cluster, 1) as client:
        client.create_topic("t")
        client.commit("g", {TopicPartition("t", 0): 0})
    for id in cluster.brokers:
        with connect(cluster, id) as client, pytest.raises(errors.InvalidTopic):
            client.delete_topic(TOPIC)
    with cluster.asked(partition.leader) as raw:
        assert raw.produce(TOPIC, encode_rows([Row(b"k", b"v")]))["error_code"] == Code.INVALID_TOPIC_EXCEPTION
        part = {"index": 0, "records": encode_rows([Row(b"k", b"v")])}
        rows = [{"name": "__consumer_offsets", "partition_data": [part]}]
        body = {"transactional_id": AUDITOR, "acks": -1, "timeout_ms": 9000, "topic_data": rows}
        [answer] = raw.ask(ApiKey.PRODUCE, body, 12)["responses"][0]["partition_responses"]
        assert answer["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    assert told(cluster) == ["first"]


def test_no_request_waits_for_it(cluster: ClusterProcesses) -> None:
    """While the leader of the audit topic hangs, the other brokers make changes as before. They write their lines once
    the topic has a leader again."""
    change(cluster, 1, "first")
    wait_until(lambda: cluster.topic(TOPIC) is not None, "there is the topic")
    cluster.until_in_sync(TOPIC)
    partition = cluster.partitions(TOPIC)[0]
    other = next(id for id in cluster.brokers if id != partition.leader)
    names = [f"meanwhile-{number}" for number in range(20)]
    with connect(cluster, other) as client, cluster.paused(partition.leader):
        for name in names:
            client.security.alter_quotas({"producer_byte_rate": 1e9}, user=name)
    wait_until(lambda: set(names) <= set(told(cluster)), "all are told")
