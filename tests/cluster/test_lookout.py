"""What people see of a cluster of three processes: `krappy cluster`, the HTTP API and /metrics, while brokers die."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from krappy.cli.main import run
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.process import child, json_lines, wait_until

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path_factory.mktemp("lookout"), shared=shared_processes) as made:
        topic = NewTopic("t", PARTITIONS, 3)
        made.admin.create_topics([topic])["t"].result(30)
        yield made


def state_by(cluster: ClusterProcesses, id: int, **query: Any) -> dict[str, Any]:
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    url = f"http://{cluster.brokers[id].http}/api/v1/cluster/state?{parameters}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def partitions_by(cluster: ClusterProcesses, id: int) -> list[dict[str, Any]]:
    [topic] = [each for each in state_by(cluster, id)["topics"] if each["name"] == "t"]
    found: list[dict[str, Any]] = topic["partitions"]
    return found


def metrics_of(cluster: ClusterProcesses, id: int) -> dict[str, float]:
    """The metrics of a broker, by name with labels."""
    with urllib.request.urlopen(f"http://{cluster.brokers[id].http}/metrics", timeout=20) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def until_whole(cluster: ClusterProcesses, at: int = 1) -> None:
    wait_until(lambda: state_by(cluster, at)["under_replicated"] == 0, f"broker {at} sees every replica in sync")


@contextlib.contextmanager
def watching(cluster: ClusterProcesses, id: int, into: Path, *options: str) -> Iterator[Any]:
    """Runs `krappy cluster watch` at a broker. Yields a function that returns what it has printed so far."""
    command = [sys.executable, "-m", "krappy", "cluster", "watch", *options, "--url", cluster.brokers[id].http]
    with into.open("wb") as out, child(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT):
        yield into.read_text


def test_every_broker_tells_of_all_with_the_lag_of_each_follower(cluster: ClusterProcesses) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka})
    for number in range(600):
        producer.produce("t", b"v", f"k{number}")
    assert producer.flush(30) == 0
    for id in cluster.brokers:
        wait_until(
            lambda id=id: all(  # type: ignore[misc]
                each["lag"] == 0 and each["offset"] > 0
                for found in partitions_by(cluster, id)
                for each in found["replicas"]
                if each["broker"] != found["leader"]
            ),
            f"broker {id} tells that every follower has everything: {partitions_by(cluster, id)}",
        )
    state = state_by(cluster, 2)
    assert [each["id"] for each in state["brokers"]] == [1, 2, 3]
    led = [found["leader"] for topic in state["topics"] for found in topic["partitions"]]
    assert [each["leads"] for each in state["brokers"]] == [led.count(id) for id in (1, 2, 3)]
    assert len(led) == PARTITIONS
    assert [each["replicas"] for each in state["brokers"]] == [PARTITIONS] * 3
    assert all(abs(each["since_ms"] - state["now_ms"]) < 600_000 for each in state["brokers"])
    assert state["controller"] in (1, 2, 3)
    assert (state["told_by"], state["alone"], state["partitions"], state["offline"]) == (2, False, PARTITIONS, 0)


def test_the_state_comes_in_pages(cluster: ClusterProcesses) -> None:
    cluster.admin.create_topics([NewTopic("second", 1, 3)])["second"].result(30)
    for id in cluster.brokers:
        wait_until(lambda id=id: len(state_by(cluster, id)["topics"]) == 2, f"broker {id} knows both topics")  # type: ignore[misc]
    until_whole(cluster)
    page = state_by(cluster, 1, limit=1)
    assert [each["name"] for each in page["topics"]] == ["second"]
    assert page["partitions"] == PARTITIONS + 1
    following = state_by(cluster, 3, limit=1, after=page["after"])
    assert ([each["name"] for each in following["topics"]], following["after"]) == (["t"], None)
    assert state_by(cluster, 1, troubled="true")["topics"] == []
    assert [each["name"] for each in state_by(cluster, 1, filter="SEC")["topics"]] == ["second"]


def test_the_command_prints_tables(cluster: ClusterProcesses, capfd: pytest.CaptureFixture[str]) -> None:
    until_whole(cluster, at=3)
    assert run(["cluster", "--url", cluster.brokers[3].http, "--topic", "t"]) == 0
    told = [[line.split("\t") for line in part.splitlines()] for part in capfd.readouterr().out.split("\n\n")]
    there, [[counts]], placed = told
    assert [row[0] for row in there] == ["broker", "1", "2", "3"]
    assert [row[1] for row in there[1:]].count("yes") == 1
    assert "0 under replicated" in counts
    assert placed[0] == ["topic", "partition", "leader", "epoch", "replicas", "isr", "elr", "lag", "trouble"]
    assert len([row for row in placed if row[0] == "t"]) == PARTITIONS
    assert run(["cluster", "--address", cluster.brokers[1].address, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["told_by"] == 1


def test_what_happens_is_watched_and_counted(cluster: ClusterProcesses, tmp_path: Path) -> None:
    until_whole(cluster)
    victim = next(id for id in (2, 3) if id != state_by(cluster, 1)["controller"])
    led = [each["partition"] for each in partitions_by(cluster, 1) if each["leader"] == victim]
    told = tmp_path / "json"
    with watching(cluster, 1, told, "--json"), watching(cluster, 1, tmp_path / "lines") as lines:
        # The watch with --json prints nothing before something changes.
        wait_until(lambda: metrics_of(cluster, 1)["krappy_console_live_views"] == 2, "both watches have begun")
        cluster.brokers[victim].kill()
        for partition in led:
            wait_until(lambda at=partition: f"t-{at}: broker" in lines(), f"the election for t-{partition} is told")  # type: ignore[misc]
        wait_until(lambda: f"broker {victim} is gone" in lines(), f"broker {victim} is gone")
        wait_until(lambda: f"(broker {victim} left)" in lines(), "the shrunk ISRs are told")
        all_of = PARTITIONS + 1  # with the one partition of `second`
        wait_until(lambda: state_by(cluster, 1)["under_replicated"] == all_of, "the whole change has come to broker 1")
        state = state_by(cluster, 1, troubled="true")
        assert state["offline"] == state["under_min_isr"] == 0
        away = [each for topic in state["topics"] for row in topic["partitions"] for each in row["replicas"]]
        assert {each["broker"] for each in away if not each["alive"]} == {victim}
        living = [id for id in cluster.brokers if id != victim]
        counted: dict[int, dict[str, float]] = {}

        def is_counted() -> bool:
            counted.update({id: metrics_of(cluster, id) for id in living})
            return (
                sum(each["krappy_under_replicated_partitions"] for each in counted.values()) == all_of
                and sum(each["krappy_leader_count"] for each in counted.values()) == all_of
                and sum(each["krappy_active_controller"] for each in counted.values()) == 1
                and sum(each["krappy_isr_shrinks_total"] for each in counted.values()) >= PARTITIONS
                and sum(each["krappy_leader_elections_total"] for each in counted.values()) >= len(led)
                and all(each["krappy_brokers"] == 2 for each in counted.values())
            )

        wait_until(is_counted, "it has come to all brokers")
        cluster.brokers[victim].start()
        wait_until(lambda: f"(broker {victim} came back)" in lines(), "the replicas come back")
        until_whole(cluster)
        lag = f'krappy_follower_lag_events{{follower="{victim}"}}'
        wait_until(lambda: metrics_of(cluster, living[0]).get(lag) == 0.0, "its lag is told")
        kinds = {"broker_left", "broker_came", "leader", "isr"}
        wait_until(lambda: kinds <= {each["kind"] for each in json_lines(told)}, "all kinds of changes are told")
    [left] = [each for each in json_lines(told) if each["kind"] == "broker_left"]
    assert left["broker"] == victim


def test_a_new_controller_is_told(cluster: ClusterProcesses, tmp_path: Path) -> None:
    until_whole(cluster)
    controller = state_by(cluster, 1)["controller"]
    other = next(id for id in cluster.brokers if id != controller)
    with watching(cluster, other, tmp_path / "lines") as lines:
        wait_until(lambda: "partitions:" in lines(), "the watch has begun")
        cluster.brokers[controller].kill()
        wait_until(lambda: "is the controller" in lines(), "the new controller is told")
    cluster.brokers[controller].start()
    assert state_by(cluster, other)["controller"] not in (controller, None)


def test_a_topic_is_made_with_replicas_by_the_command(
    cluster: ClusterProcesses, capfd: pytest.CaptureFixture[str]
) -> None:
    address = ["--address", cluster.brokers[1].address]
    assert run(["topic", "create", "pairs", "-p", "3", "--replication-factor", "2", *address]) == 0
    assert run(["topic", "describe", "pairs", *address]) == 0
    names, *rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert names[:4] == ["partition", "leader", "replicas", "isr"]
    assert all(len(row[2].split(",")) == 2 and row[1] in row[2].split(",") for row in rows)
    assert run(["topic", "create", "many", "--replication-factor", "4", *address]) == 1
    assert "replication factor of 4" in capfd.readouterr().err
