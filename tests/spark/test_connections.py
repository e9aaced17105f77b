"""How long Spark's processes wait for a broker: a task waits while it is started again, a program gets the error at
once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from krappy.errors import ConnectionLost
from krappy.spark import connections
from krappy.spark.broker_at import BrokerAt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address where nobody answers; it is the one that is used where no address is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        found = f"127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("KRAPPY_ADDRESS", found)
        yield found


def test_a_task_waits_for_its_broker(address: str, nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            monkeypatch.setenv("KRAPPY_ADDRESS", address)

    monkeypatch.setattr(connections, "is_task", lambda: True)
    monkeypatch.setattr(connections, "PATIENCE", 600)
    monkeypatch.setattr("krappy.spark.connections.sleep", sleep)
    with closing(connections._connected(BrokerAt())) as found:
        assert isinstance(found.topics(), list)
    assert len(waited) == 3


def test_not_for_ever(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "is_task", lambda: True)
    monkeypatch.setattr(connections, "PATIENCE", 0.5)
    with pytest.raises(ConnectionLost, match=nowhere):
        connections.client(None)


def test_a_program_is_told_at_once(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krappy.spark.connections.sleep", lambda _: pytest.fail("it waited"))
    with pytest.raises(ConnectionLost, match=nowhere):
        connections.client(None)


def test_what_a_task_is(spark: SparkSession) -> None:
    def tell(_: int) -> tuple[int, bool]:
        from krappy.spark.workers import is_task

        return os.getpid(), is_task()

    from krappy.spark.workers import is_task

    [(process, found)] = spark.sparkContext.parallelize([0], 1).map(tell).collect()
    assert found
    assert process != os.getpid()
    assert not is_task()
