"""A broker loses files while it is stopped, or gets an old copy of its folder. This harms no events that other replicas
have, even if the broker is killed while it starts, and comes back before all others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from krappy import blocking
from krappy.cli.main import run
from krappy.core.cluster import paths
from krappy.records import batch
from krappy.store.format import PULSE
from krappy.store.local_replicas import STARTS, LocalReplicas
from krappy.store.meta import Meta
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers, start_registered
from tests.cluster.dying import EXCLUDES, REGISTERS, dies_at, dying, has_died
from tests.cluster.test_lookout import state_by
from tests.cluster.zookeeper import ZooKeeperServer
from tests.process import BrokerProcess, wait_until

LONG_S = 60.0
VALUES = [b"%d." % number * 300 for number in range(100)]


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    shared = SharedProcesses(shared_zookeeper, dying)
    with brokers(tmp_path, shared=shared, replica_lag_time_max_ms=600_000) as made:
        yield made
        made.check_errors()


def folder(broker: BrokerProcess) -> Path:
    return broker.data / "topics" / "t-0"


def add(cluster: ClusterProcesses, values: list[bytes]) -> BrokerProcess:
    """Adds events to the topic, in many segments, and makes the topic if there is none. Returns its leader."""
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        if cluster.topic("t") is None:
            client.create_topic("t", 1, {"segment.bytes": "20000"})
        cluster.until_in_sync("t")
        with client.producer("t") as producer:
            for value in values:
                producer.send(value, key=value[:2]).result(LONG_S)
    return cluster.brokers[cluster.partitions("t")[0].leader]


def read(cluster: ClusterProcesses, topic: str = "t") -> list[bytes | None]:
    with blocking.connect(cluster.native, timeout=LONG_S) as client, client.consumer(topic, end="now") as consumer:
        return [event.value for event in consumer]


def leads_alone(cluster: ClusterProcesses, broker: BrokerProcess) -> None:
    """Stops the other brokers until this one leads, and starts them again."""
    [id] = [id for id, each in cluster.brokers.items() if each is broker]
    for other in cluster.brokers.values():
        if other is not broker:
            other.stop()
    wait_until(lambda: cluster.states("t")[0]["leader"] == id, "it leads")
    for other in cluster.brokers.values():
        if other is not broker:
            other.start()


def comes_first(cluster: ClusterProcesses, broker: BrokerProcess) -> None:
    """Starts this broker, and then, once it is registered, the others."""
    start_registered(broker)
    start_others(cluster)


def start_others(cluster: ClusterProcesses) -> None:
    for other in cluster.brokers.values():
        if not other.running:
            other.start()
    cluster.until_known()


def starts_and_dies(broker: BrokerProcess, step: str) -> None:
    """Starts a broker that is killed at this step of its start."""
    dies_at(broker, step)
    broker.begin()
    wait_until(lambda: has_died(broker), "it has died")


def test_a_folder_that_is_gone_when_its_broker_is_killed_at_its_start(cluster: ClusterProcesses) -> None:
    leader = add(cluster, VALUES)
    for broker in cluster.brokers.values():
        broker.kill()
    shutil.rmtree(folder(leader))
    starts_and_dies(leader, REGISTERS)
    comes_first(cluster, leader)
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES


def test_a_meta_database_that_is_gone(cluster: ClusterProcesses) -> None:
    """Without this database, tables get other view numbers than the existing views. A log that does not name its topic
    may belong to any topic."""
    broker = cluster.brokers[1]
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        for name in "ub":
            client.create_topic(name, 1)
            with client.producer(name) as producer:
                producer.send(name.encode(), key=b"k").result(LONG_S)
    add(cluster, VALUES[:2])
    cluster.until_in_sync("b")
    cluster.until_in_sync("u")
    broker.stop()
    shutil.rmtree(broker.data / "meta")
    other = broker.data / "topics" / "u-0"
    shutil.rmtree(other)
    shutil.copytree(folder(broker), other, ignore=shutil.ignore_patterns("partition.metadata"))
    broker.start()
    for name in "tub":
        cluster.until_in_sync(name)
    leads_alone(cluster, broker)
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        for name in "ub":
            cluster.until_in_sync(name)
            found = client.table(name).get(b"k")
            assert found is not None
            assert found.value == name.encode()
    assert read(cluster) == VALUES[:2]
    assert read(cluster, "u") == [b"u"]


def test_the_folder_of_another_partition(cluster: ClusterProcesses) -> None:
    """It stands in the place of a partition's own, and has as many events. Its broker comes back before all others."""
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        client.create_topic("t", 2)
        cluster.until_in_sync("t")
        with client.producer("t") as producer:
            for value in VALUES:
                for index in range(2):
                    producer.send(value, key=b"%d" % index, partition=index).result(LONG_S)
    broker = cluster.brokers[cluster.partitions("t")[0].leader]
    for each in cluster.brokers.values():
        each.kill()
    own, other = folder(broker), broker.data / "topics" / "t-1"
    shutil.rmtree(own)
    shutil.copytree(other, own)
    starts_and_dies(broker, EXCLUDES)
    comes_first(cluster, broker)
    assert broker.events("replica_lost")
    cluster.until_in_sync("t")
    with blocking.connect(cluster.native, timeout=LONG_S) as client, client.consumer("t", end="now") as consumer:
        seen = [(event.partition, event.key, event.value) for event in consumer]
    assert sorted(seen) == sorted((index, b"%d" % index, value) for value in VALUES for index in range(2))


