"""quixstreams and faust-streaming: the programs of the page keep their state when their process ends."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from krappy.blocking import Client
from krappy.errors import UnknownTopic
from tests.compat.clients.base import PATIENCE
from tests.compat.programs import LONG_S, MADE, Program, python, saved
from tests.compat.servers import KrappyServer
from tests.process import free_ports

KEYS = ["s1", "s2", "s3", "s4"]
pytestmark = [MADE, pytest.mark.timeout(4 * LONG_S)]


def table(client: Client, topic: str) -> dict[str, Any]:
    """The JSON value of each key; empty if there is no such topic."""
    try:
        return {entry.key.decode(): json.loads(entry.value or b"") for entry in client.table(topic).scan()}
    except UnknownTopic:
        return {}


def test_quixstreams(broker: KrappyServer, native: Client, tmp_path: Path) -> None:
    chosen = random.Random(3)
    sent: dict[str, list[float]] = defaultdict(list)
    native.create_topic("readings", 2)
    native.create_topic("means", 2)

    def send(number: int) -> None:
        with native.producer("readings") as producer:
            for _ in range(number):
                key, celsius = chosen.choice(KEYS), chosen.randrange(-100, 300) / 4  # sums of quarters are exact
                producer.send(json.dumps({"celsius": celsius}), key=key)
                sent[key].append(celsius)

    def done() -> bool:
        return table(native, "means") == {
            key: {"count": len(values), "mean": sum(values) / len(values)} for key, values in sent.items()
        }

    send(300)
    with Program([python("streams"), saved("quix.py", broker, tmp_path)], tmp_path, "quix") as program:
        program.until(done, "the means are right")
        send(1000)
        program.until(lambda: sum(each["count"] for each in table(native, "means").values()) > 300, "it goes on")
        program.kill()
        shutil.rmtree(tmp_path / "state")
        send(300)
        program.start()
        program.until(done, "the means are right after a kill, without its state folder")
        program.stop()
    counted: Counter[str] = Counter()
    with native.consumer("means", end="now") as consumer:
        for event in consumer:
            key = (event.key or b"").decode()
            counted[key] += 1
            assert json.loads(event.value or b"")["count"] == counted[key], "each reading was counted once"
    assert counted == {key: len(values) for key, values in sent.items()}


@pytest.fixture
def faust(broker: KrappyServer, tmp_path: Path) -> Iterator[Program]:
    """The page's worker, not started."""
    saved("visits.py", broker, tmp_path)
    command: list[str | Path] = [python("streams"), "-m", "faust", "-A", "visits", "worker", "--web-host", "127.0.0.1"]
    program = Program([*command, "--web-port", str(free_ports(1)[0]), "-l", "info"], tmp_path, "faust")
    yield program
    program.kill()


def test_faust(faust: Program, broker: KrappyServer, native: Client) -> None:
    sent: Counter[str] = Counter()
    native.create_topic("pages", 2)

    def send(number: int) -> None:
        with native.producer("pages") as producer:
            for n in range(number):
                producer.send("seen", key=f"page {n % 7}")
                sent[f"page {n % 7}"] += 1

    def done() -> bool:
        return table(native, "visits-count-changelog") == {json.dumps(page): count for page, count in sent.items()}

    def committed() -> int:
        asked = [TopicPartition("pages", number) for number in range(2)]
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "visits"})
        found: int = sum(max(each.offset, 0) for each in consumer.committed(asked, PATIENCE))
        consumer.close()
        return found

    def starts() -> int:
        return faust.log.read_text().count("Worker ready")

    send(100)
    faust.start()
    faust.until(done, "the visits are counted")
    faust.until(lambda: committed() == 100, "and committed, which it does every few seconds, not when it stops")
    faust.stop()
    faust.start()
    # Not earlier. faust-streaming 0.15.3 ends a recovery (faust/tables/recovery.py, 649 to 659) by resuming `pages`,
    # then seeking it to what is committed, then emptying its own queues. What it reads before the seek is counted
    # twice; what stands in a queue when it empties them is lost.
    faust.until(lambda: starts() == 2, "it has its table back")
    send(50)
    faust.until(done, "the counts go on from the changelog")
