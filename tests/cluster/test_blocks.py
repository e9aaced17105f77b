"""Snapshots and logs of three brokers are read as blocks of columns, as PySpark reads them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.errors import OffsetOutOfRange, SnapshotGone, UnknownPartition, UnknownTopic
from tests.cluster.brokers import ClusterProcesses
from tests.process import wait_until

PARTITIONS = 6
COUNT = 3000
KEYS: list[Any] = [b"%05d" % number for number in range(COUNT)]


@pytest.fixture(scope="module")
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


def topic_of(cluster: ClusterProcesses, client: blocking.Client, name: str) -> str:
    """Makes a topic with all keys. Each of the three brokers leads some of its partitions."""
    [made] = cluster.admin.create_topics([NewTopic(name, PARTITIONS, 3)]).values()
    made.result(30)
    cluster.until_in_sync(name)
    wait_until(
        lambda: {each.leader for each in cluster.partitions(name).values()} == set(cluster.brokers), "each leads some"
    )
    with client.producer(name) as producer:
        producer.send_columns(KEYS, KEYS)
    return name


def rows(client: blocking.Client, snapshot: Any) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for key_range in snapshot.ranges:
        for block in client.read_snapshot(snapshot.id, key_range, block_bytes=4000):
            columns = block.lists()
            found |= dict(zip(columns["key"], columns["value"], strict=True))
    return found


def test_a_snapshot_is_held_by_all_leaders(cluster: ClusterProcesses, client: blocking.Client) -> None:
    topic = topic_of(cluster, client, "held")
    snapshot = pickle.loads(pickle.dumps(client.snapshot(topic, splits=12, measure=1 << 20)))
    with client.producer(topic) as producer:
        producer.send_columns(KEYS, [b"changed"] * COUNT)
    assert sum(snapshot.offsets.values()) == COUNT
    assert {each.partition for each in snapshot.ranges} == set(range(PARTITIONS))
    assert snapshot.size >= 2 * 5 * COUNT
    with blocking.connect(str(cluster.brokers[3].settings["listen_native"]), timeout=60) as other:
        assert rows(other, snapshot) == dict(zip(KEYS, KEYS, strict=True))
        other.keep_snapshot(snapshot.id, 30)
        client.close_snapshot(snapshot.id)
        client.close_snapshot(snapshot.id)
        with pytest.raises(SnapshotGone):
            rows(other, snapshot)
        with pytest.raises(SnapshotGone):
            other.keep_snapshot(snapshot.id)
    some = client.snapshot(topic, partitions=[4, 1])
    assert some.offsets.keys() == {1, 4}
    with pytest.raises(UnknownPartition):
        client.read_snapshot(some.id, some.ranges[0]._replace(partition=0))
    client.close_snapshot(some.id)
    with pytest.raises(UnknownPartition):
        client.snapshot(topic, partitions=[PARTITIONS])
    with pytest.raises(UnknownTopic):
        client.snapshot(topic, topic_id="another")
    with pytest.raises(SnapshotGone):
        client.keep_snapshot("1:a:x")


def test_a_log_is_read_on_while_its_leaders_change(cluster: ClusterProcesses, client: blocking.Client) -> None:
    topic = topic_of(cluster, client, "moving")
    ends = {each.partition: each.last_stable_offset for each in client.describe(topic).partitions}
    assert sum(ends.values()) == COUNT
    for index in range(PARTITIONS):
        leader = cluster.partitions(topic)[index].leader
        found: list[bytes] = []
        for number, block in enumerate(client.read_log(topic, index, 0, ends[index], block_bytes=3000)):
            found += block.lists()["key"]
            if number == 0 and index < 2:
                cluster.brokers[leader].kill()
        assert len(found) == ends[index]
        assert found == sorted(found)
        if index < 2:
            cluster.brokers[leader].start()
            cluster.until_in_sync(topic)
    with pytest.raises(OffsetOutOfRange):
        list(client.read_log(topic, 0, 0, ends[0] + 1))


def test_a_snapshot_ends_with_a_broker_that_holds_a_part_of_it(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    topic = topic_of(cluster, client, "gone")
    snapshot = client.snapshot(topic)
    cluster.brokers[2].kill()
    cluster.brokers[2].start()
    with pytest.raises(SnapshotGone):
        rows(client, snapshot)
    client.close_snapshot(snapshot.id)
    cluster.until_in_sync(topic)
    again = client.snapshot(topic)
    assert rows(client, again) == dict(zip(KEYS, KEYS, strict=True))
    client.close_snapshot(again.id)
