"""ZooKeeper gets older data back. The cluster goes on with what the brokers have, and throws nothing away."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from kazoo.client import KazooClient

from krappy import blocking
from krappy.broker.topics.internal_topics import JOBS
from krappy.store.format import PULSE
from krappy.store.pulse import read
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers, start_registered
from tests.cluster.test_moves import reassign
from tests.cluster.test_transactions import values
from tests.cluster.zookeeper import ZooKeeperServer, zookeepers
from tests.process import Launcher, wait_until

PARTITIONS = 3
LONG_S = 120.0


def write(cluster: ClusterProcesses, topic: str, tag: str) -> list[str]:
    """Writes some events to each partition, which all replicas in sync acknowledge. Returns their values."""
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": cluster.kafka, "enable.idempotence": True})
    written = [f"{tag}-{number}" for number in range(10)]
    for index in range(PARTITIONS):
        for value in written:
            producer.produce(topic, value, partition=index, on_delivery=told)
    assert producer.flush(LONG_S) == 0
    assert not failed
    return written


def publish(cluster: ClusterProcesses, topic: str, job: str) -> list[str]:
    """Publishes a staged job with an event for each partition. Returns the values of a partition."""
    with blocking.connect(cluster.native, timeout=LONG_S) as client:
        with client.stage(topic, job=job, task=0, attempt=0) as staged:
            for index in range(PARTITIONS):
                staged.send(job, partition=index)
            token = staged.seal()
        assert client.commit_staged(job, [token], timeout=LONG_S).records == PARTITIONS
    return [job]


def stop(cluster: ClusterProcesses, zookeeper: ZooKeeperServer) -> None:
    for each in cluster.brokers.values():
        each.stop()
    zookeeper.kill(signal.SIGTERM)


def start(cluster: ClusterProcesses, zookeeper: ZooKeeperServer) -> None:
    zookeeper.start()
    zookeeper.wait()
    for each in cluster.brokers.values():
        each.begin()
    for each in cluster.brokers.values():
        each.ready()
    cluster.until_known()
    for topic in ("kept", JOBS):
        cluster.until_in_sync(topic)


def restart(cluster: ClusterProcesses) -> None:
    """Restarts one broker after another. So leaders change, and leader epochs rise."""
    for broker in cluster.brokers.values():
        broker.stop()
        broker.start()
        cluster.until_in_sync("kept")


def test_older_data_is_restored(tmp_path: Path) -> None:
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        with brokers(folder, shared=SharedProcesses(zookeeper, launch)) as cluster:
            for made in cluster.admin.create_topics(
                [NewTopic(name, PARTITIONS, 3) for name in ("kept", "anew")]
            ).values():
                made.result(30)
            kept = [*write(cluster, "kept", "before"), *publish(cluster, "kept", "job-0")]
            write(cluster, "anew", "before")
            stop(cluster, zookeeper)
            shutil.copytree(zookeeper.folder, tmp_path / "copy")
            start(cluster, zookeeper)
            restart(cluster)
            kept += [*write(cluster, "kept", "after"), *publish(cluster, "kept", "job-1")]
            with blocking.connect(cluster.native, timeout=LONG_S) as client:
                client.delete_topic("anew")
                client.create_topic("anew", PARTITIONS)
                client.create_topic("later", PARTITIONS)
            for topic in ("anew", "later"):
                write(cluster, topic, "after")
            last = {index: each.epoch for index, each in cluster.partitions("kept").items()}
            stop(cluster, zookeeper)
            shutil.rmtree(zookeeper.folder)
            shutil.copytree(tmp_path / "copy", zookeeper.folder)
            start(cluster, zookeeper)
            assert all(each.epoch > last[index] for index, each in cluster.partitions("kept").items())
            assert cluster.topic("later") is None
            for broker in cluster.brokers.values():
                assert (broker.data / "topics").joinpath("later-0").exists(), "nobody has deleted it"
                told = [str(each["folder"]) for each in broker.events("folder_unclaimed")]
                assert str(broker.data / "topics" / "later-0") in told
                assert len([each for each in told if "/set-aside/anew-0." in each and Path(each).exists()]) == 1
                assert not cluster.events(int(str(broker.settings["broker_id"])), "committed_events_cut")
            kept += [*write(cluster, "kept", "again"), *publish(cluster, "kept", "job-2")]
            restart(cluster)
            for index in range(PARTITIONS):
                assert Counter(values(cluster, "kept", index)) == Counter(each.encode() for each in kept)


def give_back(zookeeper: ZooKeeperServer, copy: Path) -> None:
    """Gives ZooKeeper, which is stopped, the data of this copy, and starts it."""
    shutil.rmtree(zookeeper.folder)
    shutil.copytree(copy, zookeeper.folder)
    zookeeper.start()
    zookeeper.wait()


def until_renewed(cluster: ClusterProcesses) -> None:
    """Waits until each broker has noted a later version of its lease than a copy of ZooKeeper's data has that was made
    before: by that it finds out that the copy is older."""
    leases = {broker: read((broker.data / PULSE).read_bytes())[1] for broker in cluster.brokers.values()}
    for broker, lease in leases.items():
        renewed = partial(lambda data, before: read(data.read_bytes())[1] > before + 1, broker.data / PULSE, lease)
        wait_until(renewed, "its lease is renewed")


def write_many(
    cluster: ClusterProcesses, acks: str, tag: str, count: int = 300, *, batch: int = 10, timestamp: int = 0
) -> list[str]:
    """Writes so many events to each partition of "kept". `batch`: events of a batch. `timestamp`: 0: of now. Returns
    their values."""
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": acks, "linger.ms": 0, "batch.num.messages": batch})
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    written = [f"{tag}-{number}" for number in range(count)]
    for index in range(PARTITIONS):
        for value in written:
            producer.produce("kept", value, partition=index, on_delivery=told, timestamp=timestamp)
    assert producer.flush(LONG_S) == 0
    assert not failed
    return written


def assert_kept(cluster: ClusterProcesses, kept: Sequence[str]) -> None:
    """Each of these events is there once, in each partition, whoever leads it."""
    for _ in range(2):
        cluster.until_led("kept")
        for index in range(PARTITIONS):
            found = Counter(values(cluster, "kept", index))
            assert not [each for each in kept if found[each.encode()] != 1]
        restart(cluster)


@pytest.mark.parametrize(
    ("stale_at_copy", "batch", "timestamp"),
    [(False, 10, 0), (True, 10, 0), (False, 7, 0), (False, 10, 1_700_000_000_000)],
)
def test_a_stale_broker_starts_first_after_older_data(
    tmp_path: Path, stale_at_copy: bool, batch: int, timestamp: int
) -> None:
    """In the older data it is in sync. It leads, alone, and takes events in leader epochs in which others led. Then
    the others come, which were killed. `stale_at_copy`: it was killed before the copy was made, as all were. `batch`:
    events of a batch of those that it takes. `timestamp`: all events have it, unless it is 0."""
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        with brokers(folder, shared=SharedProcesses(zookeeper, launch)) as cluster:
            one, two, three = cluster.brokers.values()
            cluster.admin.create_topics([NewTopic("kept", PARTITIONS, 3)])["kept"].result(30)
            cluster.until_in_sync("kept")
            kept = write_many(cluster, "all", "before", 10)
            if stale_at_copy:
                for each in cluster.brokers.values():
                    each.kill()
                zookeeper.kill(signal.SIGTERM)
                shutil.copytree(zookeeper.folder, tmp_path / "copy")
                zookeeper.start()
                zookeeper.wait()
                for each in (two, three):
                    each.begin()
                    each.ready()
            else:
                cluster.spread("kept")
                shutil.copytree(zookeeper.folder, tmp_path / "copy")
                until_renewed(cluster)
                one.stop()
            cluster.until_known()
            wait_until(lambda: all(1 not in each.isrs for each in cluster.partitions("kept").values()), "1 is out")
            kept += write_many(cluster, "all", "after", timestamp=timestamp)
            two.kill()
            three.kill()
            zookeeper.kill(signal.SIGTERM)
            give_back(zookeeper, tmp_path / "copy")
            start_registered(one)
            wait_until(lambda: all(each.leader == 1 for each in cluster.partitions("kept").values()), "1 leads")
            write_many(cluster, "1", "unacknowledged", batch=batch, timestamp=timestamp)
            for each in (two, three):
                each.begin()
                each.ready()
            cluster.until_in_sync("kept")
            assert_kept(cluster, kept)
            assert sum(len(cluster.events(id, "lead_taken_over")) for id in (2, 3)) >= PARTITIONS
            for id in cluster.brokers:
                assert not cluster.events(id, "committed_events_cut")
                assert not cluster.events(id, "events_set_aside")


def test_older_data_while_the_brokers_run_and_one_was_not_in_sync(tmp_path: Path) -> None:
    """It goes on when ZooKeeper has the older data, in which it is in sync, and the session of each broker."""
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        shared = SharedProcesses(zookeeper, launch)
        with brokers(folder, shared=shared, zookeeper_session_timeout_ms=20_000) as cluster:
            cluster.admin.create_topics([NewTopic("kept", PARTITIONS, 3)])["kept"].result(30)
            cluster.until_in_sync("kept")
            kept = write_many(cluster, "all", "before", 10)
            shutil.copytree(zookeeper.folder, tmp_path / "copy")
            with cluster.paused(1):
                wait_until(lambda: all(1 not in each.isrs for each in cluster.partitions("kept").values()), "1 is out")
                kept += write_many(cluster, "all", "after")
                zookeeper.kill(signal.SIGTERM)
                give_back(zookeeper, tmp_path / "copy")
                write_much(zookeeper)
            write_many(cluster, "1", "unacknowledged", 10)
            cluster.until_in_sync("kept")
            kept += write_many(cluster, "all", "again", 10)
            assert_kept(cluster, kept)
            for id in cluster.brokers:
                assert not cluster.events(id, "committed_events_cut")


def test_a_broker_that_is_alone_after_older_data(tmp_path: Path) -> None:
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        with brokers(folder, 1, shared=SharedProcesses(zookeeper, launch)) as cluster:
            cluster.admin.create_topics([NewTopic("kept", PARTITIONS, 1)])["kept"].result(30)
            shutil.copytree(zookeeper.folder, tmp_path / "copy")
            kept = write_many(cluster, "all", "before", 10)
            restart(cluster)
            kept += write_many(cluster, "all", "after", 10)
            stop(cluster, zookeeper)
            give_back(zookeeper, tmp_path / "copy")
            start_registered(cluster.brokers[1])
            kept += write_many(cluster, "all", "again", 10)
            assert_kept(cluster, kept)


def write_much(zookeeper: ZooKeeperServer) -> None:
    """Another program makes more changes than the data lacks. ZooKeeper refuses sessions that know of later ones."""
    other = KazooClient(hosts=f"127.0.0.1:{zookeeper.port}")
    other.start(LONG_S)
    try:
        for made in [other.create_async(f"/other-{number}") for number in range(2000)]:
            made.get(LONG_S)
    finally:
        other.stop()
        other.close()


def test_older_data_is_restored_while_the_brokers_run(tmp_path: Path) -> None:
    """Their sessions are in that data, and go on. Leaders have changed since."""
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        shared = SharedProcesses(zookeeper, launch)
        with brokers(folder, shared=shared, zookeeper_session_timeout_ms=20_000) as cluster:
            cluster.admin.create_topics([NewTopic("kept", PARTITIONS, 3)])["kept"].result(30)
            cluster.until_in_sync("kept")
            restart(cluster)
            kept = write(cluster, "kept", "before")
            shutil.copytree(zookeeper.folder, tmp_path / "copy")
            cluster.spread("kept")
            kept += write(cluster, "kept", "after")
            last = {index: each.epoch for index, each in cluster.partitions("kept").items()}
            zookeeper.kill(signal.SIGTERM)
            give_back(zookeeper, tmp_path / "copy")
            write_much(zookeeper)
            wait_until(
                lambda: all(each.epoch > last[index] for index, each in cluster.partitions("kept").items()),
                "all partitions are led in later epochs",
            )
            kept += write(cluster, "kept", "again")
            for index in range(PARTITIONS):
                assert Counter(values(cluster, "kept", index)) == Counter(each.encode() for each in kept)
            for id in cluster.brokers:
                assert not cluster.events(id, "committed_events_cut")


def new_producer(cluster: ClusterProcesses, at: int) -> int:
    """The id that a broker gives to a new producer."""
    asked = {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    return int(cluster.look(at, lambda raw: raw.ask(ApiKey.INIT_PRODUCER_ID, asked))["producer_id"])


def test_no_producer_gets_another_ones_id_after_older_data(tmp_path: Path) -> None:
    """Producers have got ids since the copy was made, and have written nothing with them. Brokers that run have more
    of these reserved."""
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        shared = SharedProcesses(zookeeper, launch)
        with brokers(folder, shared=shared, zookeeper_session_timeout_ms=20_000) as cluster:
            shutil.copytree(zookeeper.folder, tmp_path / "copy")
            until_renewed(cluster)
            given = [new_producer(cluster, id) for id in (1, 2)]
            zookeeper.kill(signal.SIGTERM)
            give_back(zookeeper, tmp_path / "copy")
            write_much(zookeeper)
            for id in cluster.brokers:
                wait_until(lambda id=id: len(cluster.events(id, "registered")) > 1, "it has registered anew")  # type: ignore[misc]
            given += [new_producer(cluster, id) for id in (3, 1, 2, 3)]
            assert len(set(given)) == len(given)


def test_a_replica_that_was_moved_is_kept_after_older_data(tmp_path: Path) -> None:
    """In the older data the partition is still with a broker that has removed its replica, and leads without events.
    The one that has them is not named there."""
    with zookeepers(tmp_path / "zookeeper") as [zookeeper], Launcher() as launch:
        folder = tmp_path / "cluster"
        folder.mkdir()
        with brokers(folder, 2, shared=SharedProcesses(zookeeper, launch)) as cluster:
            _, two = cluster.brokers.values()
            made = cluster.admin.create_topics([NewTopic("kept", PARTITIONS, replica_assignment=[[1]] * PARTITIONS)])
            made["kept"].result(30)
            kept = write_many(cluster, "all", "before", 10)
            shutil.copytree(zookeeper.folder, tmp_path / "copy")
            reassign(cluster, "kept", {index: [2] for index in range(PARTITIONS)})
            wait_until(lambda: len(cluster.events(1, "replica_removed")) == PARTITIONS, "1 has removed its replicas")
            kept += write_many(cluster, "all", "after", 10)
            stop(cluster, zookeeper)
            give_back(zookeeper, tmp_path / "copy")
            for each in cluster.brokers.values():
                start_registered(each)
            wait_until(lambda: len(cluster.events(2, "replica_kept")) == PARTITIONS, "2 keeps its replicas")
            assert all((two.data / "topics" / f"kept-{index}").exists() for index in range(PARTITIONS))
            reassign(cluster, "kept", {index: [2, 1] for index in range(PARTITIONS)})
            wait_until(lambda: len(cluster.events(2, "lead_taken_over")) == PARTITIONS, "2 leads")
            cluster.until_in_sync("kept")
            assert_kept(cluster, kept)
