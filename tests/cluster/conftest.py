from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from krappy import blocking
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.zookeeper import Missing, ZooKeeperServer, zookeepers
from tests.process import forked

LONG_S = 120.0
_numbers = count(1)


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for all tests of this process. Each test has a chroot of its own, and must not stop the ZooKeeper."""
    try:
        with zookeepers(tmp_path_factory.mktemp("zookeeper")) as [server]:
            yield server
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def shared_processes(shared_zookeeper: ZooKeeperServer) -> SharedProcesses:
    return SharedProcesses(shared_zookeeper, forked)


@pytest.fixture
def cluster(tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    """Three brokers for this test alone."""
    with brokers(tmp_path, shared=shared_processes) as made:
        yield made


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    """Three brokers for all tests of a module, which uses them as its `cluster`. A test that kills a broker must start
    it again."""
    with brokers(tmp_path_factory.mktemp("cluster"), shared=shared_processes) as made:
        yield made


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[blocking.Client]:
    """A client with a timeout that is longer than a failover."""
    with blocking.connect(cluster.native, timeout=LONG_S) as made:
        yield made


@pytest.fixture
def chroot() -> str:
    """A path that no other test uses."""
    return f"/tests/{next(_numbers)}"
