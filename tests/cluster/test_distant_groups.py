"""Native groups whose coordinator has no replica, or no complete one, of the partitions that they read."""

from __future__ import annotations

import time

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from krappy import blocking
from krappy.types import TopicPartition
from krappy.wire.kafka import Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_moves import holders, moving, reassign
from tests.cluster.test_native_groups import LONG_S, coordinator, fill, make_at
from tests.process import wait_until

SLOW = "20000"  # bytes a second


def coordinates(cluster: ClusterProcesses, client: blocking.Client, group: str) -> int:
    """Makes a group; returns its coordinator."""
    fill(client, "other", 1)
    client.commit(group, {TopicPartition("other", 0): 0})
    return coordinator(cluster, group)


def throttle(cluster: ClusterProcesses, topic: str) -> None:
    """Lets replicas of the topic that are not in sync be copied slowly."""
    sides, changed = ("leader", "follower"), []
    for kind, names, value in (
        (ResourceType.BROKER, [str(id) for id in cluster.brokers], SLOW),
        (ResourceType.TOPIC, [topic], "*"),
    ):
        what = "rate" if kind == ResourceType.BROKER else "replicas"
        entries = [
            ConfigEntry(f"{side}.replication.throttled.{what}", value, incremental_operation=AlterConfigOpType.SET)
            for side in sides
        ]
        changed += [ConfigResource(kind, name, incremental_configs=entries) for name in names]
    admin = cluster.admin
    for each in changed:  # librdkafka accepts only one broker in a request
        [done] = admin.incremental_alter_configs([each]).values()
        done.result(LONG_S)


def test_a_replica_that_is_still_copied_holds_back_no_group(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The coordinator gets a replica that is far behind for a long time. Meanwhile it goes on reading from the
    leader."""
    mine = coordinates(cluster, client, "eager")
    make_at(cluster, "far", [mine % 3 + 1])
    throttle(cluster, "far")
    with client.producer("far") as producer, client.consumer("far", group="eager") as consumer:
        producer.send_columns([b"k"] * 40, [b"%d" % n * 50_000 for n in range(40)])
        producer.flush()
        taken = 0
        while taken < 40:
            events = consumer.poll(LONG_S)
            consumer.ack(events)
            taken += len(events)
        assert reassign(cluster, "far", {0: [mine]}) == [Code.NONE]
        wait_until(lambda: mine in holders(cluster, "far"), "its replica is begun", LONG_S)
        producer.send(b"fresh", key=b"k").result(LONG_S)
        end = time.monotonic() + LONG_S
        values: list[bytes | None] = []
        while b"fresh" not in values:
            assert time.monotonic() < end
            values = [event.value for event in consumer.poll(1)]
        assert moving(cluster), "the replica was copied faster than it should be"
        [told] = [each for each in client.group("eager").partitions if each.topic == "far"]
        assert told.end == 41


def test_groups_are_told_of_while_a_leader_is_away(cluster: ClusterProcesses, client: blocking.Client) -> None:
    mine = coordinates(cluster, client, "told")
    away = mine % 3 + 1
    make_at(cluster, "far", [away])
    make_at(cluster, "near", [mine])
    for topic in ("far", "near"):
        with client.producer(topic) as producer:
            producer.send_columns([b"k"] * 10, [b"v"] * 10)
    client.commit("told", {TopicPartition("far", 0): 4, TopicPartition("near", 0): 4})
    assert client.group("told").lag == 12
    cluster.brokers[away].kill()
    wait_until(lambda: cluster.partitions("far")[0].leader < 0, "nobody leads it", LONG_S)
    told = {each.topic: (each.floor, each.end, each.lag) for each in client.group("told").partitions}
    assert told["far"] == (4, -1, -1)
    assert told["near"] == (4, 10, 6)
    assert [each.group for each in client.groups()] == ["told"]
