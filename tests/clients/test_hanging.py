"""Clients of brokers that hang, like a process that was stopped or a machine that was unplugged, until other brokers
lead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import krappy
from krappy import blocking
from krappy.clients import watchdog
from krappy.clients.watchdog import PATIENCE
from krappy.errors import ConnectionLost
from krappy.wire import messages
from tests.clients.several import Cluster, cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as found:
        yield found


def replaced_later(several: Cluster, broker: int, by: int) -> threading.Timer:
    """The broker `broker` hangs from now on. A second later `by` leads."""
    several.hang(broker)

    def replace() -> None:
        for (topic, partition), (leader, _) in list(several.leaders.items()):
            if leader == broker:
                several.lead(topic, partition, by)

    timer = threading.Timer(1, replace)
    timer.start()
    return timer


@pytest.mark.parametrize("hanging", [1, 3])  # 1: the client has connected to that broker first
async def test_a_lookup_does_not_wait_for_a_leader_that_hangs(several: Cluster, hanging: int) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=60) as client:
        table = client.table("t")
        for partition in range(3):
            await table.put(b"k%d" % partition, b"v", partition=partition)
        timer = replaced_later(several, hanging, 2)
        with anyio.fail_after(10):
            for partition in range(3):
                assert await table.get(b"k%d" % partition, partition=partition) is not None
            assert len(await client.offsets("t", "latest")) == 3
        timer.join()


@pytest.mark.parametrize("anyio_backend", ["trio"])  # it takes long
async def test_a_client_that_knows_no_other_broker_asks_one(several: Cluster) -> None:
    """The client has only two connections, both to the broker that hangs: one to the leader, and one to any broker. It
    used to ask the latter who leads, again and again, and nobody else."""
    several.create("t", 1)
    async with krappy.connect(several.addresses, timeout=60) as client:
        table = client.table("t")
        await table.put(b"k", b"v")
        timer = replaced_later(several, 1, 2)
        with anyio.fail_after(20):
            assert await table.get(b"k") is not None
            assert (await client.describe("t")).partitions[0].leader == 2  # any broker does for that
        timer.join()


async def test_a_broker_that_hangs_holds_up_no_client_that_connects(several: Cluster) -> None:
    """The broker is the first of the addresses."""
    several.hang(1)
    async with krappy.connect(several.addresses, timeout=8) as client:
        assert (await client.ping()).brokers == 3


@pytest.mark.parametrize("anyio_backend", ["trio"])  # it takes long
async def test_a_broker_that_comes_back_in_time_is_not_left(several: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has answered no ping for a while, so other brokers were asked. They say that it leads, or that it is
    alive, as a coordinator of groups is."""
    monkeypatch.setattr(watchdog, "LONGEST", 60.0)
    several.create("t", 1)
    async with krappy.connect(several.addresses, timeout=60) as client:
        router = client._router
        await client.table("t").put(b"k", b"v")
        coordinator = await router.broker(3, router.runtime.now() + 20)
        links = [router.home, *router.links._by_id.values()]
        assert coordinator in links[1:]
        before, asked = [each.generation for each in links], router._watchdog._turn
        for broker in (1, 3):
            several.proxies[broker].pause()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.table("t").get, b"k")
            tasks.start_soon(client.describe, "t")
            tasks.start_soon(coordinator.ask, messages.DescribeTopics(), messages.TopicsDescribed)
            with anyio.fail_after(15):
                while router._watchdog._turn < asked + 2 or not all(each.silent(PATIENCE) for each in links):
                    await anyio.sleep(0.05)
            for broker in (1, 3):
                several.proxies[broker].go_on()
        assert [each.generation for each in links] == before


