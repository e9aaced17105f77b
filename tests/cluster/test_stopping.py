"""A broker ends soon after SIGTERM, whatever part of its cluster is away. Requests that wait for others must not hold
it up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy import blocking
from krappy.errors import KrappyError
from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.test_cluster import leaders
from tests.cluster.zookeeper import Missing

SOON_S = 30.0  # 6 s for requests in flight, 2 s for ZooKeeper's answer, and the rest for a busy machine


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """Three brokers, and a ZooKeeper of their own, which the tests stop."""
    try:
        with brokers(tmp_path) as made:
            yield made
    except Missing as reason:
        pytest.skip(str(reason))


def test_it_ends_while_a_condition_waits_for_a_commit_that_never_comes(cluster: ClusterProcesses) -> None:
    with blocking.connect(cluster.native) as client, blocking.connect(cluster.native) as other:
        client.create_topic("t", 1, config={"min.insync.replicas": 2})
        cluster.until_in_sync("t")
        [leader] = leaders(cluster, "t")
        plain, conditional = (each.producer("t", timeout=5).open() for each in (client, other))
        plain.send("0", key="k").result(30)
        away = [*(each.pid for id, each in cluster.brokers.items() if id != leader), cluster.zookeeper.pid]
        for pid in away:
            os.kill(pid, signal.SIGSTOP)
        try:
            before = plain.send("1", key="k")
            time.sleep(0.5)  # so that the condition comes later
            after = conditional.send("2", key="k2", expect="absent")
            time.sleep(0.5)
            assert not before.done()
            assert not after.done()
            cluster.brokers[leader].terminate()
            assert cluster.brokers[leader].ended(SOON_S) == 0
        finally:
            for pid in away:
                os.kill(pid, signal.SIGCONT)
        for each in (before, after):
            with pytest.raises(KrappyError):
                each.result(60)
