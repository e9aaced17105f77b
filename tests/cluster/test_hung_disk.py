"""The disk of a broker hangs at one partition. All others go on, whatever changes in the cluster meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from krappy import blocking
from krappy.errors import KrappyError
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.failing_disk import failing, hanging_at
from tests.cluster.zookeeper import ZooKeeperServer

LONG_S = 60.0
PARTITIONS = 6


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
        made.create_topic("hung", 1)
        made.create_topic("t", PARTITIONS)
        cluster.until_in_sync("hung")
        cluster.until_in_sync("t")
        cluster.spread("t")
        yield made


@contextmanager
def sent(cluster: ClusterProcesses) -> Iterator[None]:
    """In this block, an event for the topic that hangs waits, or has failed."""

    def send() -> None:
        with blocking.connect(cluster.native, timeout=LONG_S) as client, client.producer("hung") as producer:
            try:
                producer.send(b"0").result(2 * LONG_S)
            except KrappyError as error:
                errors.append(error)

    errors: list[KrappyError] = []
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join(3 * LONG_S)


def write_everywhere(client: blocking.Client) -> None:
    with client.producer("t", timeout=LONG_S) as producer:
        for partition in range(PARTITIONS):
            producer.send(b"0", partition=partition).result(LONG_S)


def test_a_follower_whose_disk_hangs_at_one_partition(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """It copies its leader's other partitions, and takes part in elections: one whose leader changes has to wait for
    its disk, others don't."""
    leader = cluster.partitions("hung")[0].leader
    hung, other = leader % 3 + 1, (leader + 1) % 3 + 1
    with sent(cluster), hanging_at(cluster.brokers[hung], "/hung-0/"):
        write_everywhere(client)
        assert cluster.brokers[leader].stop() == 0
        cluster.start_again(leader)
        cluster.until_in_sync("t")  # which the hung broker has to know of, where it leads
        cluster.brokers[other].kill()
        write_everywhere(client)


def test_a_deleted_topic_hangs_at_its_leader(cluster: ClusterProcesses, client: blocking.Client) -> None:
    leader = cluster.partitions("hung")[0].leader
    with sent(cluster), hanging_at(cluster.brokers[leader], "/hung-0/"):
        write_everywhere(client)
        client.delete_topic("hung")
        cluster.brokers[leader % 3 + 1].kill()
        write_everywhere(client)
    client.create_topic("hung", 1)
    with client.producer("hung") as producer:
        assert producer.send(b"1").result(LONG_S).offset == 0
