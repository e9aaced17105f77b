"""The clients of a cluster: what they ask goes to the leaders, and follows them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

import krappy
from krappy import blocking
from krappy.broker.kafka_groups.admin import Admin
from krappy.clients import admin, sending
from krappy.clients.cluster import HEARD, KnownCluster, KnownPlaces
from krappy.clients.learning import Learning
from krappy.clients.watching import Watching
from krappy.errors import CoordinatorNotAvailable, NotCoordinator, Overloaded, PolicyViolation, UnknownProducer
from krappy.partitioner import partition_for
from krappy.types import TopicPartition
from tests.clients.several import Cluster, cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as found:
        yield found


async def test_events_and_lookups_go_to_the_leaders(several: Cluster) -> None:
    several.create("t", 6, **{"cleanup.policy": "compact"})
    async with krappy.connect(several.addresses, timeout=5) as client:
        async with client.producer("t") as producer:
            receipts = [await producer.send(b"%d" % n, key=b"k%d" % n) for n in range(100)]
        assert {each.partition for each in receipts} == set(range(6))
        table = client.table("t")
        for n in range(0, 100, 7):
            found = await table.get(b"k%d" % n)
            assert found is not None
            assert (found.value, found.offset) == (b"%d" % n, receipts[n].offset)
        keys = [b"k%d" % n for n in range(99, -1, -1)] + [b"absent"]
        many = await table.get_many(keys)
        assert [each and each.value for each in many] == [b"%d" % n for n in range(99, -1, -1)] + [None]
        block = await table.get_columns(keys)
        assert block.lists()["value"] == [b"%d" % n for n in range(99, -1, -1)] + [None]
        assert block.there() == [True] * 100 + [False]
        ends = await client.offsets("t", "latest")
        assert sum(ends.values()) == 100
        described = await client.describe("t")
        assert [each.leader for each in described.partitions] == [1, 2, 3, 1, 2, 3]
        assert {each.partition: each.end for each in described.partitions} == ends
        history = [entry async for entry in table.history(b"k5")]
        assert [each.value for each in history] == [b"5"]


async def test_one_broker_of_several_is_enough_to_begin(several: Cluster) -> None:
    several.create("t", 3)
    several.kill(1)
    several.lead("t", 0, 2)
    async with krappy.connect(",".join(several.addresses), timeout=5) as client, client.producer("t") as producer:
        for partition in range(3):
            await producer.send(b"v", partition=partition)


async def test_a_lookup_follows_the_leader(several: Cluster) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=5) as client:
        await client.table("t").put(b"k", b"v", partition=1)
        several.lead("t", 1, 3)
        found = await client.table("t").get(b"k", partition=1)
        assert found is not None
        several.kill(3)
        several.lead("t", 1, 1)
        found = await client.table("t").get(b"k", partition=1)
        assert found is not None


async def test_leaders_that_hear_of_a_new_topic_later_are_waited_for(several: Cluster) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=20) as client:
        key = next(key for key in map(str, itertools.count()) if partition_for(key.encode(), 3) == 1)
        await client.table("t").put(key, b"v")
        for read in (partial(client.table("t").get, key), partial(client.offsets, "t")):
            with several.late("t", 2, 3, seconds=1.0):
                assert await read()
        with several.late("t", 2, 3, seconds=1.0), anyio.fail_after(20):
            async with (
                client.table("t").watch() as watch,
                client.consumer("t", start="earliest") as reader,
            ):
                assert [entry.value async for entry in client.table("t").scan()] == [b"v"]
                assert [event.value for event in await reader.poll(20)] == [b"v"]
                entry = await anext(aiter(watch))
                assert isinstance(entry, krappy.Entry)
                assert entry.value == b"v"


async def test_a_coordinator_that_hears_of_a_new_topic_later_is_waited_for(
    several: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    several.create("t", 3)

    def elsewhere(name: str) -> None:
        raise NotCoordinator("broker 2 coordinates it", coordinator=2)

    for other in (1, 3):
        monkeypatch.setattr(several.brokers[other].engine.groups.storage, "check_here", elsewhere)
    async with krappy.connect(several.addresses, timeout=20) as client:
        with several.late("t", 2, seconds=1.0), anyio.fail_after(20):
            async with client.consumer("t", group="g") as member:
                assert member.member


def test_a_leader_may_be_late_for_so_long() -> None:
    """It may be late from its first such answer on, for some seconds. After a while without such answers it may be late
    again: for another topic of the name, or for partitions that were added."""
    known = KnownCluster()
    known.topics["t"] = KnownPlaces("id", False, [])
    assert [known.may_hear("t", now) for now in (100.0, 103.0, 107.0, 109.9, 110.1, 112.0)] == [True] * 4 + [False] * 2
    assert known.may_hear("t", 112.0 + HEARD)
    assert not known.may_hear("unknown", 0.0)


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_producers_wait_for_leaders_that_hear_of_a_new_topic_later(several: Cluster, kind: str) -> None:
    several.create("t", 3)
    several.create_no_topics()
    with several.late("t", 2, 3, seconds=1.0):
        if kind == "async":
            async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t") as producer:
                for partition in range(3):
                    await producer.send(b"v", partition=partition)
        else:
            await anyio.to_thread.run_sync(send_to_each_of_three, several.addresses)


async def test_a_leader_that_hears_of_an_added_partition_later_is_waited_for(several: Cluster) -> None:
    several.create("t", 2)
    async with krappy.connect(several.addresses, timeout=20) as client:

        async def produce() -> None:
            async with client.producer("t") as producer:
                await producer.send(b"v", key=b"k", partition=2)

        async def read() -> None:
            async with client.consumer("t", partitions=[2], start="earliest") as reader:
                assert [event.value for event in await reader.poll(20)] == [b"v"]

        async def watch() -> None:
            async with client.table("t").watch(partitions=[2]) as changes:
                async for change in changes:
                    if isinstance(change, krappy.Entry):
                        assert change.value == b"v"
                        break

        async def look_up() -> None:
            await client.table("t").get(b"k", partition=2)
            async for entry in client.table("t").scan(partitions=[2]):
                assert entry.value == b"v"

        with several.late_partition("t", 3, seconds=1.0), anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for work in (produce, read, watch, look_up):
                    tasks.start_soon(work)


async def test_a_producer_outlives_a_broker_that_is_too_busy_to_tell_of_leaders(
    several: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    several.create("t", 3)
    several.create_no_topics()
    refresh, busy = Learning.refresh, 0

    async def refused(learning: Learning, topics: Iterable[str], deadline: float, *, doubt: bool = False) -> None:
        nonlocal busy
        if late.is_set() and busy < 2:
            busy += 1
            raise Overloaded("too many requests wait already")
        await refresh(learning, topics, deadline, doubt=doubt)

    late = threading.Event()
    monkeypatch.setattr(Learning, "refresh", refused)
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t") as producer:
        with several.late("t", 2, 3, seconds=0.5):
            late.set()
            for partition in range(3):
                await producer.send(b"v", partition=partition)
    assert busy == 2


def send_to_each_of_three(addresses: list[str]) -> None:
    with blocking.connect(addresses, timeout=20) as client, client.producer("t") as producer:
        for partition in range(3):
            producer.send(b"v", partition=partition)


async def test_a_producer_keeps_its_sequences_when_a_partition_moves(several: Cluster) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t", linger_ms=0) as producer:
        deliveries = []
        for round in range(4):
            for n in range(200):
                deliveries.append(await producer.post(b"%d" % (round * 200 + n), partition=n % 3))
                if n % 20 == 0:
                    await deliveries[-1]
                if n == 100:
                    several.lead("t", 1, 1 + round % 3)
        receipts = [await each for each in deliveries]
        for partition in range(3):
            offsets = [each.offset for each in receipts if each.partition == partition]
            assert offsets == list(range(len(offsets)))


async def test_a_batch_whose_answer_was_lost_with_the_leader_is_stored_once(several: Cluster) -> None:
    several.create("t", 2)
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t", linger_ms=0) as producer:
        await producer.send(b"0", partition=0)
        await producer.send(b"0", partition=1)
        several.proxies[1].deafen()
        lost = [await producer.post(b"%d" % n, partition=0) for n in range(1, 50)]
        others = [await producer.send(b"%d" % n, partition=1) for n in range(1, 50)]
        assert [each.offset for each in others] == list(range(1, 50))
        assert not lost[0].done()
        several.kill(1)
        several.lead("t", 0, 2)
        assert [(await each).offset for each in lost] == list(range(1, 50))


async def test_a_client_of_one_broker_learns_of_the_others_by_a_refusal(several: Cluster) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses[0], timeout=5) as client:
        client._router.known.several = False
        async with client.producer("t") as producer:
            for n in range(9):
                await producer.send(b"%d" % n, key=b"%d" % n)
        client._router.known.several = False
        assert await client.table("t").get(b"5") is not None
        client._router.known.several = False
        assert None not in await client.table("t").get_many([b"%d" % n for n in range(9)])
        client._router.known.several = False
        assert sum((await client.offsets("t", "latest")).values()) == 9


def test_the_blocking_client_follows_too(several: Cluster) -> None:
    several.create("t", 3)
    with blocking.connect(several.addresses, timeout=20) as client, client.producer("t", linger_ms=0) as producer:
        futures = []
        for n in range(300):
            futures.append(producer.send(b"%d" % n, partition=n % 3))
            if n == 150:
                several.lead("t", 1, 1)
                several.kill(3)
                several.lead("t", 2, 1)
        receipts = [each.result(20) for each in futures]
        for partition in range(3):
            assert [each.offset for each in receipts if each.partition == partition] == list(range(100))


async def test_a_reader_gets_each_event_once_and_in_order_while_leaders_change(several: Cluster) -> None:
    several.create("t", 4)
    async with (
        krappy.connect(several.addresses, timeout=20) as client,
        client.producer("t", linger_ms=0) as producer,
        client.consumer("t") as consumer,
    ):
        found: dict[int, list[int]] = {}
        for round in range(5):
            deliveries = [await producer.post(b"%d" % (round * 100 + n), partition=n % 4) for n in range(100)]
            for n in range(100):
                if n == 30:
                    several.lead("t", round % 4, 1 + (round + n) % 3)
                if n == 60 and round == 3:
                    several.kill(2)
                    for partition in range(4):
                        if several.leaders["t", partition][0] == 2:
                            several.lead("t", partition, 1)
                with anyio.fail_after(20):
                    event = await anext(consumer)
                assert event.value is not None
                found.setdefault(event.partition, []).append(int(event.value))
            for delivery in deliveries:
                await delivery
        for partition, values in found.items():
            assert values == [n for n in range(500) if n % 4 == partition]


async def test_a_reader_stops_at_the_ends_of_all_partitions(several: Cluster) -> None:
    several.create("t", 3)
    several.create("u", 2)
    async with krappy.connect(several.addresses, timeout=5) as client:
        for topic, count in (("t", 3), ("u", 2)):
            async with client.producer(topic) as producer:
                await producer.send_columns(None, [b"%d" % n for n in range(300)], partition=0)
                for partition in range(1, count):
                    await producer.send(b"x", partition=partition)
        async with client.consumer(["t", "u"], end="now") as consumer:
            found = [event async for event in consumer]
        assert len(found) == 603
        async with client.consumer("t", start=250, partitions=[0]) as consumer:
            assert (await anext(consumer)).offset == 250
            assert await consumer.seek(0, "earliest") == 0
            assert (await anext(consumer)).offset == 0
            several.lead("t", 0, 3)
            assert await consumer.seek(0, 290) == 290
            assert (await anext(consumer)).offset == 290
            assert consumer.positions == {krappy.TopicPartition("t", 0): 291}


async def test_a_reader_finds_partitions_that_are_added(several: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krappy.clients.reading.REFRESH", 0.0)
    monkeypatch.setattr("krappy.clients.reading.MAX_WAIT", 50)
    several.create("t", 2)
    async with krappy.connect(several.addresses, timeout=5) as client, client.consumer("t", start="latest") as consumer:
        several.add_partition("t", 3)
        async with client.producer("t") as producer:
            await producer.send(b"new", partition=2)
        with anyio.fail_after(10):
            assert (await anext(consumer)).value == b"new"


async def test_a_scan_goes_over_all_leaders(several: Cluster) -> None:
    several.create("t", 5)
    async with krappy.connect(several.addresses, timeout=5) as client:
        table = client.table("t")
        async with client.producer("t") as producer:
            await producer.send_columns([b"k%03d" % n for n in range(500)], [b"%d" % n for n in range(500)])
        found = [entry async for entry in table.scan(page_entries=20)]
        assert sorted(int(entry.value or b"") for entry in found) == list(range(500))
        several.lead("t", 2, 1)
        scan = table.scan(prefix=b"k1", page_entries=7)
        found = [entry async for entry in scan]
        assert len(found) == 100
        assert sorted(scan.offsets) == [0, 1, 2, 3, 4]
        parts: dict[int, list[bytes]] = {}
        for entry in found:
            parts.setdefault(entry.partition, []).append(entry.key)
        assert all(keys == sorted(keys) for keys in parts.values())
        assert [entry async for entry in table.scan(partitions=[4, 1])] == [
            entry async for entry in table.scan() if entry.partition in (1, 4)
        ] or {entry.partition async for entry in table.scan(partitions=[4, 1])} == {1, 4}


async def test_what_a_topic_with_strays_can_not_tell_is_not_told(several: Cluster) -> None:
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=5) as client:
        table = client.table("t")
        home = 0
        async with client.producer("t") as producer:
            for n in range(30):
                home = (await producer.send(b"old", key=b"k%d" % n, timestamp=1000)).partition
            await producer.send(b"new", key=b"k29", partition=(home + 1) % 3, timestamp=2000)
        found = await table.get(b"k29")
        assert found is not None
        assert found.value == b"new"
        many = await table.get_many([b"k29", b"k1"])
        assert [each and each.value for each in many] == [b"new", b"old"]
        for reading in (table.scan(), table.watch()):
            with pytest.raises(PolicyViolation, match="other partitions"):
                await anext(reading)
        with pytest.raises(PolicyViolation):
            await table.get_columns([b"k29"])


async def test_a_watch_follows_the_leaders(several: Cluster) -> None:
    several.create("t", 4)
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t") as producer:
        for n in range(100):
            await producer.post(b"%d" % n, key=b"k%d" % n)
        await producer.flush()
        table: dict[bytes, bytes | None] = {}
        ended = 0
        async with client.table("t").watch() as watch:

            async def until(count: int) -> None:
                nonlocal ended
                with anyio.fail_after(20):
                    while count:
                        item = await anext(watch)
                        if isinstance(item, krappy.SnapshotEnd):
                            ended += 1
                            assert sum(item.offsets.values()) == 100
                        else:
                            table[item.key] = item.value
                        count -= 1

            await until(101)
            assert ended == 1
            for round in range(4):
                several.lead("t", round, 1 + round % 2)
                if round == 2:
                    several.kill(3)
                    for partition in range(4):
                        if several.leaders["t", partition][0] == 3:
                            several.lead("t", partition, 1)
                for n in range(100):
                    await producer.post(b"%d.%d" % (round, n), key=b"k%d" % n)
                await producer.flush()
                await until(100)
            assert table == {b"k%d" % n: b"3.%d" % n for n in range(100)}
            assert ended == 1
            assert watch.offsets is not None
            assert sum(watch.offsets.values()) == 500


def differs(key: bytes) -> int:
    """A partition of three that is not the key's own."""
    return (partition_for(key, 3) + 1) % 3


