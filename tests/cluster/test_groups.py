"""Kafka groups in a cluster: their committed offsets and their members outlive their coordinator."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy.records.batch import encode
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.consumers import commit
from tests.cluster.test_cluster import PARTITIONS, Writer, make_topic, until_acked
from tests.process import wait_until
from tests.zygote import INTERNAL_PARTITIONS


def consumer(cluster: ClusterProcesses, group: str, **settings: Any) -> Consumer:
    return Consumer(
        {"bootstrap.servers": cluster.kafka, "group.id": group, "auto.offset.reset": "earliest", **settings}
    )


def committed(cluster: ClusterProcesses, group: str, topic: str) -> list[int]:
    """The committed offsets of a group. Asks until a coordinator answers."""
    asked = consumer(cluster, group)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                found = asked.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 10)
                assert all(each.error is None for each in found)
                return [each.offset for each in found]
            except (KafkaException, AssertionError):
                assert time.monotonic() < end, "no broker tells the group's offsets"
                time.sleep(0.2)
    finally:
        asked.close()


def test_offsets_outlive_every_coordinator_in_turn(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    with Writer(cluster, "t") as writer:
        until_acked(writer, 600)
    one = consumer(cluster, "g")
    for round in range(1, 5):
        at = [TopicPartition("t", index, 10 * round + index) for index in range(PARTITIONS)]
        commit(one, at)
        coordinator = cluster.coordinator("g")
        cluster.brokers[coordinator].kill()
        assert committed(cluster, "g", "t") == [10 * round + index for index in range(PARTITIONS)]
        wait_until(lambda last=coordinator: cluster.coordinator("g") != last, "all know the next coordinator")  # type: ignore[misc]
        cluster.brokers[coordinator].start()
        cluster.until_in_sync("__consumer_offsets")
    one.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_reading_while_its_coordinator_is_killed(cluster: ClusterProcesses, protocol: str) -> None:
    """Each event is read. Events that were not committed when the coordinator died may be read twice."""
    make_topic(cluster, "t")
    settings: dict[str, Any] = {"group.protocol": protocol, "auto.commit.interval.ms": 200}
    if protocol == "classic":
        settings["session.timeout.ms"] = 10_000
    seen: dict[int, set[int]] = {index: set() for index in range(PARTITIONS)}
    stop = threading.Event()

    def read() -> None:
        member = consumer(cluster, "g", **settings)
        member.subscribe(["t"])
        while not stop.is_set():
            message = member.poll(0.2)
            if message is not None and message.error() is None:
                seen[message.partition()].add(message.offset())
        member.close()

    members = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for each in members:
        each.start()
    with Writer(cluster, "t") as writer:
        until_acked(writer, 600)
        wait_until(lambda: sum(map(len, seen.values())) > 300, "the group reads")
        coordinator = cluster.coordinator("g")
        cluster.brokers[coordinator].kill()
        until_acked(writer, 600)
        cluster.brokers[coordinator].start()
        until_acked(writer, 600)
    wait_until(
        lambda: all(seen[index] >= {offset for _, offset in acked} for index, acked in writer.acked.items()),
        "the group has read all events",
        120,
    )
    stop.set()
    for each in members:
        each.join(60)
    assert not writer.failed


def test_the_topic_of_groups_gets_its_replicas_when_brokers_come(cluster: ClusterProcesses) -> None:
    """The topic is made while the cluster has only one broker."""
    for id in (2, 3):
        cluster.brokers[id].stop()
    cluster.until_known()
    [made] = cluster.admin.create_topics([NewTopic("t", PARTITIONS, 1)]).values()
    made.result(30)
    one = consumer(cluster, "g")
    commit(one, [TopicPartition("t", index, 7) for index in range(PARTITIONS)])
    one.close()
    assert {len(each.replicas) for each in cluster.partitions("__consumer_offsets").values()} == {1}
    for id in (2, 3):
        cluster.brokers[id].start()

    def is_whole() -> bool:
        return all(len(each.isrs) == 3 for each in cluster.partitions("__consumer_offsets").values())

    wait_until(is_whole, "the topic has its replicas")
    cluster.brokers[1].kill()
    assert committed(cluster, "g", "t") == [7] * PARTITIONS


def test_what_is_deleted_of_a_group_stays_deleted(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    one = consumer(cluster, "gone")
    commit(one, [TopicPartition("t", index, 7) for index in range(PARTITIONS)])
    one.close()
    assert committed(cluster, "gone", "t") == [7] * PARTITIONS
    [deleted] = cluster.admin.delete_consumer_groups(["gone"], request_timeout=30).values()
    deleted.result(60)
    coordinator = cluster.coordinator("gone")
    cluster.brokers[coordinator].kill()
    assert committed(cluster, "gone", "t") == [-1001] * PARTITIONS


def test_nobody_else_writes_to_the_topic_of_groups(cluster: ClusterProcesses) -> None:
    make_topic(cluster, "t")
    one = consumer(cluster, "g")
    commit(one, [TopicPartition("t", 0, 7)])
    one.close()
    partitions = cluster.partitions("__consumer_offsets")
    assert len(partitions) == INTERNAL_PARTITIONS
    assert all(len(each.replicas) == 3 for each in partitions.values())
    with cluster.asked(partitions[0].leader) as raw:
        records = encode([b"kg/x"], [b"y"], timestamps=0)
        assert raw.produce("__consumer_offsets", records)["error_code"] == Code.INVALID_TOPIC_EXCEPTION
        names = [{"name": "__consumer_offsets", "topic_id": b"\0" * 16}]
        [deleted] = raw.ask(ApiKey.DELETE_TOPICS, {"topics": names, "timeout_ms": 1000})["responses"]
        assert deleted["error_code"] == Code.INVALID_TOPIC_EXCEPTION
    assert committed(cluster, "g", "t")[0] == 7
