"""ZooKeeper gets older data back, and a broker leads by it that lacks acknowledged events. The others can't show these
to the leader, or have no part in its partitions any more. They keep them."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions, NewTopic

from krappy.store import loss
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers, start_registered
from tests.cluster.test_moves import reassign
from tests.cluster.test_older_zookeeper import (
    LONG_S,
    PARTITIONS,
    assert_kept,
    give_back,
    restart,
    stop,
    until_renewed,
    write_many,
)
from tests.cluster.test_transactions import values
from tests.cluster.zookeeper import ZooKeeperServer, zookeepers
from tests.process import Launcher, wait_until

ENOUGH = {"min.insync.replicas": "1"}


@contextlib.contextmanager
def running(folder: Path, count: int = 3) -> Iterator[tuple[ZooKeeperServer, ClusterProcesses]]:
    with zookeepers(folder / "zookeeper") as [zookeeper], Launcher() as launch:
        (folder / "cluster").mkdir()
        with brokers(folder / "cluster", count, shared=SharedProcesses(zookeeper, launch)) as cluster:
            yield zookeeper, cluster


def leave_one_behind(zookeeper: ZooKeeperServer, cluster: ClusterProcesses, copy: Path) -> None:
    """Writes events that the brokers 2 and 3 acknowledge. Then all are down, and 1 alone is in the older data, in which
    it is in sync."""
    one, two, three = cluster.brokers.values()
    cluster.admin.create_topics([NewTopic("kept", PARTITIONS, 3, config=ENOUGH)])["kept"].result(30)
    cluster.until_in_sync("kept")
    shutil.copytree(zookeeper.folder, copy)
    until_renewed(cluster)
    one.stop()
    cluster.until_known()
    wait_until(lambda: all(1 not in each.isrs for each in cluster.partitions("kept").values()), "1 is out")
    write_many(cluster, "all", "after")
    two.kill()
    three.kill()
    zookeeper.kill(signal.SIGTERM)
    give_back(zookeeper, copy)


def until_led_by_one(cluster: ClusterProcesses) -> None:
    wait_until(lambda: all(each.leader == 1 for each in cluster.partitions("kept").values()), "1 leads")


def stand(cluster: ClusterProcesses, broker: int, value: str) -> int:
    """In how many logs of a broker the event stands, set aside or not."""
    folders = [
        each for above in ("topics", "set-aside") for each in (cluster.brokers[broker].data / above).glob("kept-*")
    ]
    return sum(any(value.encode() in each.read_bytes() for each in folder.glob("*.log")) for folder in folders)


@pytest.mark.parametrize(("start", "batch"), [(295, 10), (300, 10), (305, 13), (400, 10)])
def test_a_log_is_set_aside_if_its_leader_begins_behind_it(tmp_path: Path, start: int, batch: int) -> None:
    """The stale leader has taken more events, and deleted them. So nothing tells what it had in the place of others,
    except for the events that both logs still have. The others' logs end at offset 300."""
    with running(tmp_path) as (zookeeper, cluster):
        leave_one_behind(zookeeper, cluster, tmp_path / "copy")
        start_registered(cluster.brokers[1])
        until_led_by_one(cluster)
        write_many(cluster, "1", "alone", 600, batch=batch)
        rows = [{"partition_index": index, "offset": start} for index in range(PARTITIONS)]
        asked = {"topics": [{"name": "kept", "partitions": rows}], "timeout_ms": 10_000}

        def is_deleted() -> bool:  # not before the others are known to be gone
            with cluster.asked(1) as raw:
                [found] = raw.ask(ApiKey.DELETE_RECORDS, asked)["topics"]
            return all(each["error_code"] == 0 for each in found["partitions"])

        wait_until(is_deleted, "events are deleted")
        for id in (2, 3):
            cluster.brokers[id].start()
        cluster.until_in_sync("kept")
        for id in (2, 3):
            assert len(cluster.events(id, "events_set_aside")) == PARTITIONS
            assert stand(cluster, id, "after-150") == PARTITIONS


def test_a_damaged_log_is_set_aside_for_good_if_its_leader_may_lack_events(tmp_path: Path) -> None:
    with running(tmp_path) as (zookeeper, cluster):
        leave_one_behind(zookeeper, cluster, tmp_path / "copy")
        for folder in (cluster.brokers[2].data / "topics").glob("kept-*"):
            loss.note(folder, loss.Trouble.DAMAGED, "some of its bytes can't be read")
        start_registered(cluster.brokers[1])
        until_led_by_one(cluster)
        cluster.brokers[2].start()
        wait_until(lambda: len(cluster.events(2, "replica_whole")) == PARTITIONS, "2 is in sync")
        assert len(cluster.events(2, "events_set_aside")) == PARTITIONS
        assert stand(cluster, 2, "after-150") == PARTITIONS