def test_a_folder_and_a_note_that_cant_be_read(cluster: ClusterProcesses) -> None:
    """Only these replicas have a problem, and not their broker."""
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        client.create_topic("u", 1)
    broker = add(cluster, VALUES[:2])
    cluster.until_in_sync("u")
    broker.stop()
    other = broker.data / "topics" / "u-0"
    shutil.rmtree(other)
    other.write_text("a file")
    (folder(broker) / "trouble").mkdir()
    broker.start()
    for name in "tu":
        cluster.until_in_sync(name)
    assert other.is_dir()
    assert read(cluster) == VALUES[:2]


def test_that_a_folder_was_gone_is_forgotten_once_all_know(cluster: ClusterProcesses) -> None:
    """Otherwise the folder would be copied after each start."""
    leader = add(cluster, VALUES)
    leader.stop()
    shutil.rmtree(folder(leader))
    leader.start()
    cluster.until_in_sync("t")
    leader.stop()
    lost = len(leader.events("replica_lost"))
    assert lost == 1
    leader.start()
    cluster.until_in_sync("t")
    assert len(leader.events("replica_lost")) == lost
    assert not leader.events("replica_begins_anew")
    assert read(cluster) == VALUES


def test_a_log_without_its_first_segment_and_checkpoints(cluster: ClusterProcesses) -> None:
    """Nothing on this broker shows that there was a first segment. Other replicas would follow the log start of the
    leader."""
    leader = add(cluster, VALUES)
    leader.stop()
    min(folder(leader).glob("*.log")).unlink()
    for each in folder(leader).glob("checkpoint*"):
        each.unlink()
    comes_first(cluster, leader)
    cluster.until_in_sync("t")
    leads_alone(cluster, leader)
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES


@pytest.mark.parametrize("had", [0, 50])
def test_an_old_copy_of_the_data_folder(cluster: ClusterProcesses, had: int) -> None:
    """The broker with the copy comes back before all others. `had`: how many events the copy has; with 0 events it does
    not know the topic."""
    leader = add(cluster, VALUES[:had]) if had else cluster.brokers[1]
    leader.stop()
    old = leader.data.with_name("old")
    shutil.copytree(leader.data, old)
    leader.start()
    cluster.until_known()
    add(cluster, VALUES[had:])
    for broker in cluster.brokers.values():
        broker.kill()
    shutil.rmtree(leader.data)
    old.rename(leader.data)
    starts_and_dies(leader, EXCLUDES)
    comes_first(cluster, leader)
    assert leader.events("old_folder")
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES


