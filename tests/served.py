"""Starts what serves the tests of clients, the command line, Spark and the console (`make test-brokers`). By default
that is one broker. With KRAPPY_BROKERS=3 it is a cluster of three processes with a ZooKeeper, where each partition has
three replicas. With KRAPPY_BROKERS=gateway each partition of such a cluster has two replicas, and the tests know only
the first broker, which leads nothing.

Native clients and Kafka's clients learn from that broker of the others. A client over HTTP knows no other broker: the
first one asks the leaders and coordinators for it.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.cluster.brokers import SharedProcesses, brokers
from tests.cluster.test_share_groups import make_ready
from tests.cluster.zookeeper import ZooKeeperServer, zookeepers
from tests.process import forked, launcher

WAY = os.environ.get("KRAPPY_BROKERS", "1")
GATEWAY = WAY == "gateway"
BROKERS = 3 if GATEWAY else int(WAY)
LIFETIME = 7200.0  # seconds; a cluster serves all tests of Spark

alone = pytest.mark.skipif(BROKERS > 1, reason="about a single broker, or one that runs in this process")


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[RunningBroker]:
    """A broker, or a cluster. `address` and `kafka_address` are of all brokers that the tests know, `http_address` and
    `data_dir` of the first one. In a cluster, raises AssertionError at the end if a broker had an internal error."""
    if BROKERS == 1:
        with run_broker(folder / "data", durability="os", **settings) as broker:
            yield broker
        return
    shared = SharedProcesses(_zookeeper(), launcher("tests.gateway") if GATEWAY else forked)
    # The gateway has replicas of some partitions, and nothing of others.
    settings = {"default_replication_factor": 2 if GATEWAY else 3, **settings}
    with brokers(folder, BROKERS, shared=shared, lifetime=LIFETIME, **settings) as cluster:
        first = cluster.brokers[1]
        native, kafka = cluster.native, cluster.kafka
        make_ready(cluster)  # else the first request over HTTP for a group is told to come again
        if GATEWAY:
            native, kafka = first.address, first.kafka
        yield RunningBroker(native, Path(first.data), kafka, first.http)
        faults = [fault for id in cluster.brokers for fault in cluster.events(id, "internal_error")]
    assert not faults, "a broker had an internal error"


@cache
def _zookeeper() -> ZooKeeperServer:
    """The ZooKeeper of this process; it ends with the process."""
    own = ExitStack()
    atexit.register(own.close)
    folder = own.enter_context(tempfile.TemporaryDirectory())
    [server] = own.enter_context(zookeepers(Path(folder)))
    return server
