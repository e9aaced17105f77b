"""Native clients of three brokers as processes. When a leader is killed, no acknowledged event is lost, and the order
stays."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from krappy import blocking
from krappy.broker.topics.internal_topics import SHARES
from krappy.cli.main import cli
from krappy.clients.watch_progress import SnapshotEnd
from krappy.core.cluster.coordinators import partition_of
from krappy.errors import NotLeader, PolicyViolation, UnknownGroup, UnknownTopic
from krappy.partitioner import partition_for
from krappy.types import Receipt
from krappy.wire import messages as m
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.consumers import commit
from tests.peer import Peer
from tests.process import Stopwatch, wait_until

PARTITIONS = 6
LONG_S = 60.0


@pytest.fixture(scope="module")
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


def until_all_are_back(cluster: ClusterProcesses, topic: str) -> None:
    for each in cluster.brokers.values():
        if not each.running:
            each.begin()
            each.ready()
    cluster.until_in_sync(topic)


class Sender:
    """Sends numbered events to every partition until it is stopped. `pause`: seconds between two rounds; in a round
    each partition gets one event."""

    def __init__(self, client: blocking.Client, topic: str, pause: float = 0.001) -> None:
        self._client, self._topic, self._pause = client, topic, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        # By partition: (offset, number). It has all partitions from the start, because one thread reads it while
        # another one adds to it.
        self.acked: dict[int, list[tuple[int, int]]] = {index: [] for index in range(PARTITIONS)}
        self.failed: list[str] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    @property
    def count(self) -> int:
        return sum(map(len, self.acked.values()))

    def _run(self) -> None:
        number = 0
        with self._client.producer(self._topic, timeout=90) as producer:
            while not self._stop.is_set():
                for partition in range(PARTITIONS):
                    future = producer.send(b"%d" % number, key=b"k%d" % (number % 100), partition=partition)
                    future.add_done_callback(lambda done, number=number: self._told(done, number))  # type: ignore[misc]
                    number += 1
                time.sleep(self._pause)

    def _told(self, done: object, number: int) -> None:
        assert hasattr(done, "exception")
        error = done.exception()
        if error is not None:
            self.failed.append(str(error))
            return
        assert hasattr(done, "result")
        receipt: Receipt = done.result()
        self.acked[receipt.partition].append((receipt.offset, number))


def until_more(sender: Sender, more: int) -> None:
    aim = sender.count + more
    wait_until(lambda: sender.count >= aim, f"{more} more events are acknowledged; failed: {sender.failed[:3]}")


def check_log(client: blocking.Client, topic: str, sender: Sender) -> None:
    """Checks that each acknowledged event is there once, at its offset, and that the events of a partition are in the
    order of their numbers."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    with client.consumer(topic, end="now") as consumer:
        for event in consumer:
            assert event.value is not None
            assert event.offset not in found[event.partition]
            found[event.partition][event.offset] = int(event.value)
    assert not sender.failed
    for partition, acked in sender.acked.items():
        for offset, number in acked:
            assert found[partition].get(offset) == number, f"{partition}: {number} at {offset} is lost"
        numbers = [number for _, number in sorted(found[partition].items())]
        assert numbers == sorted(set(numbers)), f"{partition}: an event is there twice, or the order is wrong"


def leader(client: blocking.Client, topic: str, partition: int) -> int:
    return client.describe(topic).partitions[partition].leader


