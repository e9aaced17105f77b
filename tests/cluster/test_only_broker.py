"""The only broker of a cluster is started again. It serves at once, and is registered a moment later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from krappy import blocking
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers

LONG_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, 1, shared=shared_processes) as made:
        yield made


@pytest.mark.parametrize("factor", [None, 1])
def test_a_topic_is_made_that_was_asked_for_before_it_is_registered(
    cluster: ClusterProcesses, factor: int | None
) -> None:
    [broker] = cluster.brokers.values()
    for number in range(2):
        broker.kill() if number else broker.stop()
        broker.start()
        with cluster.asked(1) as raw:
            topic = {"name": f"kafka-{number}", "num_partitions": 1, "replication_factor": factor or -1}
            body = {"topics": [topic | {"assignments": [], "configs": []}], "timeout_ms": 30_000}
            raw.send(ApiKey.CREATE_TOPICS, body)
            with blocking.connect(cluster.native, timeout=LONG_S) as client:
                client.create_topic(f"native-{number}", replication_factor=factor)
            assert raw.receive()["topics"][0]["error_code"] == Code.NONE


def test_an_admin_client_that_comes_before_it_is_registered_is_served(cluster: ClusterProcesses) -> None:
    """If it is told of no broker or no controller, librdkafka's gives up after a minute."""
    [broker] = cluster.brokers.values()
    for number in range(3):
        broker.stop()
        broker.start()
        with cluster.asked(1) as raw:
            answer = raw.ask(ApiKey.METADATA, {"topics": []})
        assert (answer["controller_id"], [each["node_id"] for each in answer["brokers"]]) == (1, [1])
        admin = AdminClient({"bootstrap.servers": cluster.kafka})
        [made] = admin.create_topics([NewTopic(f"admin-{number}", 1, 1)]).values()
        made.result(LONG_S / 2)


def test_describing_the_cluster_waits_for_a_broker(cluster: ClusterProcesses) -> None:
    [broker] = cluster.brokers.values()
    for _ in range(3):
        broker.stop()
        broker.start()
        with cluster.asked(1) as raw:
            answer = raw.ask(ApiKey.DESCRIBE_CLUSTER, {"endpoint_type": 1})
        assert (answer["controller_id"], [each["broker_id"] for each in answer["brokers"]]) == (1, [1])
