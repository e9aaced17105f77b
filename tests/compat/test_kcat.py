"""kcat's own ways: metadata as JSON, a balanced consumer, nothing left to read."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.compat import tools
from tests.compat.clients.base import PATIENCE, Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.clients.kcat import FORMAT, parse
from tests.compat.conftest import NewTopic
from tests.compat.servers import Server
from tests.compat.test_groups import new_group


@pytest.fixture(autouse=True)
def _installed() -> None:
    try:
        tools.wanted("kcat")
        tools.kcat()
    except tools.Missing as reason:
        pytest.skip(str(reason))


def run(address: str, *arguments: str) -> bytes:
    return subprocess.run(["kcat", "-b", address, *arguments], capture_output=True, timeout=PATIENCE, check=True).stdout


def test_metadata(running: Server, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    told = json.loads(run(running.address, "-L", "-J", "-t", topic))
    (broker,) = told["brokers"]
    assert broker["name"] == running.address
    assert told["controllerid"] == broker["id"]
    (described,) = told["topics"]
    assert described["topic"] == topic
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert all(part["leader"] == broker["id"] for part in described["partitions"])
    assert all(part["isrs"] == [{"id": broker["id"]}] for part in described["partitions"])


def test_a_balanced_consumer_goes_on_where_the_last_one_ended(running: Server, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=2), new_group()
    sent = [Message(b"k", b"%d" % n, (), None, n % 2) for n in range(20)]
    Confluent().produce(running.address, topic, sent, Sending())
    seen: list[int] = []
    for _ in range(2):
        arguments = ["-G", group, "-c", "10", "-q", "-X", "auto.offset.reset=earliest", "-f", FORMAT, topic]
        seen += [int(m.value or b"") for m in parse(run(running.address, *arguments))]
    assert len(seen) == 20
    assert len(set(seen)) >= 10, "kcat commits what it has read when it ends"


def test_from_the_end_and_from_an_offset(running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    Confluent().produce(running.address, topic, [Message(b"k", b"%d" % n) for n in range(20)], Sending())
    for start, expected in (("-5", range(15, 20)), ("12", range(12, 20)), ("end", range(0))):
        out = run(running.address, "-C", "-t", topic, "-o", start, "-e", "-q", "-f", FORMAT)
        assert [m.offset for m in parse(out)] == list(expected), start
