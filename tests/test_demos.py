"""Each demo runs, and notices when what it claims is not so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from krappy.blocking import Client
from krappy.cli.errors import Failure
from krappy.demos import bank, broadcast, cluster, flights, work
from krappy.demos.show import Show
from krappy.testing.running import RunningBroker
from tests.cluster.zookeeper import Missing, jars

LIMIT = 12_000  # flights: enough for the killed worker to have some


def demo(*arguments: str) -> Any:
    """What `krappy demo … --json` says, by a process and a broker of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "krappy", "demo", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_flights() -> None:
    said = demo("flights", "--limit", str(LIMIT))
    assert said["events"] == LIMIT
    assert LIMIT // 2 <= said["killed_after"] <= LIMIT
    assert "nothing was lost: every event was done" in said["checks"]


def test_the_file_is_what_the_demo_says() -> None:
    """The figures of the README and of the demo, from the data."""
    fold = flights.fold_file(flights.find_file(), None)
    assert fold.flights == flights.FLIGHTS == 336_776
    assert len(fold.without) == flights.WITHOUT_AIRCRAFT == 2_512
    assert len(fold.latest) == flights.AIRCRAFT == 4_043
    assert sum(map(len, fold.per_aircraft.values())) == 336_776 - 2_512


def test_broadcast() -> None:
    assert demo("broadcast")["services"] == ["mail", "billing", "analytics"]


def test_work() -> None:
    said = demo("work")
    assert said["taken_over"] > 0
    assert said["done_twice"] <= 1


def test_bank() -> None:
    said = demo("bank")
    assert sum(said["balances"].values()) != 0
    assert said["as_of"]["offset"] == 200


def test_a_person_sees_what_happens(krappy_broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> None:
    with krappy_broker.connect() as client:
        show = Show(as_json=False)
        broadcast.run(client, krappy_broker.address, show)
        show.end()
    out = capfd.readouterr().out
    assert "✓ mail saw every signup once" in out
    assert f"All {len(show.checks)} checks hold." in out


# --- a demo that checks nothing would pass too: here something is wrong each time


def lose_an_event(client: Client, topic: str) -> None:
    with client.producer(topic) as producer:
        producer.send("not of the demo", key="stray")


@pytest.mark.parametrize(("module", "topic"), [(bank, bank.JOURNAL), (work, work.TOPIC), (broadcast, broadcast.TOPIC)])
def test_a_demo_fails_when_its_topic_exists(krappy_broker: RunningBroker, module: Any, topic: str) -> None:
    with krappy_broker.connect() as client:
        lose_an_event(client, topic)
        with pytest.raises(Exception, match=topic):
            module.run(client, krappy_broker.address, Show(as_json=True))


@pytest.mark.parametrize("change", ["an event more", "a key overwritten", "a key deleted"])
def test_flights_notices_a_difference(
    krappy_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between the stream and the look-ups somebody else writes into the topic."""
    stream: Callable[..., None] = flights._stream

    def and_then(client: Client, *rest: Any) -> None:
        stream(client, *rest)
        with client.producer(flights.TOPIC) as producer:
            if change == "an event more":
                producer.send("{}")
            else:
                producer.send(None if change == "a key deleted" else '{"a": "b"}', key="N593JB")

    monkeypatch.setattr(flights, "_stream", and_then)
    with krappy_broker.connect() as client, pytest.raises(Failure, match="not so"):
        flights.run(client, krappy_broker.address, Show(as_json=True), limit=2_000)


def test_a_check_that_does_not_hold_ends_the_demo_with_1(tmp_path: Path) -> None:
    show = Show(as_json=True)
    show.check("one is one", True)
    with pytest.raises(Failure, match="one is two; it is not"):
        show.check("one is two", False, "it is not")
    assert show.checks == ["one is one"]


def test_a_cluster() -> None:
    try:
        folder = jars()
    except Missing as reason:
        pytest.skip(str(reason))
    if shutil.which("java") is None:
        pytest.skip("ZooKeeper needs Java")
    said = demo("cluster", "--limit", "5000", "--jars", str(folder))
    assert said["events"] == 5000
    assert len(said["checks"]) == 6


def test_a_cluster_without_its_data_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise Failure("this demo needs its data")

    started: list[object] = []
    monkeypatch.setattr(cluster, "find_file", missing)
    monkeypatch.setattr(cluster, "find_jars", started.append)
    with pytest.raises(Failure, match="needs its data"):
        cluster.run(Show(as_json=True), None, None, None)
    assert not started
