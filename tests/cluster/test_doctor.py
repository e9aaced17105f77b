"""`krappy doctor` on the folders of a cluster's brokers. Only ZooKeeper knows their topics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from krappy.cli.main import cli
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_cluster import PARTITIONS, written


def doctor(data: Path) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["doctor", "--data", str(data), "--json"])
    found: dict[str, Any] = json.loads(done.output)
    assert done.exit_code == (0 if found["sound"] else 1)
    return found


def test_replicas_are_checked(cluster: ClusterProcesses) -> None:
    writer = written(cluster, "t")
    for each in cluster.brokers.values():
        assert each.stop() == 0
    folders = [each.data for each in cluster.brokers.values()]
    for data in folders:
        found = doctor(data)
        assert found["sound"], found
        checked = [(each["topic"], each["partition"]) for each in found["partitions"]]
        assert checked == [("t", index) for index in range(PARTITIONS)]
        assert all(each["entries"] for each in found["partitions"])
        assert sum(each["end"] for each in found["partitions"]) >= writer.count
    shutil.rmtree(folders[0] / "topics" / "t-0")
    [wrong] = [each for each in doctor(folders[0])["partitions"] if each["problems"]]
    assert wrong["partition"] == 0
    log = max((folders[1] / "topics" / "t-3").glob("*.log"), key=lambda each: each.stat().st_size)
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    log.write_bytes(damaged)
    [wrong] = [each for each in doctor(folders[1])["partitions"] if each["problems"]]
    assert wrong["partition"] == 3
