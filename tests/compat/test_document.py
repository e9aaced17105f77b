"""The examples for Kafka's clients, in KAFKA.md and the how-to: each is run as it is written, but for the address."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.compat import tools
from tests.compat.clients.base import PATIENCE

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "krappy" / "wire" / "KAFKA.md").read_text("utf-8")
HOWTO = (ROOT / "krappy" / "docs" / "howto" / "kafka-clients.md").read_text("utf-8")
ADDRESS = "localhost:9092"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    data = tmp_path_factory.mktemp("broker")
    with run_broker(data, durability="os", group_initial_rebalance_delay_ms=0) as running:
        yield running


def python_block(containing: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    [found] = [block for block in blocks if containing in block]
    return str(found)


def fill(broker: RunningBroker, topic: str) -> None:
    with broker.connect() as client:
        client.create_topic(topic, if_absent=True)
        with client.producer(topic) as producer:
            for key, value in (("a", "1"), ("b", "2"), ("a", "3"), ("b", None)):
                producer.send(value, key=key).result()


def test_a_program_that_keeps_a_table(broker: RunningBroker) -> None:
    fill(broker, "prices")

    class Ending:
        """The consumer. It ends the example's loop once it has given the live key and the change after it."""

        def __init__(self, config: dict[str, Any]) -> None:
            self.real = confluent_kafka.Consumer(config)
            self.subscribe = self.real.subscribe
            self.given = 0

        def poll(self, timeout: float) -> Any:
            if self.given == 1:
                with broker.connect() as client, client.producer("prices") as producer:
                    producer.send("4", key="c").result()
            if self.given == 2:
                self.real.close()
                return None
            while (message := self.real.poll(timeout)) is None:
                pass
            self.given += 1
            return message

    source = python_block("prices@latest").replace(ADDRESS, broker.kafka_address)
    names: dict[str, Any] = {"Consumer": Ending}
    exec(source.replace("from confluent_kafka import Consumer\n", ""), names)
    assert names["table"] == {b"a": b"3", b"c": b"4"}


def test_of_two_writers_on_a_condition_one_succeeds(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    with broker.connect() as client:
        client.create_topic("seats")
    source = python_block("krappy-expect-offset").replace(ADDRESS, broker.kafka_address)
    exec(source, {})
    assert capsys.readouterr().out == ""
    exec(source, {})
    assert capsys.readouterr().out.startswith("somebody else was faster")


@pytest.mark.parametrize("line", re.findall(r"^    (.*\bkcat .*)$", DOCUMENT + HOWTO, re.MULTILINE))
def test_what_kcat_is_told(broker: RunningBroker, line: str) -> None:
    try:
        tools.wanted("kcat")
        tools.kcat()
    except tools.Missing as reason:
        pytest.skip(str(reason))
    assert ADDRESS in line
    [topic] = re.findall(r"-t (\w+)", line)
    fill(broker, topic)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line.replace(ADDRESS, broker.kafka_address).replace("12A", "12B")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout != "") == (" -C " in line)
