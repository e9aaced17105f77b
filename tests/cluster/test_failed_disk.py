"""A log takes no more events because its disk has failed. This interrupts its partition for a few seconds at most,
until a replica in sync leads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from krappy import blocking
from krappy.broker.topics.internal_topics import SHARES
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import KrappyError
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.failing_disk import failing, failing_at
from tests.cluster.zookeeper import ZooKeeperServer
from tests.process import wait_until

LONG_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    """A cluster in which no follower leaves the ISR because it lags."""
    shared = SharedProcesses(shared_zookeeper, failing)
    with brokers(tmp_path, shared=shared, replica_lag_time_max_ms=600_000) as made:
        yield made
        made.check_errors()


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.native, timeout=LONG_S) as made:
        yield made


def logs_of(client: blocking.Client, topic: str) -> list[bytes | None]:
    with client.consumer(topic, end="now") as consumer:
        return [event.value for event in consumer]


def test_a_follower_is_not_waited_for(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("t", 1)
    cluster.until_in_sync("t")
    leader = cluster.partitions("t")[0].leader
    follower = leader % 3 + 1
    with client.producer("t") as producer, failing_at(cluster.brokers[follower], "/t-0/"):
        producer.send(b"0").result(LONG_S)
        wait_until(lambda: follower not in cluster.partitions("t")[0].isrs, "it is not in sync")
        for number in range(1, 100):
            producer.send(b"%d" % number).result(LONG_S)
        assert follower not in cluster.partitions("t")[0].isrs, "it follows no more while its disk fails"
    assert logs_of(client, "t") == [b"%d" % number for number in range(100)]


def test_another_broker_coordinates_a_group(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("t", 3)
    with client.producer("t") as producer:
        producer.send_many((None, b"%d" % number) for number in range(20))
    with client.consumer("t", group="g") as member:
        some = member.poll(LONG_S)
        member.ack(some[:1], wait=True)
        states = cluster.partitions(SHARES)
        index = partition_of("g", len(states))
        cluster.until_in_sync(SHARES)
        settled = {(event.partition, event.offset) for event in some[:1]}
        with failing_at(cluster.brokers[states[index].leader], f"/{SHARES}-{index}/"):
            while len(settled) < 20:
                with suppress(KrappyError):  # if this fails, the events come again
                    member.ack(some, wait=True)
                    settled |= {(event.partition, event.offset) for event in some}
                if len(settled) < 20:
                    some = member.poll(LONG_S)
            assert cluster.partitions(SHARES)[index].leader != states[index].leader


def test_a_replica_in_sync_leads_instead(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("t", 1)
    cluster.until_in_sync("t")
    leader = cluster.partitions("t")[0].leader
    producer = Producer(
        {"bootstrap.servers": cluster.kafka, "enable.idempotence": True, "message.timeout.ms": 60_000, "linger.ms": 0}
    )
    errors: list[object] = []

    def send(value: str) -> None:
        producer.produce("t", key=b"k", value=value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(70) == 0

    send("before")
    with failing_at(cluster.brokers[leader], "/t-0/"):
        send("meanwhile")
        assert errors == [None, None]
        wait_until(lambda: leader not in cluster.partitions("t")[0].isrs, "it is not in sync")
        assert cluster.partitions("t")[0].leader != leader
        with client.producer("t") as other:
            other.send(b"after", key=b"k").result(LONG_S)
        entry = client.table("t").get("k")
        assert entry is not None
        assert entry.value == b"after"
        assert logs_of(client, "t") == [b"before", b"meanwhile", b"after"]
    cluster.brokers[leader].stop()
    cluster.brokers[leader].start()
    cluster.until_in_sync("t")
    assert logs_of(client, "t") == [b"before", b"meanwhile", b"after"]


def test_a_replica_without_damage_leads_instead(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """A byte of an old segment has changed on the leader's disk. Another replica leads, and the damaged one is copied
    again."""
    client.create_topic("t", 1, {"segment.bytes": "20000"})
    cluster.until_in_sync("t")
    leader = cluster.partitions("t")[0].leader
    values = [b"%d" % number * 1000 for number in range(100)]
    with client.producer("t") as producer:
        for value in values:
            producer.send(value, key=b"k").result(LONG_S)
    folder = cluster.brokers[leader].data / "topics" / "t-0"
    first = min(folder.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[content.index(values[1]) + 100] ^= 1
    first.write_bytes(content)

    def read() -> bool:
        with suppress(KrappyError):
            return logs_of(client, "t") == values
        return False

    wait_until(read, "all of it is read")
    found = cluster.partitions("t")[0]
    assert found.leader != leader
    cluster.until_in_sync("t")
    with client.producer("t") as producer:
        producer.send(b"after").result(LONG_S)