async def test_a_producer_does_not_wait_for_a_leader_that_hangs(several: Cluster) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=60) as client, client.producer("t", linger_ms=0) as producer:
        for n in range(3):
            await producer.send(b"%d" % n, partition=n)
        timer = replaced_later(several, 3, 1)
        deliveries = [await producer.post(b"%d" % n, partition=n % 3) for n in range(3, 300)]
        with anyio.fail_after(10):
            receipts = [await each for each in deliveries]
        assert [each.offset for each in receipts] == [n // 3 for n in range(3, 300)]
        timer.join()


async def test_readers_and_watches_do_not_wait_for_a_leader_that_hangs(several: Cluster) -> None:
    several.create("t", 3)
    async with (
        krappy.connect(several.addresses, timeout=60) as client,
        client.producer("t", linger_ms=0) as producer,
        client.consumer("t") as consumer,
        client.table("t").watch() as watch,
    ):
        for partition in range(3):
            await producer.send(b"v", key=b"k%d" % partition, partition=partition)
        with anyio.fail_after(10):
            assert sorted([(await anext(consumer)).partition for _ in range(3)]) == [0, 1, 2]
            for _ in range(4):
                await anext(watch)
        timer = replaced_later(several, 3, 1)
        with anyio.fail_after(15):
            for partition in range(3):
                await producer.send(b"w", key=b"k%d" % partition, partition=partition)
            assert sorted([(await anext(consumer)).partition for _ in range(3)]) == [0, 1, 2]
            assert sorted([(await anext(watch)).partition for _ in range(3)]) == [0, 1, 2]  # type: ignore[union-attr]
        timer.join()


def test_the_blocking_client_does_not_wait_either(several: Cluster) -> None:
    several.create("t", 3)
    with blocking.connect(several.addresses, timeout=60) as client:
        table = client.table("t")
        table.put(b"k", b"v", partition=2)
        timer = replaced_later(several, 3, 1)
        began = time.monotonic()
        assert table.get(b"k", partition=2) is not None
        assert time.monotonic() - began < 10
        timer.join()


async def test_a_slow_broker_that_leads_keeps_its_connections(several: Cluster) -> None:
    """Nobody has replaced the broker, so asking again would not help."""
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=60) as client:
        table = client.table("t")
        await table.put(b"k", b"v", partition=2)
        several.hang(3)
        with anyio.move_on_after(5) as waited:
            await table.get(b"k", partition=2)
        assert waited.cancelled_caught
        link = next(link for id, link in client._router.links._by_id.items() if id == 3)
        assert not link.broken
        assert not client._router.home.broken


@pytest.mark.parametrize("alone", [True, False])
async def test_a_connection_that_is_dead_is_left_although_its_broker_leads(several: Cluster, alone: bool) -> None:
    """As when a firewall has forgotten the connection. `alone`: the client knows no other broker."""
    several.create("t", 1)
    addresses = several.addresses[:1] if alone else several.addresses
    async with krappy.connect(addresses, timeout=60) as client, client.consumer("t", end=None) as consumer:
        table = client.table("t")
        await table.put(b"k", b"v")
        assert (await anext(consumer)).value == b"v"
        several.proxies[1].freeze()
        with anyio.fail_after(20):
            receipt = await table.put(b"k", b"w")
            assert (await anext(consumer)).offset == receipt.offset == 1


def test_the_blocking_client_leaves_a_dead_connection(several: Cluster) -> None:
    several.create("t", 1)
    with blocking.connect(several.addresses, timeout=60) as client:
        table = client.table("t")
        table.put(b"k", b"v")
        several.proxies[1].freeze()
        began = time.monotonic()
        found = table.get(b"k")
        assert found is not None
        assert time.monotonic() - began < 20


def test_a_client_over_its_quota_keeps_its_connection(several: Cluster) -> None:
    """Its pings have to wait, too. If it sent again what waits, that would count again."""
    several.create("t", 1)
    with blocking.connect(several.proxies[1].to) as client:
        client.security.alter_quotas({"producer_byte_rate": 100_000.0}, user="ANONYMOUS")
    with blocking.connect(several.addresses, timeout=60) as client:
        table = client.table("t")
        table.put("k", b"v")
        accepted = several.proxies[1].accepted
        table.put("k", bytes(900_000))
        began = time.monotonic()
        table.put("k", b"w")
        assert time.monotonic() - began > 6
        assert several.proxies[1].accepted == accepted


@pytest.mark.parametrize("anyio_backend", ["trio"])  # it takes long
async def test_a_change_goes_to_a_third_broker_if_the_second_hangs(
    several: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has connected to the first broker, which is cut off from ZooKeeper."""

    async def cut_off(*_: object, **__: object) -> None:
        raise ConnectionLost("there is no session with ZooKeeper now: nothing was changed", sent=False)

    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=60) as client:
        for partition in range(3):  # so that it has links to all
            await client.table("t").put(b"k%d" % partition, b"v", partition=partition)
        several.lead("t", 1, 3)
        await client.describe("t")
        monkeypatch.setattr(several.brokers[1].engine, "create_topic", cut_off)
        several.hang(2)
        with anyio.fail_after(15):
            assert await client.create_topic("new", if_absent=True)
