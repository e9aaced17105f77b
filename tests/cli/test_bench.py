"""`krappy bench`: every bench runs on little data, and prints what it measured."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.bench.pipe import close_pipes, drive, open_pipes
from krappy.errors import ConnectionLost, UnknownTopic
from krappy.testing.running import RunningBroker
from krappy.wire.messages import Get, Ping
from tests.cli.conftest import Krappy
from tests.served import alone

SMALL: list[list[str]] = [
    ["produce", "--count", "3000", "--batch", "100"],
    ["produce", "--count", "3000", "--no-view", "--size", "300", "--partitions", "2", "--compression", "lz4"],
    ["produce", "--count", "3000", "--connections", "3"],
    ["produce", "--count", "1000", "--single", "--connections", "4", "--window", "10"],
    ["consume", "--count", "3000"],
    ["consume", "--count", "3000", "--partitions", "3", "--compression", "zstd"],
    ["get", "--count", "1000", "--keys", "100", "--partitions", "2"],
    ["get", "--count", "1000", "--keys", "100", "--batch", "10"],
    ["get", "--count", "1000", "--keys", "100", "--history", "7"],
    ["get", "--count", "200", "--clients", "1", "--window", "1"],
    ["scan", "--count", "3000", "--partitions", "2"],
    ["group", "--count", "3000", "--members", "3", "--batch", "50", "--partitions", "2"],
    ["group", "--count", "100", "--members", "20", "--batch", "1"],
    ["loop", "--count", "2000", "--partitions", "2"],
    ["loop", "--count", "2000", "--no-group"],
    ["loop", "--count", "2000", "--members", "4", "--order", "key", "--keys", "10", "--work", "10"],
    ["latency", "--count", "200", "--rate", "2000"],
]


@alone
@pytest.mark.parametrize("arguments", SMALL, ids=" ".join)
def test_a_bench_measures(krappy: Krappy, broker: RunningBroker, arguments: list[str]) -> None:
    result = krappy("bench", *arguments, "--rounds", "2", "--address", broker.address, "--json")
    assert result.status == 0, result.err
    [figures] = result.json["results"]
    assert figures["bench"] == arguments[0]
    assert figures["count"] == int(arguments[2])
    assert figures["rounds"] == 2
    assert 0 < figures["per_second_min"] <= figures["per_second"] <= figures["per_second_max"]
    if arguments[0] in ("get", "group", "latency") or "--single" in arguments:
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["p99.9_ms"] <= figures["max_ms"]
    assert result.json["circumstances"]["cpus"] > 0


@alone
def test_benches_leave_no_topic_behind(krappy: Krappy, broker: RunningBroker) -> None:
    krappy("bench", "scan", "--count", "100", "--rounds", "1", "--address", broker.address)
    krappy("bench", "group", "--count", "100", "--rounds", "1", "--address", broker.address)
    names = [row["topic"] for row in krappy("topic", "list", "--json").json]
    names += [row["group"] for row in krappy("group", "list", "--json").json]
    assert not [name for name in names if name.startswith("krappy-bench")]


def test_a_bench_starts_a_broker_of_its_own(krappy: Krappy) -> None:
    result = krappy("bench", "consume", "--count", "500", "--rounds", "1", "--durability", "os")
    assert result.status == 0
    assert "events/s" in result.out
    assert "durability os" in result.err


def test_a_latency_stands_beside_what_the_machine_takes(krappy: Krappy) -> None:
    result = krappy("bench", "latency", "--count", "200", "--rounds", "2", "--rate", "2000", "--json")
    latency, sync, hand_over = result.json["results"]
    assert [each["bench"] for each in (latency, sync, hand_over)] == ["latency", "fdatasync", "hand-over"]
    for each in (sync, hand_over):
        assert (each["count"], each["rounds"]) == (200, 2)
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["max_ms"]
        assert each["per_second"] < 2400  # not in one burst


@pytest.fixture
def pipes(broker: RunningBroker) -> Any:
    opened = open_pipes(broker.address, 3)
    yield opened
    close_pipes(opened)


@alone
def test_drive_asks_each_request_once(pipes: Any) -> None:
    asked: list[int] = []

    def frame(id: int) -> bytes:
        asked.append(id)
        return Ping().frame(id)

    answered: list[int] = []
    run = drive(pipes, [frame] * 3, 1000, 7, lambda values: answered.append(values["id"]))
    assert asked == list(range(1000))
    assert sorted(answered) == asked
    assert len(run.latencies) == run.answers == 1000
    assert all(0 < each <= run.seconds for each in run.latencies)


@alone
def test_drive_raises_what_the_broker_says(pipes: Any) -> None:
    with pytest.raises(UnknownTopic):
        drive(pipes, [lambda id: Get("nowhere", b"k").frame(id)] * 3, 10, 2)


def test_no_broker_is_an_error(krappy: Krappy) -> None:
    with pytest.raises(ConnectionLost):
        open_pipes("127.0.0.1:1", 2)
    assert krappy("bench", "scan", "--address", "127.0.0.1:1").status == 1