def pulse_of(data: Path) -> int:
    """The count that a data folder has."""
    return int.from_bytes((data / PULSE).read_bytes()[:8], "big")


def pulse_told(cluster: ClusterProcesses, broker: BrokerProcess) -> int:
    """The count that ZooKeeper was told of; 0: none yet."""
    kazoo = KazooClient(hosts=broker.settings["zookeeper_connect"])
    kazoo.start(LONG_S)
    try:
        path = paths.lease(int(str(broker.settings["broker_id"])))
        return int(kazoo.get(path)[0]) if kazoo.exists(path) else 0
    finally:
        kazoo.stop()
        kazoo.close()


@pytest.mark.parametrize("first", [True, False])
def test_an_old_copy_of_a_data_folder_in_use(cluster: ClusterProcesses, first: bool) -> None:
    """It was made while the broker ran, which has not registered since. `first`: the broker with the copy comes back
    before all others; else the others go on meanwhile."""
    leader = add(cluster, VALUES[:50])
    old = leader.data.with_name("old")
    shutil.copytree(leader.data, old)
    add(cluster, VALUES[50:])
    wait_until(lambda: pulse_told(cluster, leader) > pulse_of(old), "the copy is old")
    for broker in cluster.brokers.values():
        if first or broker is leader:
            broker.kill()
    shutil.rmtree(leader.data)
    old.rename(leader.data)
    if first:
        starts_and_dies(leader, EXCLUDES)
    comes_first(cluster, leader)
    assert leader.events("old_folder")
    cluster.until_in_sync("t")
    leads_alone(cluster, leader)
    assert read(cluster) == VALUES


@pytest.mark.parametrize("stopped", [True, False])
def test_an_old_copy_of_one_folder(cluster: ClusterProcesses, stopped: bool) -> None:
    """The broker with the copy comes back before all others. `stopped`: the copy was made while the broker was
    stopped."""
    leader = add(cluster, VALUES[:50])
    old = leader.data.with_name("old")
    if stopped:
        leader.stop()
    shutil.copytree(folder(leader), old)
    if stopped:
        leader.start()
        cluster.until_known()
    add(cluster, VALUES[50:])
    for broker in cluster.brokers.values():
        broker.kill()
    shutil.rmtree(folder(leader))
    old.rename(folder(leader))
    starts_and_dies(leader, EXCLUDES)
    comes_first(cluster, leader)
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES
    leads_alone(cluster, leader)
    assert read(cluster) == VALUES
    assert leader.events("replica_lost")


def test_the_last_batch_that_one_disk_has_lost(cluster: ClusterProcesses) -> None:
    """All brokers were killed right after the batch was acknowledged. The broker of this disk comes back first."""
    leader = add(cluster, VALUES)
    for broker in cluster.brokers.values():
        broker.kill()
    id, follower = next(each for each in cluster.brokers.items() if each[1] is not leader)
    last = max(each for each in folder(follower).glob("*.log") if each.stat().st_size)
    data = last.read_bytes()
    last.write_bytes(data[: -[header.size for header, _ in batch.split(data)][-1]])
    follower.start()

    def is_decided() -> bool:
        state = cluster.states("t")[0]
        return state["leader"] == id or id not in state["isr"]

    wait_until(is_decided, "it leads, or has taken itself out")
    start_others(cluster)
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES


