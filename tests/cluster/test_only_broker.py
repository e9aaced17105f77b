"""The only broker of a cluster is started again. It serves at once, and is registered a moment later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