def test_a_moved_replica_is_kept_although_its_leader_has_more_events(tmp_path: Path) -> None:
    """The broker that has the partition by the older data leads in the same leader epoch as the other one has led, and
    takes more events than that one has."""
    with running(tmp_path, 2) as (zookeeper, cluster):
        one, two = cluster.brokers.values()
        topics = [NewTopic(name, PARTITIONS, replica_assignment=[[1]] * PARTITIONS) for name in ("kept", "empty")]
        for made in cluster.admin.create_topics(topics).values():
            made.result(30)
        shutil.copytree(zookeeper.folder, tmp_path / "copy")
        for name in ("kept", "empty"):
            reassign(cluster, name, {index: [2] for index in range(PARTITIONS)})
        wait_until(lambda: len(cluster.events(1, "replica_removed")) == 2 * PARTITIONS, "1 has removed its replicas")
        write_many(cluster, "all", "after")
        waits = len(cluster.events(2, "assignment_waits"))
        until_renewed(cluster)
        stop(cluster, zookeeper)
        give_back(zookeeper, tmp_path / "copy")
        start_registered(one)
        until_led_by_one(cluster)
        write_many(cluster, "all", "alone", 600)
        for _ in range(2):  # it is noted on disk
            told = len(cluster.events(2, "replica_kept")) + PARTITIONS
            start_registered(two)
            wait_until(lambda told=told: len(cluster.events(2, "replica_kept")) == told, "it is told")  # type: ignore[misc]
            wait_until(lambda: len(cluster.events(2, "replica_removed")) == PARTITIONS, "the empty ones are removed")
            two.stop()
        removed = {str(each["partition"]) for each in cluster.events(2, "replica_removed")}
        assert removed == {f"empty-{index}" for index in range(PARTITIONS)}
        assert len(cluster.events(2, "assignment_waits")) == waits
        cluster.start_again(2)
        assert not any(reassign(cluster, "kept", {index: [1, 2] for index in range(PARTITIONS)}))
        wait_until(lambda: len(cluster.events(2, "events_set_aside")) == PARTITIONS, "2 sets its logs aside")
        cluster.until_in_sync("kept")
        assert stand(cluster, 2, "after-150") == PARTITIONS


def test_partitions_that_older_data_lacks_are_made_anew(tmp_path: Path) -> None:
    """Their replicas still have their events, of later leader epochs than that of a new partition."""
    with running(tmp_path) as (zookeeper, cluster):
        cluster.admin.create_topics([NewTopic("kept", 1, 3)])["kept"].result(30)
        cluster.until_in_sync("kept")
        shutil.copytree(zookeeper.folder, tmp_path / "copy")
        cluster.admin.create_partitions([NewPartitions("kept", PARTITIONS)])["kept"].result(30)
        cluster.until_led("kept")
        restart(cluster)
        kept = write_many(cluster, "all", "before", 100)
        until_renewed(cluster)
        stop(cluster, zookeeper)
        give_back(zookeeper, tmp_path / "copy")
        for each in cluster.brokers.values():
            start_registered(each)
        cluster.until_in_sync("kept")
        cluster.admin.create_partitions([NewPartitions("kept", PARTITIONS)])["kept"].result(30)
        cluster.until_led("kept")
        kept += write_many(cluster, "all", "after", 100)
        cluster.until_in_sync("kept")
        assert_kept(cluster, kept)


def test_all_disks_were_replaced_since_the_older_data(tmp_path: Path) -> None:
    """It names other folders, which nobody has any more. The present ones have all events."""
    with running(tmp_path) as (zookeeper, cluster):
        cluster.admin.create_topics([NewTopic("kept", PARTITIONS, 3)])["kept"].result(30)
        cluster.until_in_sync("kept")
        kept = write_many(cluster, "all", "before", 10)
        shutil.copytree(zookeeper.folder, tmp_path / "copy")
        for each in cluster.brokers.values():
            each.stop()
            shutil.rmtree(each.data)
            start_registered(each)
            cluster.until_in_sync("kept")
        kept += write_many(cluster, "all", "after", 10)
        until_renewed(cluster)
        stop(cluster, zookeeper)
        give_back(zookeeper, tmp_path / "copy")
        for each in cluster.brokers.values():
            each.begin()
        for each in cluster.brokers.values():
            each.ready()
        for id in cluster.brokers:
            wait_until(lambda id=id: len(cluster.events(id, "registered")) == 3, "it has registered", LONG_S)  # type: ignore[misc]
        cluster.until_in_sync("kept")
        assert_kept(cluster, kept)
        for index in range(PARTITIONS):
            assert Counter(values(cluster, "kept", index)) == Counter(each.encode() for each in kept)