def test_an_old_copy_that_is_back_within_its_session(cluster: ClusterProcesses) -> None:
    leader = add(cluster, VALUES[:50])
    leader.stop()
    old = leader.data.with_name("old")
    shutil.copytree(leader.data, old)
    leader.start()
    cluster.until_known()
    add(cluster, VALUES[50:])
    leader.kill()
    shutil.rmtree(leader.data)
    old.rename(leader.data)
    comes_first(cluster, leader)
    cluster.until_in_sync("t")
    leads_alone(cluster, leader)
    assert read(cluster) == VALUES


def test_nobody_takes_a_folder_for_old_that_is_killed_while_it_registers(cluster: ClusterProcesses) -> None:
    leader = add(cluster, VALUES)
    for _ in range(3):
        leader.kill()
        starts_and_dies(leader, REGISTERS)
        leader.start()
    cluster.until_in_sync("t")
    assert not leader.events("old_folder")


def test_old_copies_of_all_data_folders(cluster: ClusterProcesses) -> None:
    """No broker leads that may lack events, until an administrator demands it by the steps of howto/cluster.md."""
    add(cluster, VALUES[:50])
    for broker in cluster.brokers.values():
        broker.stop()
        shutil.copytree(broker.data, broker.data.with_name(f"old-{broker.data.name}"))
        broker.start()
    add(cluster, VALUES[50:])
    for broker in cluster.brokers.values():
        broker.stop()
        shutil.rmtree(broker.data)
        broker.data.with_name(f"old-{broker.data.name}").rename(broker.data)
    for broker in cluster.brokers.values():
        broker.begin()
    for broker in cluster.brokers.values():
        broker.ready()
        wait_until(lambda broker=broker: len(broker.events("old_folder")) > 0, "it knows")  # type: ignore[misc]
    wait_until(lambda: cluster.states("t")[0]["isr"] == cluster.states("t")[0]["elr"] == [], "nobody may lead")

    def healings() -> list[str | None]:
        [topic] = state_by(cluster, 1)["topics"]
        return [each["healing"] for each in topic["partitions"][0]["replicas"]]

    wait_until(lambda: healings() == ["old folder"] * 3, "it is told")
    newest = cluster.brokers[3]
    for broker in cluster.brokers.values():
        if broker is not newest:
            broker.stop()

    def leads() -> bool:
        run(["cluster", "elect", "t", "--unclean", "--yes", "--url", newest.http])
        return bool(cluster.states("t")[0]["leader"] == 3)

    wait_until(leads, "it leads")
    start_others(cluster)
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES[:50]


def test_zookeeper_is_given_data_of_long_before(cluster: ClusterProcesses) -> None:
    """All brokers have registered many times since then. Their folders are not taken for old copies, so nothing is
    lost, and no administrator has to do anything."""
    add(cluster, VALUES)
    for broker in cluster.brokers.values():
        broker.stop()
        with closing(Meta(broker.data / "meta")) as meta:
            replicas = LocalReplicas(meta)
            for number in range(300):
                replicas.new_start(f"that of start {number}")
    for broker in cluster.brokers.values():
        broker.begin()
    for broker in cluster.brokers.values():
        broker.ready()
        assert not broker.events("old_folder")
    cluster.until_known()
    cluster.until_in_sync("t")
    assert read(cluster) == VALUES


def test_what_a_folder_registered_under(tmp_path: Path) -> None:
    with closing(Meta(tmp_path / "meta")) as meta:
        replicas = LocalReplicas(meta)
        first, is_latest = replicas.new_start("")
        assert is_latest
        ids = [first]
        for _ in range(300):
            id, is_latest = replicas.new_start(ids[-1])
            assert is_latest
            ids.append(id)
        assert len(set(ids)) == len(ids)
        assert replicas.new_start(first)[1]  # as after ZooKeeper was given older data
        before = replicas.new_start("of another one")
        assert not before[1]
        assert replicas.new_start("of another one") == before  # a failed registration is not kept
        assert not LocalReplicas(meta).new_start("of another one")[1]
        meta.change_durably({STARTS: b"one two"}, [])
        assert replicas.new_start("two")[1]  # the format of an earlier version
