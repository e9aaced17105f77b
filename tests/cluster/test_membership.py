"""A broker's membership goes on over sessions with ZooKeeper, however they end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from trio.testing import trio_test

from krappy.cluster.membership import ClusterMembership
from krappy.cluster.mirror import Mirror
from krappy.cluster.zk.client import ZooKeeper
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Znode
from tests.cluster.zookeeper import ZooKeeperServer

LIMIT_S = 60
KNOWN = Image().after({"/brokers/topics": Znode(b"", 0, 0)})


class Expired(ZooKeeper):
    """Its session is over before anything was read."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        pass


@trio_test
async def test_a_session_that_ends_before_anything_was_read_is_followed_by_another(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """As when a broker is cut off again, just after it had come back. What it knew stays its image meanwhile."""
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
