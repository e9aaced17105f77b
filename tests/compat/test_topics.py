"""Compaction as a consumer sees it, very many topics, topics that their first producer makes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic as Wanted

from tests.compat import tools
from tests.compat.admin import Admin
from tests.compat.clients.base import PATIENCE, Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NAMES, GetClient, NewTopic
from tests.compat.servers import UNDER_TEST, Server, server
from tests.process import wait_until

PLAIN = Confluent()
MANY = 1000 if tools.WANTED else 200  # make compat: all of them


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that looks several times a second for what it can clean."""
    found = server(tmp_path_factory.mktemp(UNDER_TEST), retention_check_ms=200)
    try:
        found.start()
        yield found
    finally:
        found.kill()


def read_all(running: Server, topic: str) -> list[Message]:
    """All messages from the beginning to the current end."""
    consumer = Consumer({"bootstrap.servers": running.address, "group.id": "x", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while (raw := consumer.poll(PATIENCE)) is not None and raw.error() is None:
        found.append(Message(raw.key(), raw.value(), (), None, 0, raw.offset()))
    consumer.close()
    return found


def test_a_compacted_topic_keeps_the_last_of_each_key_at_its_offset(
    get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    topic = new_topic(
        cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.01, delete_retention_ms=86_400_000
    )
    keys, rounds = 50, 60
    sent = []
    for number in range(rounds):
        body = b"%d " % number * 400
        value = None if number == rounds - 1 else body
        sent += [Message(b"k%d" % n, value if n % 10 == 0 else body) for n in range(keys)]
    # The last segment is never cleaned: what follows rolls it.
    sent += [Message(b"filler %d" % n, b"x" * 100_000) for n in range(12)]
    PLAIN.produce(running.address, topic, sent, Sending(idempotent=True))
    end = time.monotonic() + PATIENCE
    while len(found := [m for m in read_all(running, topic) if not (m.key or b"").startswith(b"filler")]) > keys:
        assert time.monotonic() < end, f"{len(found)} events are left of {keys} keys"
        time.sleep(0.1)
    first = (rounds - 1) * keys
    assert [(m.key, m.offset) for m in found] == [(b"k%d" % n, first + n) for n in range(keys)]
    assert [m.value is None for m in found] == [n % 10 == 0 for n in range(keys)], "tombstones stay for their time"
    count = len(read_all(running, topic))
    for name in NAMES:
        try:
            reader = get_client(name)
        except pytest.skip.Exception:
            continue
        seen = [m for m in reader.consume(running.address, topic, count) if not (m.key or b"").startswith(b"filler")]
        assert [(m.key, m.value, m.offset) for m in seen] == [(m.key, m.value, m.offset) for m in found], name


def test_very_many_topics(admin: Admin, get_client: GetClient, running: Server) -> None:
    names = [f"many-{number:04d}" for number in range(MANY)]
    for future in admin.client.create_topics([Wanted(name, 1, 1) for name in names], request_timeout=60).values():
        future.result(PATIENCE)
    wait_until(lambda: set(names) <= set(admin.topics()), "all topics are listed")
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": running.address})
    for name in names:
        producer.produce(name, name.encode(), b"k", on_delivery=told)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    assert not failed
    consumer = Consumer({"bootstrap.servers": running.address, "group.id": "many", "auto.offset.reset": "earliest"})
    consumer.subscribe(["^many-.*"])
    found: dict[str, bytes] = {}
    end = time.monotonic() + PATIENCE
    while len(found) < MANY:
        for raw in consumer.consume(MANY, 0.2):
            if raw.error() is None:
                found[raw.topic() or ""] = raw.value() or b""
        assert time.monotonic() < end, f"{len(found)} of {MANY} topics were read"
    assert found == {name: name.encode() for name in names}
    consumer.close()
    for future in admin.client.delete_topics(names, request_timeout=60).values():
        future.result(PATIENCE)
    wait_until(lambda: not set(names) & set(admin.topics()), "none of the deleted topics is listed")


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_comes_with_its_first_producer(name: str, get_client: GetClient, running: Server, admin: Admin) -> None:
    """auto.create.topics.enable, as Kafka has it by default."""
    client = get_client(name)
    topic = f"made-by-{name}"
    client.produce(running.address, topic, [Message(b"k", b"v")], Sending())
    assert topic in admin.topics()
    assert [m.value for m in PLAIN.consume(running.address, topic, 1)] == [b"v"]
