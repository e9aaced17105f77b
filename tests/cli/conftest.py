"""A broker for each test file, and `krappy` called in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from krappy.cli import main
from krappy.testing.running import RunningBroker
from tests.served import serving


class Result(NamedTuple):
    """The outcome of a command line: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """The lines of stdout; fails if the command did."""
        assert self.status == 0, self.err
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        """The objects on stdout, one for each line of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


Krappy = Callable[..., Result]


def make_kafka_group(broker: RunningBroker, group: str, topic: str) -> None:
    """Makes a group of Kafka's, which may have any name. The topic exists."""
    member = Consumer({"bootstrap.servers": broker.kafka_address, "group.id": group})
    member.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    member.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with serving(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_variables_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """`krappy serve` would take these variables for settings, and there are no such settings."""
    for name in ("KRAPPY_BROKERS", "KRAPPY_LONG", "KRAPPY_EXPLORE", "KRAPPY_COMPAT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Krappy:
    """Runs `krappy` with the given arguments and stdin; no broker is named."""

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        status = main.run(list(arguments))
        out, err = capfd.readouterr()
        # A client of an earlier test may still tell that its broker is gone, until it is given up (admin_clients.py).
        err = "".join(line for line in err.splitlines(keepends=True) if "|rdkafka#" not in line)
        assert "Traceback" not in err
        return Result(status, out, err)

    return call


@pytest.fixture
def krappy(run: Krappy, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Krappy:
    """Runs `krappy` as `run` does, against the broker of this file."""
    monkeypatch.setenv("KRAPPY_ADDRESS", broker.address)
    return run


@pytest.fixture
def topic(krappy: Krappy, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of this test's own, with three partitions."""
    name = request.node.name.replace("[", "-").replace("]", "")[:80]
    assert krappy("topic", "create", name, "--partitions", "3").status == 0
    yield name
    krappy("topic", "delete", name, "--yes")