async def test_what_a_watch_tells_last_of_a_stray_is_what_the_table_has(several: Cluster) -> None:
    """Another leader has the newer event of the key, and tells of it before the older one is told."""
    several.create("t", 3)
    keys = [b"k%d" % n for n in range(20)]
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t") as producer:
        table: dict[bytes, bytes | None] = {}
        told = 0
        async with client.table("t").watch() as watch:

            async def until(key: bytes, value: bytes) -> None:
                nonlocal told
                with anyio.fail_after(20):
                    while table.get(key) != value:
                        item = await anext(watch)
                        if not isinstance(item, krappy.SnapshotEnd):
                            table[item.key] = item.value
                            told += 1

            for key in keys:
                await producer.send(b"first", key=key, timestamp=1000)
                await until(key, b"first")
            for key in keys:
                await producer.send(b"new", key=key, partition=differs(key), timestamp=3000)
                await until(key, b"new")
                await producer.send(b"old", key=key, timestamp=2000)
            for partition in range(3):
                await producer.send(b"end", key=b"end %d" % partition, partition=partition, timestamp=4000)
            for partition in range(3):
                await until(b"end %d" % partition, b"end")
            found = await client.table("t").get_many(keys)
            assert {table[key] for key in keys} == {each and each.value for each in found} == {b"new"}
            # The newer event is not the newest any more: its partition gets an older one of the key.
            key = keys[0]
            await producer.send(b"newest of its partition", key=key, partition=differs(key), timestamp=1500)
            await until(key, b"old")
            assert await client.table("t").get(key) != found[0]
            large = b"x" * 900_000
            for key in keys:
                await producer.send(large, key=key, partition=differs(key), timestamp=5000)
                await until(key, large)
            assert told < 200


