"""The port `Store`: both implementations (`carrier`) do what it says. And the mirror's image is equal to the tree,
whatever happens."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from krappy.broker.local_store import LocalStore
from krappy.cluster.mirror import Mirror
from krappy.cluster.zk.client import ZooKeeper
from krappy.cluster.zk.session import Status
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.image import Image
from krappy.core.cluster.state import PartitionState, write_state
from krappy.core.cluster.tree import Create, Delete, Operation, Put, Refusal, RefusedMulti, Tree, Znode
from krappy.errors import ConnectionLost
from krappy.ports.store import Store
from krappy.store.local_tree import LocalTree
from krappy.store.meta import Meta
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import ZooKeeperServer

LIMIT_S = 60


@contextlib.asynccontextmanager
async def mirror(address: tuple[str, int], chroot: str, timeout_ms: int = 20_000) -> AsyncIterator[Mirror]:
    found = Mirror(partial(ZooKeeper, [address], chroot=chroot, timeout_ms=timeout_ms))
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(found.run)
            yield found
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def local(folder: Path) -> AsyncIterator[LocalStore]:
    meta = Meta(folder)
    yield LocalStore(LocalTree(meta), trio.to_thread.run_sync)
    meta.close()


@pytest.fixture(params=["folder", "zookeeper"])
def carrier(request: pytest.FixtureRequest, tmp_path: Path, chroot: str) -> Callable[[], Any]:
    if request.param == "folder":
        return lambda: local(tmp_path)
    server: ZooKeeperServer = request.getfixturevalue("shared_zookeeper")
    return lambda: mirror(server.address, chroot)


async def rooted(store: Store) -> None:
    """Makes the znodes that always exist, if they are missing."""
    for path in paths.ROOTS:
        with contextlib.suppress(RefusedMulti):
            await store.multi([Create(path)])


def topic(name: str, partitions: int, id: bytes = b"i" * 16) -> list[Operation]:
    return [
        Create(paths.topic(name), znodes.topic(id, [(1,)] * partitions, 0)),
        Create(paths.identity(name, id)),
        Create(paths.partitions(name)),
    ]


@trio_test
async def test_no_operations_change_nothing(carrier: Callable[[], Any]) -> None:
    async with carrier() as store:
        await rooted(store)
        assert await store.multi([]) == store.image


@trio_test
async def test_what_was_written_is_in_the_image(carrier: Callable[[], Any]) -> None:
    async with carrier() as store:
        await rooted(store)
        image = await store.multi(topic("t", 3))
        assert len(image.topics["t"].partitions) == 3
        assert store.image is image
        fired: list[Image] = []
        store.changed.subscribe(lambda: fired.append(store.image))
        await store.multi([Create(paths.config("topics", "t"), znodes.config({"retention.ms": "5"}))])
        assert store.image.config("topics", "t") == {"retention.ms": "5"}
        assert store.image in fired
        assert await store.children(paths.TOPICS) == ["t"]
        found = await store.read(paths.topic("t"))
        assert found is not None
        assert found.version == 0
        assert await store.read("/brokers/topics/none") is None
        below = paths.config("topics", "t"), paths.identity("t", b"i" * 16), paths.partitions("t")
        await store.multi([Delete(path) for path in (*below, paths.topic("t"))])
        assert store.image.topics == {}
        assert store.image.config("topics", "t") == {}


@trio_test
async def test_what_is_refused_changes_nothing(carrier: Callable[[], Any]) -> None:
    async with carrier() as store:
        await rooted(store)
        before = await store.multi(topic("t", 1))
        with pytest.raises(RefusedMulti) as refused:
            await store.multi([*topic("u", 1), Put(paths.topic("t"), b"{}", 5)])
        assert (refused.value.index, refused.value.why) == (3, Refusal.BAD_VERSION)
        assert store.image == before
        with pytest.raises(RefusedMulti):
            await store.multi(topic("t", 1))


@trio_test
async def test_an_ephemeral_znode_is_of_this_session(carrier: Callable[[], Any]) -> None:
    async with carrier() as store:
        await rooted(store)
        image = await store.multi(
            [Create(paths.broker(1), znodes.registration(4, {"K": ("h", 1)}, None), store.session)]
        )
        assert image.brokers[1].epoch == 4
        found = await store.read(paths.broker(1))
        assert found is not None
        assert found.owner == store.session


@trio_test
async def test_a_broker_sees_what_another_has_written(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with mirror(shared_zookeeper.address, chroot) as one, mirror(shared_zookeeper.address, chroot) as other:
        await rooted(one)
        for number in range(20):
            await one.multi(topic(f"t{number}", 2, bytes([number]) * 16))
            with pytest.raises(RefusedMulti):
                await other.multi(topic(f"t{number}", 9))
            assert f"t{number}" in other.image.topics, "it has seen why it was refused"


@trio_test
async def test_a_topic_made_anew_has_its_states_even_if_they_are_as_before(carrier: Callable[[], Any]) -> None:
    """A broker that was away meanwhile sees the deletion and the new topic at once."""
    state, partition = paths.state("t", 0), paths.partition("t", 0)
    states = [Create(partition), Create(state, write_state(PartitionState(1, 0, 1, (1,))))]
    async with carrier() as store:
        await rooted(store)
        await store.multi([*topic("t", 1), *states])
        before = store.image.topics["t"].partitions
        below = (state, partition, paths.partitions("t"), paths.identity("t", b"i" * 16))
        gone = [Delete(path) for path in (*below, paths.topic("t"))]
        await store.multi([*gone, *topic("t", 1, b"j" * 16), *states])
        assert store.image.topics["t"].id == b"j" * 16
        assert store.image.topics["t"].partitions == before
        assert before[0].version >= 0


@trio_test
async def test_a_change_of_the_old_topic_changes_none_that_was_made_anew(carrier: Callable[[], Any]) -> None:
    """The znodes of the new topic have the same versions."""
    state, partition = paths.state("t", 0), paths.partition("t", 0)
    states = [Create(partition), Create(state, write_state(PartitionState(1, 0, 1, (1,))))]
    async with carrier() as store:
        await rooted(store)
        await store.multi([*topic("t", 1), *states])
        before = store.image.topics["t"]
        await store.multi([*before.unless_deleted(), before.put_replicas(before.partitions)])
        before = store.image.topics["t"]
        below = (state, partition, paths.partitions("t"), paths.identity("t", b"i" * 16))
        await store.multi([Delete(path) for path in (*below, paths.topic("t"))])
        await store.multi([*topic("t", 1, b"j" * 16), *states])
        found = store.image.topics["t"]
        await store.multi([*found.unless_deleted(), found.put_replicas(found.partitions)])
        assert store.image.topics["t"].version == before.version
        led_by_another = before.partitions[0].state._replace(leader=2, leader_epoch=1)
        for stale in (
            [*before.unless_deleted(), before.put_replicas(before.partitions, scattered=True)],
            before.put_state(0, led_by_another),
        ):
            with pytest.raises(RefusedMulti):
                await store.multi(stale)
        now = store.image.topics["t"]
        assert (now.id, now.scattered, now.partitions[0].state.leader) == (b"j" * 16, None, 1)
        await store.multi(now.put_state(0, led_by_another))
        assert store.image.topics["t"].partitions[0].state.leader == 2


@trio_test
async def test_an_expired_session_is_told(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    proxy = Proxy(shared_zookeeper.address)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        found = Mirror(partial(ZooKeeper, [proxy.address], chroot=chroot, timeout_ms=1000))
        await nursery.start(found.run)
        proxy.silent = True
        with trio.fail_after(LIMIT_S):
            while found.client.session.status != Status.OVER:
                with pytest.raises(ConnectionLost):
                    await found.multi([Create("/x")])
                await trio.sleep(0.05)
        with pytest.raises(ConnectionLost) as lost:
            await found.multi([Create("/x")])
        assert lost.value.sent is False
        nursery.cancel_scope.cancel()


def change(tree: Tree, chance: random.Random) -> list[Operation]:
    """Random operations that the tree accepts: on a topic, the state of a partition, or settings."""
    name = f"t{chance.randrange(4)}"
    path = paths.topic(name)
    if tree.get(path) is None:
        return topic(name, chance.randint(1, 3), chance.randbytes(16))
    state = paths.state(name, 0)
    what = chance.randrange(4)
    if what == 0:
        return [Delete(each) for each, _ in reversed([*tree.under(path)])]
    if what == 1:
        config = paths.config("topics", name)
        data = znodes.config({"retention.ms": str(chance.randrange(100))})
        return [Create(config, data)] if tree.get(config) is None else [Put(config, data)]
    data = b'{"leader":%d,"leader_epoch":%d,"isr":[1]}' % (chance.randrange(3), chance.randrange(9))
    if tree.get(state) is None:
        return [Create(paths.partition(name, 0)), Create(state, data)]
    return [Put(state, data)]


@pytest.mark.parametrize("seed", range(4))
@trio_test
async def test_the_image_follows_through_lost_connections(
    shared_zookeeper: ZooKeeperServer, chroot: str, seed: int
) -> None:
    """One client changes the tree. A mirror whose connection is cut again and again has the same image at the end, and
    each image meanwhile is one that the tree had."""
    chance = random.Random(seed)
    proxy = Proxy(shared_zookeeper.address)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        async with mirror(shared_zookeeper.address, chroot) as writer, mirror(proxy.address, chroot) as follower:
            await rooted(writer)
            tree = Tree({path: Znode(b"") for path in paths.ROOTS})
            had = [Image().after(dict(tree.under("/")))]
            seen: list[Image] = []
            follower.changed.subscribe(lambda: seen.append(follower.image))
            for number in range(150):
                operations = change(tree, chance)
                changes = tree.plan(operations)
                await writer.multi(operations)
                tree.apply(changes)
                had.append(had[-1].after(changes))
                assert writer.image == had[-1]
                if number % 10 == 5:
                    proxy.cut_after = chance.choice(["in", "out"]), chance.randrange(3000)
                if number % 10 == 9:
                    proxy.cut_after = None
            proxy.cut_after = None
            with trio.fail_after(LIMIT_S):
                while follower.image != had[-1]:
                    await trio.sleep(0.01)
            assert [each for each in seen if each not in had and each.topics] == []
        nursery.cancel_scope.cancel()
