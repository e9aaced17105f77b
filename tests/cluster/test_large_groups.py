"""Groups of a cluster with more positions than one batch of the groups' topic has room for, by long names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from krappy import blocking
from krappy.broker.topics.internal_topics import OFFSETS, SHARES
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.consumers import commit
from tests.cluster.small_batches import small_batches
from tests.cluster.test_groups_kept import offsets, until_answered
from tests.cluster.zookeeper import ZooKeeperServer
from tests.process import wait_until

KAFKA, NATIVE = "k" * 1000, "n" * 220  # about the longest names of groups
COUNT = 40
PART = 5  # a batch has room for so many offsets
ALL = {index: index + 1 for index in range(COUNT)}


@contextmanager
def started(folder: Path, zookeeper: ZooKeeperServer, **settings: Any) -> Iterator[ClusterProcesses]:
    with brokers(folder, shared=SharedProcesses(zookeeper, small_batches), **settings) as cluster:
        with blocking.connect(cluster.native) as client:
            for topic, count in (("gone", COUNT), ("kept", 1)):
                client.create_topic(topic, count, replication_factor=1)
        yield cluster


def positions(topic: str, count: int = COUNT) -> list[TopicPartition]:
    return [TopicPartition(topic, index, index + 1) for index in range(count)]


def topics_of(client: blocking.Client) -> set[str]:
    """The topics in which the native group has positions."""
    return {each.topic for each in client.group(NATIVE).partitions}


def until_kafka_has(cluster: ClusterProcesses, ids: list[int], wanted: dict[int, int]) -> None:
    wait_until(lambda: until_answered(cluster, ids, lambda raw: offsets(raw, KAFKA)) == wanted, "it has these offsets")


def commit_in_parts(consumer: Consumer, topic: str, count: int = COUNT) -> None:
    wanted = positions(topic, count)
    for first in range(0, count, PART):
        commit(consumer, wanted[first : first + PART])


def test_more_offsets_than_a_batch_holds_expire(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> None:
    with started(tmp_path, shared_zookeeper, offsets_retention_ms=4_000) as cluster:
        one = Consumer({"bootstrap.servers": cluster.kafka, "group.id": KAFKA})
        commit_in_parts(one, "gone")
        assert [each.offset for each in one.committed(positions("gone"), 60)] == [*ALL.values()]
        one.close()
        until_kafka_has(cluster, [*cluster.brokers], {})
        assert not any(cluster.events(id, "offsets_not_expired") for id in cluster.brokers)


def test_more_offsets_than_a_batch_holds_are_committed(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> None:
    """By a transaction, and without one."""
    with started(tmp_path, shared_zookeeper) as cluster:
        one = Consumer({"bootstrap.servers": cluster.kafka, "group.id": KAFKA})
        producer = Producer({"bootstrap.servers": cluster.kafka, "transactional.id": "x"})
        producer.init_transactions(60)
        for end, wanted in ((producer.abort_transaction, {}), (producer.commit_transaction, ALL)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(positions("gone"), one.consumer_group_metadata(), 60)
            end(60)
            until_kafka_has(cluster, [*cluster.brokers], wanted)
        commit(one, [TopicPartition("gone", index, 7) for index in range(COUNT)])
        until_kafka_has(cluster, [*cluster.brokers], dict.fromkeys(range(COUNT), 7))
        one.close()


def test_a_group_is_loaded_when_a_topic_of_more_positions_than_a_batch_holds_is_gone(
    tmp_path: Path, shared_zookeeper: ZooKeeperServer
) -> None:
    """Once the coordinators know of the deletion, and once they are killed, and the next ones find it."""
    with started(tmp_path, shared_zookeeper) as cluster, blocking.connect(cluster.native, timeout=60) as client:
        one = Consumer({"bootstrap.servers": cluster.kafka, "group.id": KAFKA})
        for is_killed in (False, True):
            for topic, count in (("gone", COUNT), ("kept", 1)):
                commit_in_parts(one, topic, count)
            with client.consumer(["gone", "kept"], group=NATIVE) as consumer:
                consumer.poll(0.1)
            assert topics_of(client) == {"gone", "kept"}
            for topic in (OFFSETS, SHARES):
                cluster.until_in_sync(topic)
            if is_killed:
                at = cluster.coordinator(KAFKA)
                cluster.brokers[at].kill()
            client.delete_topic("gone")
            ids = [id for id in cluster.brokers if not is_killed or id != at]
            until_kafka_has(cluster, ids, {0: 1})
            wait_until(lambda: topics_of(client) == {"kept"}, "the native group has the other position")
            if not is_killed:
                client.create_topic("gone", COUNT, replication_factor=1)
        one.close()