async def test_a_watch_tells_of_added_partitions_what_the_table_has(
    several: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch learns of both new partitions at the same time, and the first one's events are older."""
    monkeypatch.setattr("krappy.clients.aio.table.Watching", partial(Watching, refresh=0.0))
    several.create("t", 2)
    keys = [b"k%d" % n for n in range(50)]
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t") as producer:
        table: dict[bytes, bytes | None] = {}
        async with client.table("t").watch() as watch:
            for key in keys:
                await producer.send(b"0", key=key, timestamp=1000)
            while len(table) < len(keys):
                item = await anext(watch)
                if not isinstance(item, krappy.SnapshotEnd):
                    table[item.key] = item.value
            several.add_partition("t", 3)
            several.add_partition("t", 2)
            async with krappy.connect(several.addresses, timeout=20) as other, other.producer("t") as writer:
                for partition, time in ((2, 3000), (3, 2000)):
                    for key in keys:
                        await writer.send(b"%d" % partition, key=key, partition=partition, timestamp=time)
                await writer.send(b"end", key=b"end", partition=3, timestamp=4000)
                found = {each.key: each.value for each in await other.table("t").get_many(keys) if each is not None}
            assert set(found.values()) == {b"2"}
            with anyio.fail_after(20):
                while table.get(b"end") is None or {table[key] for key in keys} != {b"2"}:
                    item = await anext(watch)
                    assert not isinstance(item, krappy.SnapshotEnd)
                    assert (table.get(item.key), item.value) not in ((b"2", b"3"), (b"2", b"0"))
                    table[item.key] = item.value


@pytest.mark.parametrize("seconds", [0.0, 0.6])
async def test_a_producer_gets_a_new_id_while_it_reaches_all_leaders(
    seconds: float, several: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer needs no other connection, only the id: it used to stand still until some connection was lost. On a
    busy machine an id may take long (here 0.6 s, and the first try waits 0.2 s): a broker is given longer each time."""
    monkeypatch.setattr(sending, "FINDING", 0.2)
    several.create("t", 3)
    async with krappy.connect(several.addresses, timeout=20) as client, client.producer("t", timeout=15) as producer:
        for partition in range(3):
            await producer.send(b"0", partition=partition)
        for broker in several.brokers.values():
            given = broker.engine.new_producer_id

            async def slow(given: Callable[[], Awaitable[int]] = given) -> int:
                await trio.sleep(seconds)
                return await given()

            monkeypatch.setattr(broker.engine, "new_producer_id", slow)
            monkeypatch.setattr(broker.engine.catalog, "was_given", lambda id: id > 1000)  # the first id is forgotten
        with pytest.raises(UnknownProducer):
            await producer.send(b"1", partition=0)
        receipt = await producer.send(b"2", partition=0)
        assert receipt.offset == 1


async def test_a_list_of_groups_is_asked_for_until_the_brokers_agree_who_coordinates_them(
    several: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that another broker took over meanwhile was listed twice, or not at all."""
    several.create("t", 3)
    async with krappy.connect(several.addresses[1], timeout=5) as client:
        await client.commit("moved", {TopicPartition("t", 1): 0})
        epochs = itertools.count(1)  # each broker knows of another election

        def differs(_: object) -> int:
            return next(epochs)

        monkeypatch.setattr(Admin, "epoch", differs)
        with pytest.raises(CoordinatorNotAvailable):
            await client.groups()
        agreed = threading.Timer(1, lambda: monkeypatch.setattr(Admin, "epoch", lambda _: 7))
        agreed.start()
        assert [each.group for each in await client.groups()] == ["moved"]
        agreed.join()


async def test_a_group_is_told_of_though_its_leader_is_lost(several: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers name a leader until its session is over."""
    several.create("t", 3)
    monkeypatch.setattr(admin, "AWAY", 0.3)
    async with krappy.connect(several.addresses[1:]) as client:
        await client.commit("told", {TopicPartition("t", 0): 0})
        found = await client.group("told")
        [told] = found.partitions
        unknown = [found._replace(partitions=[told._replace(end=-1, lag=-1)])]
        router = client._connection.router
        assert await admin._with_ends(router, unknown) == [found]
        several.kill(several.leaders["t", 0][0])
        with anyio.fail_after(10):
            assert await admin._with_ends(router, unknown) == unknown
