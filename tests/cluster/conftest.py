from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.cluster.zookeeper import Missing, ZooKeeperServer, zookeepers

_numbers = count(1)


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for all tests of this process; they must not stop it, and each has a chroot of its own."""
    try:
        with zookeepers(tmp_path_factory.mktemp("zookeeper")) as [server]:
            yield server
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture
def chroot() -> str:
    """A path that no other test uses."""
    return f"/tests/{next(_numbers)}"
