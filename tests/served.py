"""What serves the tests of clients, the command line and Spark: one broker, or with KRAPPY_BROKERS=3 (`make
test-brokers`) a cluster of three processes with a ZooKeeper, where each partition has three replicas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.cluster.brokers import brokers

BROKERS = int(os.environ.get("KRAPPY_BROKERS", "1"))

alone = pytest.mark.skipif(BROKERS > 1, reason="about a single broker, or one that runs in this process")


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[RunningBroker]:
    """`address` and `kafka_address` are of all brokers, `http_address` and `data_dir` of the first one."""
    if BROKERS == 1:
        with run_broker(folder / "data", durability="os", **settings) as broker:
            yield broker
        return
    with brokers(folder, BROKERS, default_replication_factor=min(BROKERS, 3), **settings) as cluster:
        first = cluster.brokers[1]
        yield RunningBroker(cluster.native, Path(first.data), cluster.kafka, str(first.settings["listen_http"]))
