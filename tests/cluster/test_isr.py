"""Which replicas come into an ISR, with real brokers."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from krappy.broker.replication.isr_keeper import FEW
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.cut_off import cut_off
from tests.cluster.test_cluster import leaders, make_topic
from tests.process import wait_until


def times_back(cluster: ClusterProcesses, follower: int) -> int:
    """How often a leader took this broker into an ISR."""
    return sum(
        follower in each["came"]
        for id in cluster.brokers
        if id != follower
        for each in cluster.events(id, "isr_changed")
    )


def test_a_follower_that_only_zookeeper_does_not_hear_of_stays_out_of_the_isr(cluster: ClusterProcesses) -> None:
    """The follower goes on fetching, and is registered until its session ends. The controller takes it out of the ISR
    before that, and leaders must not put it back several times a second."""
    make_topic(cluster, "t")
    with cut_off(cluster, 3) as cut:
        cluster.until_in_sync("t")
        [first, *_] = [index for index, leader in enumerate(leaders(cluster, "t")) if leader != 3]

        def is_in() -> bool:
            # Broker 1 is asked, because broker 3 hears of no changes.
            return 3 in cluster.partitions_at(1, "t")[first].isrs

        before = times_back(cluster, 3)
        with cut():
            wait_until(lambda: not is_in(), "the controller has taken the broker out")
            end = time.monotonic() + 2  # the session of broker 3 lasts at least so long
            while time.monotonic() < end:
                assert not is_in()
            assert times_back(cluster, 3) == before
        cluster.until_in_sync("t")
        assert times_back(cluster, 3) > before


def test_of_very_many_partitions_too_a_dead_follower_leaves_and_comes_back(cluster: ClusterProcesses) -> None:
    """The leaders look at most of them once a second."""
    count = 2 * FEW
    [made] = cluster.admin.create_topics([NewTopic("many", count, 3)]).values()
    made.result(60)
    cluster.until_in_sync("many")
    cluster.brokers[3].kill()
    lost: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all"})
    for index in range(count):
        producer.produce("many", b"v", partition=index, on_delivery=lambda error, _: lost.append(error) if error else 0)
    assert producer.flush(60) == 0
    assert not lost
    assert all(3 not in each.isrs for each in cluster.partitions("many").values())
    cluster.start_again(3)
    cluster.until_in_sync("many")
