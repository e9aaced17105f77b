"""The client against real ZooKeepers, with another client (kazoo) beside it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient
from trio.testing import trio_test

from krappy.cluster.zk.client import ZooKeeper
from krappy.cluster.zk.session import Status
from krappy.core.cluster.tree import Check, Create, Delete, Operation, Put, Refusal, RefusedMulti, Znode
from krappy.errors import ConnectionLost, StorageError
from tests.cluster.proxy import Proxy
from tests.cluster.zookeeper import Missing, ZooKeeperServer, zookeepers

LIMIT_S = 60


@contextlib.asynccontextmanager
async def connected(
    address: tuple[str, int], chroot: str, timeout_ms: int = 20_000, **more: Any
) -> AsyncIterator[ZooKeeper]:
    client = ZooKeeper([address], chroot=chroot, timeout_ms=timeout_ms, **more)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            yield client
            await client.close()


async def until(ready: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not ready():
            await trio.sleep(0.01)


@trio_test
async def test_it_and_kazoo_see_the_same(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    kazoo = KazooClient(hosts=f"127.0.0.1:{shared_zookeeper.port}")
    await trio.to_thread.run_sync(kazoo.start)
    try:
        async with connected(shared_zookeeper.address, chroot) as client:
            await client.multi([Create("/a", b"1"), Create("/a/é", b"\0" * 5), Create("/a/mine", b"", owner=1)])
            data, stat = kazoo.get(f"{chroot}/a/é")
            assert (data, stat.version) == (b"\0" * 5, 0)
            assert kazoo.get(f"{chroot}/a/mine")[1].ephemeralOwner == client.session.id
            kazoo.set(f"{chroot}/a", b"2")
            kazoo.create(f"{chroot}/a/theirs", b"x", ephemeral=True)
            assert await client.get("/a") == Znode(b"2", 1)
            assert await client.children("/a") == sorted(kazoo.get_children(f"{chroot}/a"))
            found = await client.under("/a")
            assert [*found] == ["/a", "/a/mine", "/a/theirs", "/a/é"]
            assert found["/a/theirs"].owner == kazoo.client_id[0]
            assert await client.get("/nothing") is None
            assert await client.children("/nothing") == []
        assert sorted(kazoo.get_children(f"{chroot}/a")) == ["theirs", "é"], "the ephemeral one went with its session"
    finally:
        await trio.to_thread.run_sync(kazoo.stop)
        kazoo.close()


@pytest.mark.parametrize(
    ("operations", "index", "why"),
    [
        ([Create("/a")], 0, Refusal.NODE_EXISTS),
        ([Create("/b"), Create("/x/y")], 1, Refusal.NO_NODE),
        ([Put("/a", b"", 7)], 0, Refusal.BAD_VERSION),
        ([Put("/a", b"2"), Put("/a", b"3"), Check("/a", 1)], 2, Refusal.BAD_VERSION),
        ([Delete("/a")], 0, Refusal.NOT_EMPTY),
        ([Delete("/none")], 0, Refusal.NO_NODE),
        ([Create("/a/e/f")], 0, Refusal.NO_CHILDREN_FOR_EPHEMERALS),
    ],
)
@trio_test
async def test_a_refused_multi_does_nothing(
    shared_zookeeper: ZooKeeperServer, chroot: str, operations: list[Operation], index: int, why: Refusal
) -> None:
    async with connected(shared_zookeeper.address, chroot) as client:
        await client.multi([Create("/a", b"1"), Create("/a/e", owner=1)])
        before = await client.under("/")
        with pytest.raises(RefusedMulti) as refused:
            await client.multi(operations)
        assert (refused.value.index, refused.value.why) == (index, why)
        assert refused.value.operation == operations[index]
        assert await client.under("/") == before


@trio_test
async def test_changes_are_told_before_the_answer_that_follows_them(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    told: list[str] = []
    async with (
        connected(shared_zookeeper.address, chroot, happened=told.append) as watching,
        connected(shared_zookeeper.address, chroot) as writing,
    ):
        await watching.watch("/")
        await writing.multi([Create("/n", b"0")])
        for number in range(1, 200):
            told.clear()
            await writing.multi([Put("/n", b"%d" % number)])
            found = await watching.get("/n")
            assert found is not None
            assert (found.data == b"%d" % number) <= ("/n" in told), "it knew the data, and not that it had changed"


@trio_test
async def test_a_session_survives_connections_and_ends_with_its_time(
    shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    proxy = Proxy(shared_zookeeper.address)
    entered: list[bool] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        async with connected(proxy.address, chroot, 5000, entered=entered.append) as client:
            await client.multi([Create("/mine", owner=1)])
            proxy.silent = True  # like a server that hangs: the client must find that out by itself
            with pytest.raises(ConnectionLost):
                await client.get("/mine")
            proxy.silent = False
            await until(lambda: client.session.status == Status.UP and len(entered) > 1)
            assert entered == [True, False]
            found = await client.get("/mine")
            assert found is not None, "the session has survived"
            assert found.owner == client.session.id
            proxy.silent = True
            began = trio.current_time()
            await until(lambda: client.session.status == Status.OVER)
            assert trio.current_time() - began < 20
            async with connected(shared_zookeeper.address, chroot) as other:
                with trio.fail_after(20):
                    while await other.get("/mine") is not None:
                        await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_connection_cut_at_every_byte(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    """Each write is acknowledged, or its outcome is unknown. The client can read an unknown outcome, and go on from
    it."""
    proxy = Proxy(shared_zookeeper.address)

    async def count(client: ZooKeeper) -> int:
        while True:
            try:
                found = await client.get("/n")
            except ConnectionLost:
                await until(lambda: client.session.status == Status.UP)
                continue
            assert found is not None
            return int(found.data)

    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        async with connected(proxy.address, chroot, 4000) as client:
            await client.multi([Create("/n", b"0")])
            number = unknown = wrong = 0
            for way, most in (("in", 150), ("out", 190)):
                for at in range(1, most):
                    # Cuts this connection after `at` more bytes, and perhaps the next one, too.
                    proxy.cut_after = way, proxy.passed[way] + at
                    while proxy.cut_after is not None:
                        try:
                            await client.multi([Check("/n", number), Put("/n", b"%d" % (number + 1))])
                            number += 1
                        except ConnectionLost as error:
                            proxy.cut_after = None
                            await until(lambda: client.session.status == Status.UP)
                            now = await count(client)
                            sent = bool(error.sent)
                            unknown += sent
                            wrong += now not in ((number, number + 1) if sent else (number,))
                            number = now
            assert unknown > 50
            assert not wrong
            assert await count(client) == number
        nursery.cancel_scope.cancel()


@trio_test
async def test_names_and_passwords(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with connected(shared_zookeeper.address, chroot, auth=[("digest", b"krappy:secret")]) as client:
        await client.multi([Create("/open")])
        assert await client.children("/") == ["open"]


@trio_test
async def test_a_request_that_zookeeper_does_not_take(shared_zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with connected(shared_zookeeper.address, chroot) as client:
        with pytest.raises((StorageError, ConnectionLost)):
            await client.multi([Create("/large", b"x" * (2 << 20))])  # more than jute.maxbuffer
        await until(lambda: client.session.status == Status.UP)
        assert await client.get("/large") is None


@trio_test
async def test_an_ensemble_that_loses_its_leader(tmp_path: Path) -> None:
    """The session goes on at another server. No acknowledged write is lost, and none is done twice."""
    try:
        running = contextlib.ExitStack()
        servers = await trio.to_thread.run_sync(lambda: running.enter_context(zookeepers(tmp_path, 3)))
    except Missing as reason:
        pytest.skip(str(reason))
    with running:
        told: list[str] = []
        client = ZooKeeper([each.address for each in servers], chroot="/k", timeout_ms=20_000, happened=told.append)
        with trio.fail_after(2 * LIMIT_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(client.run)
                await client.multi([Create("/n", b"0"), Create("/mine", owner=1)])
                number = 0
                for round in range(60):
                    if round == 20:
                        while not (leaders := [each for each in servers if each.leads()]):
                            await trio.sleep(0.05)
                        leaders[0].kill()
                    try:
                        await client.multi([Check("/n", number), Put("/n", b"%d" % (number + 1))])
                        number += 1
                    except (ConnectionLost, RefusedMulti):
                        while True:
                            try:
                                await client.sync()
                                found = await client.get("/n")
                                break
                            except ConnectionLost:
                                await trio.sleep(random.uniform(0.05, 0.2))
                        assert found is not None
                        assert int(found.data) in (number, number + 1)
                        number = int(found.data)
                found = await client.get("/mine")
                assert found is not None
                assert found.owner == client.session.id, "the session is the same"
                await client.close()


@trio_test
async def test_a_read_that_is_cancelled_as_the_session_ends_raises_nothing() -> None:
    """One request of the read fails, and another is cancelled. The error would come in an exception group, which no
    caller expects."""

    class Ending(ZooKeeper):
        async def get(self, path: str) -> Znode | None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                if path == "/a":
                    raise ConnectionLost("the session with ZooKeeper has ended") from None
                raise

    client = Ending([("127.0.0.1", 1)])
    with trio.move_on_after(0.05) as scope:
        await client.read(["/a", "/b"])
    assert scope.cancelled_caught
