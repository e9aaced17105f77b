"""Brokers whose ZooKeeper was emptied, or whose path in it is wrong: they do not start, and lose nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.brokers import brokers
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