def test_all_brokers_are_used(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("spread", PARTITIONS, {"cleanup.policy": "compact"})
    described = client.describe("spread").partitions
    assert sorted(each.leader for each in described) == [1, 1, 2, 2, 3, 3]
    assert all(sorted(each.replicas) == [1, 2, 3] for each in described)
    with client.producer("spread") as producer:
        producer.send_columns([b"k%d" % n for n in range(3000)], [b"%d" % n for n in range(3000)])
    table = client.table("spread")
    for n in range(0, 3000, 301):
        entry = table.get(b"k%d" % n)
        assert entry is not None
        assert entry.value == b"%d" % n
    entries = table.get_many([b"k%d" % n for n in range(3000)])
    assert [entry and entry.value for entry in entries] == [b"%d" % n for n in range(3000)]
    assert sum(client.offsets("spread", "latest").values()) == 3000
    with client.consumer("spread", end="now") as consumer:
        assert sorted(int(event.value or b"") for event in consumer) == list(range(3000))


def test_a_leader_is_killed_while_events_are_sent(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("killed", PARTITIONS)
    cluster.until_in_sync("killed")
    with Sender(client, "killed") as sender:
        until_more(sender, 3000)
        cluster.brokers[leader(client, "killed", 0)].kill()
        until_more(sender, 3000)
        until_all_are_back(cluster, "killed")
        until_more(sender, 3000)
        cluster.brokers[leader(client, "killed", 1)].kill()
        until_more(sender, 3000)
    until_all_are_back(cluster, "killed")
    check_log(client, "killed", sender)


def test_a_reader_goes_on_when_a_leader_is_killed(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("read", PARTITIONS)
    cluster.until_in_sync("read")
    found: dict[int, list[int]] = defaultdict(list)
    with Sender(client, "read") as sender, client.consumer("read") as consumer:
        killed = False
        while sum(map(len, found.values())) < 9000:
            for event in consumer.poll(5):
                found[event.partition].append(int(event.value or b""))
            if not killed and sum(map(len, found.values())) > 3000:
                killed = True
                cluster.brokers[leader(client, "read", 0)].kill()
    until_all_are_back(cluster, "read")
    check_log(client, "read", sender)
    for partition, numbers in found.items():
        assert numbers == list(range(partition, partition + PARTITIONS * len(numbers), PARTITIONS))


def test_tables_are_read_over_all_brokers(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("table", PARTITIONS, {"cleanup.policy": "compact"})
    cluster.until_in_sync("table")
    table = client.table("table")
    with client.producer("table") as producer:
        producer.send_columns([b"k%03d" % n for n in range(300)], [b"0"] * 300)
        assert len(list(table.scan())) == 300
        assert len(list(table.scan(prefix="k1"))) == 100
        with table.watch() as watch:
            seen: dict[bytes, bytes | None] = {}
            for item in watch:
                if isinstance(item, SnapshotEnd):
                    break
                seen[item.key] = item.value
            assert len(seen) == 300
            cluster.brokers[leader(client, "table", 2)].kill()
            for round in (b"1", b"2"):
                producer.send_columns([b"k%03d" % n for n in range(300)], [round] * 300)
                for _ in range(300):
                    item = next(watch)
                    assert not isinstance(item, SnapshotEnd)
                    seen[item.key] = item.value
                assert set(seen.values()) == {round}
                until_all_are_back(cluster, "table")


def test_any_replica_answers_for_what_was_written(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """A lookup with `min_offset` sees that write, whichever replica answers. A lookup without it goes to the leader."""
    client.create_topic("near", 1)
    cluster.until_in_sync("near")
    leader = cluster.partitions("near")[0].leader
    table = client.table("near")
    for number in range(60):
        offset = table.put("k", str(number)).offset
        entry = table.get("k", min_offset=offset)
        assert entry is not None
        assert entry.value == b"%d" % number
    asked = {}
    for id, broker in cluster.brokers.items():
        with Peer(broker.address) as peer:
            request = m.Get("near", b"k", 0, offset)
            assert peer.ask(request, m.Got).entry[0][0] == offset
            if id != leader:
                with pytest.raises(NotLeader):
                    peer.ask(m.Get("near", b"k", 0), m.Got)
        told = httpx.get(f"http://{broker.http}/api/v1/overview", timeout=30).json()["requests"]
        asked[id] = sum(each["latency"]["count"] for each in told if each["request"] == "Get")
    assert all(count > 5 for count in asked.values()), asked
    other = next(id for id in cluster.brokers if id != leader)
    with cluster.paused(other):
        offset = table.put("k", "last").offset
        for _ in range(10):
            entry = table.get("k", min_offset=offset)
            assert entry is not None
            assert entry.value == b"last"
    cluster.until_in_sync("near")


def test_a_broker_with_some_of_the_partitions_sees_no_strays(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    [made] = cluster.admin.create_topics([NewTopic("single", PARTITIONS, 1)]).values()
    made.result(30)
    cluster.until_in_sync("single")  # the client may ask another broker than the one that made it
    with client.producer("single") as producer:
        producer.send_columns([b"k%03d" % n for n in range(300)], [b"0"] * 300)
    assert not client.describe("single").scattered
    assert len(list(client.table("single").scan())) == 300
    assert None not in client.table("single").get_many([b"k%03d" % n for n in range(300)])


def test_a_topic_is_described_with_its_replicas(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("described", 3)
    cluster.until_in_sync("described")
    done = CliRunner().invoke(cli, ["topic", "describe", "described", "--address", cluster.native])
    assert done.exit_code == 0
    heads, *rows = [line.split("\t") for line in done.output.splitlines()[:4]]
    assert heads[:4] == ["partition", "leader", "replicas", "isr"]
    assert sorted(row[1] for row in rows) == ["1", "2", "3"]
    assert all(sorted(row[2].split(",")) == sorted(row[3].split(",")) == ["1", "2", "3"] for row in rows)


def test_a_native_group_is_served_by_its_coordinator(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """This is so whichever broker a client asks. The coordinator also serves partitions that other brokers lead,
    because it has replicas of them. The group is there again after a restart."""
    client.create_topic("letters", partitions=3)
    with client.producer("letters") as producer:
        for number in range(30):
            producer.send(b"%d" % number, key=b"%d" % number).result(30)

    def take(count: int, group: str = "mail") -> list[int]:
        found: list[int] = []
        with client.consumer("letters", group=group) as consumer:
            while len(found) < count:
                for event in consumer.poll(5)[: count - len(found)]:  # the rest is delivered again
                    found.append(int(event.value or b""))
                    consumer.ack(event)
        return found

    first = take(10)
    for each in cluster.brokers.values():
        each.kill()
    for each in cluster.brokers.values():
        each.begin()
    for each in cluster.brokers.values():
        each.ready()
    cluster.until_in_sync("letters")
    assert sorted({*first, *take(20)}) == list(range(30))
    names = [f"group-{number}" for number in range(9)]
    for name in names:
        assert len(take(5, name)) == 5
    with blocking.connect(cluster.native.split(",")[0], timeout=LONG_S) as one:
        assert {"mail", *names} <= {each.group for each in one.groups()}
        for name in names:
            assert sum(at.floor for at in one.group(name).partitions) >= 5
        one.delete_group(names[0])
        with pytest.raises(UnknownGroup):
            one.group(names[0])


def test_the_native_client_describes_kafkas_groups(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("papers", partitions=3)
    for number in range(6):
        settings = {"bootstrap.servers": cluster.kafka, "group.id": f"kafka {number}"}
        member = Consumer(settings)
        commit(member, [TopicPartition("papers", 1, number)])
        member.close()
    assert {f"kafka {number}" for number in range(6)} <= {each.group for each in client.groups()}
    for number in range(6):
        assert [(at.partition, at.floor) for at in client.group(f"kafka {number}").partitions] == [(1, number)]


def test_a_stopped_leader_costs_no_more_than_its_election(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """The leader is stopped by SIGSTOP: it keeps its connections, but answers nothing."""
    client.create_topic("stopped", PARTITIONS)
    cluster.until_in_sync("stopped")
    with client.producer("stopped", linger_ms=0) as producer:
        for partition in range(PARTITIONS):
            producer.send(b"v", key=b"k", partition=partition).result(LONG_S)
        victim = leader(client, "stopped", 0)
        stopped = cluster.brokers[victim]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            watch = Stopwatch(*(each.pid for id, each in cluster.brokers.items() if id != victim))
            sent = [producer.send(b"w", key=b"k", partition=partition) for partition in range(PARTITIONS)]
            found = [client.table("stopped").get(b"k", partition=partition) for partition in range(PARTITIONS)]
            assert None not in found
            for each in sent:
                each.result(LONG_S)
            assert watch.seconds < LONG_S / 3  # much less than the timeout
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
    cluster.until_in_sync("stopped")


def produces(client: blocking.Client, topic: str, group: str) -> Iterator[None]:
    with client.producer(topic, linger_ms=0, timeout=LONG_S) as producer:
        producer.send(b"0", key=b"k").result(LONG_S)
        yield
        for each in [producer.send(b"%d" % number, key=b"k") for number in range(1, 20)]:
            each.result(LONG_S)


def looks_up(client: blocking.Client, topic: str, group: str) -> Iterator[None]:
    client.table(topic).get(b"k")
    yield
    client.table(topic).get(b"k")


def reads(client: blocking.Client, topic: str, group: str) -> Iterator[None]:
    with client.consumer(topic) as consumer:
        assert next(consumer).value == b"0"
        yield
        assert [next(consumer).value for _ in range(1, 20)] == [b"%d" % number for number in range(1, 20)]


def watches(client: blocking.Client, topic: str, group: str) -> Iterator[None]:
    with client.table(topic).watch() as watch:
        while not isinstance(next(watch), SnapshotEnd):
            pass
        yield
        assert [next(watch).value for _ in range(1, 20)] == [b"%d" % number for number in range(1, 20)]  # type: ignore[union-attr]


def is_a_member(client: blocking.Client, topic: str, group: str) -> Iterator[None]:
    with client.consumer(topic, group=group) as member:
        member.ack(next(member), wait=True)
        yield
        found = set[bytes | None]()
        while len(found) < 19:
            for event in member.poll(LONG_S):
                found.add(event.value)
                member.ack(event)
        assert found == {b"%d" % number for number in range(1, 20)}


def asks_the_coordinator(client: blocking.Client, topic: str, group: str) -> Iterator[None]:
    assert client.group(group).group == group
    yield
    assert client.group(group).group == group


def test_all_who_wait_for_a_broker_that_stands_still_go_on_at_others(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """This broker leads, coordinates the group, and is the one to which the clients connected first. All their
    connections to it stay."""
    topic = "still"
    [made] = cluster.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2, 3]])]).values()
    made.result(30)
    cluster.until_in_sync(topic)
    with client.consumer(topic, group="first"):  # makes the topic for groups, and so its coordinators
        pass
    cluster.until_in_sync(SHARES)
    cluster.spread(SHARES)
    partitions = cluster.partitions(SHARES)
    names = map("group-{}".format, range(1000))
    group = next(name for name in names if partitions[partition_of(name, len(partitions))].leader == 1)
    with ExitStack() as opened, ThreadPoolExecutor(6) as pool:
        clients = []
        for work in (produces, looks_up, reads, watches, is_a_member, asks_the_coordinator):
            own = opened.enter_context(blocking.connect(cluster.native, timeout=LONG_S, keepalive=3600))
            clients.append(work(own, topic, group))
            next(clients[-1])
        with cluster.paused(1):
            went_on = [pool.submit(next, each, None) for each in clients]
            for each in went_on:
                each.result(LONG_S)
    cluster.until_in_sync(topic)
    assert [event.value for event in client.table(topic).history(b"k")] == [b"%d" % number for number in range(20)]


def test_a_key_in_another_partition_than_its_own_is_found_at_once(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """Even this client finds it: a moment ago it was told that there are no such keys, and it asks the leader of the
    key's own partition, which does not have the key."""
    client.create_topic("strays", PARTITIONS, {"cleanup.policy": "compact"})
    cluster.until_in_sync("strays")
    table = client.table("strays")
    with blocking.connect(cluster.native, timeout=LONG_S) as writer, writer.producer("strays", linger_ms=0) as producer:
        for number in range(12):
            key = b"stray %d" % number
            assert table.get(key) is None
            assert table.get_many([key]) == [None]
            elsewhere = (partition_for(key, PARTITIONS) + 1 + number % 5) % PARTITIONS
            receipt = producer.send(b"v", key=key, partition=elsewhere).result(LONG_S)
            for found in (table.get(key), *table.get_many([key])):
                assert found is not None
                assert (found.partition, found.offset) == (elsewhere, receipt.offset)
    assert all(cluster.events(id, "registered") for id in cluster.brokers)
    assert client.describe("strays").scattered


def test_no_key_is_absent_when_partitions_were_added(cluster: ClusterProcesses, client: blocking.Client) -> None:
    client.create_topic("more", 2, {"cleanup.policy": "compact"})
    cluster.until_in_sync("more")
    keys = [b"k%03d" % n for n in range(60)]
    with client.producer("more") as producer:
        producer.send_columns(keys, [b"v"] * len(keys))
    table = client.table("more")
    assert None not in table.get_many(keys)
    client.alter_topic("more", partitions=PARTITIONS)
    with blocking.connect(cluster.native, timeout=LONG_S) as other:
        for each in (client, other):
            assert None not in [each.table("more").get(key) for key in keys]
            assert None not in each.table("more").get_many(keys)


def test_conditions_are_not_decided_where_other_brokers_may_have_the_key(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    client.create_topic("conditional", PARTITIONS, {"cleanup.policy": "compact"})
    cluster.until_in_sync("conditional")
    table = client.table("conditional")
    receipt = table.put(b"k", b"1", expect="absent")
    assert table.put(b"k", b"2", expect=receipt.offset).offset > receipt.offset
    elsewhere = (partition_for(b"other", PARTITIONS) + 1) % PARTITIONS
    table.put(b"other", b"v", partition=elsewhere)
    with pytest.raises(PolicyViolation):
        table.put(b"other", b"w", expect="absent")


def test_a_producer_finds_the_leaders_of_a_topic_that_was_made_anew(
    cluster: ClusterProcesses, client: blocking.Client
) -> None:
    """The new leaders have the same leader epochs as those of the old topic, which the client knows."""

    def make(*leaders: int) -> None:
        [made] = cluster.admin.create_topics(
            [NewTopic("anew", len(leaders), replica_assignment=[[id] for id in leaders])]
        ).values()
        made.result(30)
        wait_until(lambda: [each.leader for each in cluster.partitions("anew").values()] == list(leaders), "it is led")

    def send() -> set[int]:
        with client.producer("anew", timeout=LONG_S) as producer:
            return {producer.send(b"v", partition=index).result(LONG_S).partition for index in range(2)}

    make(1, 2)
    assert send() == {0, 1}
    with blocking.connect(cluster.native, timeout=LONG_S) as other:
        other.delete_topic("anew")
    wait_until(lambda: cluster.topic("anew") is None, "the topic is gone")
    make(2, 3)
    assert send() == {0, 1}


def test_a_producer_is_told_once_that_its_topic_was_deleted(cluster: ClusterProcesses, client: blocking.Client) -> None:
    """Not by each leader in turn."""
    client.create_topic("told", PARTITIONS)
    with client.producer("told") as producer:
        for index in range(PARTITIONS):
            producer.send(b"before", partition=index).result(LONG_S)
        with blocking.connect(cluster.native, timeout=LONG_S) as other:
            other.delete_topic("told")
        wait_until(lambda: cluster.topic("told") is None, "the topic is gone")
        client.create_topic("told", PARTITIONS)
        with pytest.raises(UnknownTopic, match="was deleted"):
            producer.send(b"for the deleted one", partition=0).result(LONG_S)
        for index in range(PARTITIONS):
            assert producer.send(b"after", partition=index).result(LONG_S).offset == 0


@pytest.mark.parametrize("is_told", [True, False], ids=["a leader tells", "connections are lost"])
@pytest.mark.parametrize(("before", "after"), [(2, 8), (6, 1)])
def test_a_topic_is_made_anew_with_another_number_of_partitions(
    cluster: ClusterProcesses, before: int, after: int, is_told: bool
) -> None:
    """No key goes to its partition in the deleted topic. There it would be a stray, or wait in vain for a leader."""
    name = f"anew-{before}-{after}-{is_told}"
    keys = [key for key in map(str, range(100)) if _at(key, before) != _at(key, after)][:5]
    with blocking.connect(cluster.native, timeout=LONG_S) as client, blocking.connect(cluster.native) as other:
        other.create_topic(name, before)
        for key in keys:
            client.table(name).put(key, "old")
        other.delete_topic(name)
        other.create_topic(name, after)
        if not is_told:
            for link in [*client._router.links._by_id.values()]:
                link.close()
        for key in keys:
            receipt = None
            while receipt is None:
                with suppress(UnknownTopic):
                    receipt = client.table(name).put(key, "new")
            assert receipt.partition == _at(key, after)
        assert {entry.key.decode() for entry in other.table(name).scan()} == set(keys)


def _at(key: str, partitions: int) -> int:
    return partition_for(key.encode(), partitions)


def test_benches_reach_the_leader_or_say_that_they_cant(cluster: ClusterProcesses) -> None:
    """They are started at each broker, and most of these brokers are not the leader."""
    small = ["--count", "100", "--rounds", "1"]
    for broker in cluster.brokers.values():
        at = ["--address", str(broker.settings["listen_native"])]
        for bench in (["get", "--keys", "50"], ["group"], ["latency", "--rate", "5000"], ["produce", "--single"]):
            done = CliRunner().invoke(cli, ["bench", *bench, *small, *at])
            assert not done.exit_code, (bench, done.output, done.exception)
    for bench in (["get", "--keys", "50"], ["produce", "--single"]):
        done = CliRunner().invoke(cli, ["bench", *bench, *small, *at, "--partitions", "6"])
        assert done.exit_code == 1
        assert "brokers lead the 6 partitions of this topic" in done.output
    done = CliRunner().invoke(cli, ["bench", "group", *small, *at, "--partitions", "6"])
    assert not done.exit_code, done.output
