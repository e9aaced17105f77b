"""A broker's membership goes on from one session with ZooKeeper to the next, however sessions end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.app import Broker
from krappy.broker.replication import joining
from krappy.cluster.membership import ClusterMembership
from krappy.cluster.mirror import Mirror
from krappy.cluster.zk.client import ZooKeeper
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Znode
from krappy.errors import ConnectionLost
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import ZooKeeperServer
from tests.process import free_ports

LIMIT_S = 60
KNOWN = Image().after({"/brokers/topics": Znode(b"", 0, 0)})


class Expired(ZooKeeper):
    """A client whose session is over before anything was read."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        pass


@trio_test
async def test_a_session_that_ends_before_anything_was_read_is_followed_by_another(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """This happens when a broker is cut off again just after it has come back. Meanwhile it keeps its last image."""
    kinds: list[Callable[..., ZooKeeper]] = [Expired, Expired]
    made: list[ZooKeeper] = []

    def connect(**told: Any) -> ZooKeeper:
        kind = kinds.pop() if kinds else ZooKeeper
        made.append(kind([shared_zookeeper.address], chroot=chroot, timeout_ms=4000, **told))
        return made[-1]

    membership = ClusterMembership(connect, 1)
    membership.image = KNOWN
    seen: list[tuple[int, Image]] = []
    membership.changed.subscribe(lambda: seen.append((len(made), membership.image)))
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.run, lambda: None)
            while not membership.is_current:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert len(made) == 3
    assert all(image is KNOWN for session, image in seen if session < 3)


@trio_test
async def test_a_mirror_whose_session_is_over_at_once_has_started_and_is_over() -> None:
    found = Mirror(partial(Expired, [("127.0.0.1", 1)]))
    async with trio.open_nursery() as nursery:
        await nursery.start(found.run)
    assert found.is_over


@trio_test
async def test_a_broker_that_loses_zookeeper_while_it_joins_goes_on_later(
    shared_zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, lost = joining.join, 0

    async def joined(*given: Any) -> str:
        nonlocal lost
        if lost < 2:
            lost += 1
            raise ConnectionLost("the connection to ZooKeeper was lost before the answer came")
        return await join(*given)

    monkeypatch.setattr(joining, "join", joined)
    monkeypatch.setattr("krappy.broker.replication.replication.PAUSE_S", 0.01)
    told: list[str] = []
    native, kafka = free_ports(2)
    settings = {
        "zookeeper_connect": f"127.0.0.1:{shared_zookeeper.port}{chroot}",
        "listen_native": f"127.0.0.1:{native}",
        "listen_kafka": f"127.0.0.1:{kafka}",
    }
    with trio.fail_after(LIMIT_S):
        async with Broker(
            tmp_path / "data", broker_id=1, ballast_bytes=0, report=lambda event, **_: told.append(event), **settings
        ) as broker:
            while "registered" not in told:
                await trio.sleep(0.01)
            assert broker.engine.cluster_id
    assert (lost, told.count("zookeeper_waits")) == (2, 2)


@trio_test
async def test_a_slow_server_is_told_of_and_kept(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    """Each answer takes more than a second, but the session's timeout is much longer."""
    took: list[int] = []
    proxy = Proxy(shared_zookeeper.address)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        client = ZooKeeper([proxy.address], chroot=chroot, timeout_ms=LIMIT_S * 1000, slow=took.append)
        with trio.fail_after(LIMIT_S):
            await nursery.start(client.run)
            proxy.delay_s = 1.2
            assert await client.get("/") is not None
            assert await client.get("/") is not None
        assert len(took) == 1  # it is not told again within some seconds
        assert took[0] >= 1000
        assert proxy.connections == 1
        nursery.cancel_scope.cancel()
