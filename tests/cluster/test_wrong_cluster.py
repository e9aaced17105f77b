"""Brokers whose ZooKeeper was emptied, or whose path in it or id is wrong: they do not start, and lose nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.brokers import ClusterProcesses, brokers
from tests.cluster.test_cluster import PARTITIONS, Writer, make_topic, read, until_acked
from tests.cluster.zookeeper import Missing


def test_brokers_of_another_cluster_do_not_start(tmp_path: Path) -> None:
    try:
        with brokers(tmp_path) as cluster:
            make_topic(cluster, "t")
            with Writer(cluster, "t") as writer:
                until_acked(writer, 600)
            cluster.until_in_sync("t")
            for each in cluster.brokers.values():
                assert each.stop() == 0
            right = cluster.brokers[1].settings["zookeeper_connect"]
            for each in cluster.brokers.values():  # a wrong path
                each.settings["zookeeper_connect"] = f"{right}-wrong"
                each.begin()
                assert each.ended() != 0
                assert "Nothing is changed" in each.last_words()
                each.settings["zookeeper_connect"] = right
            data = cluster.zookeeper.folder / "version-2"
            cluster.zookeeper.kill()
            data.rename(tmp_path / "kept")
            cluster.zookeeper.start()
            cluster.zookeeper.wait()
            for each in cluster.brokers.values():
                each.begin()
                assert each.ended() != 0
                assert "Nothing is changed" in each.last_words()
            cluster.zookeeper.kill()
            shutil.rmtree(data)
            (tmp_path / "kept").rename(data)
            cluster.zookeeper.start()
            cluster.zookeeper.wait()
            for each in cluster.brokers.values():
                each.begin()
            for each in cluster.brokers.values():
                each.ready()
            with Writer(cluster, "t") as more:
                until_acked(more, 600)
            cluster.until_in_sync("t")
            assert not writer.failed + more.failed
            for each in cluster.brokers.values():
                assert each.stop() == 0
            for partition in range(PARTITIONS):
                for each in cluster.brokers.values():
                    found = read(each.data, "t", partition)
                    for number, offset in (*writer.acked[partition], *more.acked[partition]):
                        assert found[offset] == str(number).encode()
    except Missing as reason:
        pytest.skip(str(reason))


def test_a_folder_is_taken_by_its_own_broker_only(cluster: ClusterProcesses) -> None:
    """Another one would remove its replicas. One that is alone would have none of its topics, and make others."""
    make_topic(cluster, "ids")
    with Writer(cluster, "ids") as writer:
        until_acked(writer, 600)
    cluster.until_in_sync("ids")
    for each in cluster.brokers.values():
        each.kill()
    third = cluster.brokers[3]
    third.settings["broker_id"] = 4
    third.begin()
    assert third.ended() != 0
    assert "the folder of broker 3, and this is broker 4" in third.last_words()
    third.settings["broker_id"] = 3
    zookeeper = third.settings.pop("zookeeper_connect")
    third.begin()
    assert third.ended() != 0
    assert "zookeeper_connect is missing" in third.last_words()
    third.settings["zookeeper_connect"] = zookeeper
    third.begin()
    third.ready()
    for id in (1, 2):
        cluster.brokers[id].begin()
        cluster.brokers[id].ready()
    cluster.until_in_sync("ids")
    for each in cluster.brokers.values():
        assert each.stop() == 0
    for partition in range(PARTITIONS):
        for each in cluster.brokers.values():
            found = read(each.data, "ids", partition)
            assert {offset: found.get(offset) for _, offset in writer.acked[partition]} == {
                offset: str(number).encode() for number, offset in writer.acked[partition]
            }
