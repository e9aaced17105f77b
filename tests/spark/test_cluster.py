"""Krappy on a cluster of Spark, whose executors are other processes, and are killed: `make test-cluster`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.blocking import Client
from krappy.types import Record
from tests.long import LONG
from tests.process import wait_until
from tests.spark import cluster_session, connect_session
from tests.spark.cluster import SETTINGS, STARTS, Cluster, cluster
from tests.spark.conftest import need_java
from tests.spark.test_connect import expected

pytestmark = pytest.mark.skipif(not LONG, reason="a cluster takes minutes: `make test-cluster` runs it (KRAPPY_LONG=1)")
PROGRAM = 900  # seconds after which a program fails the test


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_java()
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def run(cluster: Cluster, *arguments: str) -> str:
    """Runs a program to its end; returns the last thing that it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cluster.folder,
        env=cluster.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def values(client: Client, topic: str) -> list[bytes]:
    with client.consumer(topic, end="now") as consumer:
        return sorted(event.value or b"" for event in consumer)


def test_a_program_on_a_cluster(
    spark_cluster: Cluster, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """Reads, lookups and a stream; and writes, during which an executor is killed, and a task stands still."""
    for name in ("killed", "speculated", "copied"):
        client.create_topic(f"{topic}-{name}", 2)
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.cluster_session", spark_cluster.master, address, topic, str(tmp_path)],
        cwd=spark_cluster.folder,
        env=spark_cluster.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(
            lambda: any(job.sealed for job in client.staged_jobs()) or program.poll() is not None, "a task", STARTS
        )
        assert program.poll() is None, "some of its tasks are done, not all"
        killed, *_ = spark_cluster.executors()
        os.kill(killed, signal.SIGKILL)
        out, _ = program.communicate(timeout=PROGRAM)
    finally:
        program.kill()
        program.wait()
    rows = cluster_session.ROWS
    assert json.loads(out.splitlines()[-1]) == {"read": [rows, rows], "table": 11, "joined": rows}
    hundred = sorted(b"%d" % number for number in range(100))
    assert values(client, f"{topic}-speculated") == values(client, f"{topic}-copied") == hundred
    assert client.staged_jobs() == []


def test_a_pipeline_on_a_cluster(spark_cluster: Cluster, client: Client, address: str, tmp_path: Path) -> None:
    client.create_topic("cluster-archived", 2)
    with client.producer("cluster-archived") as producer:
        producer.send_columns([b"%d" % n for n in range(1000)], [b"v"] * 1000)
    given = [text for name, value in SETTINGS.items() for text in ("--conf", f"{name}={value}")]
    command = ["-m", "krappy", "pipeline", "archive", "cluster-archived", "--to", str(tmp_path / "archive"), "--json"]
    for new in (1000, 0):
        said = run(spark_cluster, *command, "--address", address, "--master", spark_cluster.master, *given)
        assert json.loads(said)["events"] == new


def test_spark_connect_by_an_address(
    spark_cluster: Cluster, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """The Connect server is another process, whose tasks run on the cluster."""
    client.create_topic(topic, partitions=2)
    client.create_topic(f"{topic}-copy")
    with client.producer(topic) as producer:
        producer.send_many([Record(f"v{number}".encode(), f"u{number}".encode()) for number in range(200)])
    with spark_cluster.connect_server() as url:
        found = json.loads(run(spark_cluster, "-m", connect_session.__name__, url, address, topic, str(tmp_path)))
    found.pop("error")
    assert found == expected(topic)
