"""Transactions: all or nothing, for every client that has them, and as every client reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from krappy.wire.kafka import ApiKey
from tests.compat.clients.base import PATIENCE, Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NAMES, GetClient, NewTopic
from tests.compat.servers import Server
from tests.kafka.raw import Raw

WRITERS = [name for name in NAMES if name not in ("kcat", "kafka-go")]
_numbers = itertools.count()
PLAIN = Confluent()


def new_id() -> str:
    return f"transactional-{next(_numbers)}"


def some(mark: str, partitions: int = 2) -> list[Message]:
    return [Message(mark.encode(), b"%s %d" % (mark.encode(), n), (), None, n % partitions) for n in range(10)]


@pytest.mark.parametrize("name", WRITERS)
def test_only_what_was_committed_is_seen(
    name: str, get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    client = get_client(name)
    topic = new_topic(partitions=2)
    ours = new_id()
    client.produce(running.address, topic, some("first"), Sending(transactional_id=ours))
    client.produce(running.address, topic, some("gone"), Sending(transactional_id=ours, abort=True))
    client.produce(running.address, topic, some("second"), Sending(transactional_id=ours))
    client.produce(running.address, topic, some("gone too"), Sending(transactional_id=ours, abort=True))
    PLAIN.produce(running.address, topic, some("last"), Sending())
    committed = sorted(m.value or b"" for mark in ("first", "second", "last") for m in some(mark))
    everything = sorted(committed + [m.value or b"" for mark in ("gone", "gone too") for m in some(mark)])
    for reader in NAMES:
        if reader == "kafka-go":  # it takes control batches for messages, Kafka's as well
            continue
        try:
            other = get_client(reader)
        except pytest.skip.Exception:
            continue
        seen = other.consume(running.address, topic, len(committed), "read_committed")
        assert sorted(m.value or b"" for m in seen) == committed, f"{reader} reads {name}'s transactions"
        if reader in ("confluent-kafka", name):
            seen = other.consume(running.address, topic, len(everything))
            assert sorted(m.value or b"" for m in seen) == everything


@pytest.mark.parametrize(("name", "epoch"), [("java-4", 3), ("java-3", 1), ("confluent-kafka", 1)])
def test_who_knows_it_gets_the_next_epoch_with_each_end(
    name: str, epoch: int, get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    """KIP-890. Each of the two producers takes an epoch when it begins."""
    client, topic, ours = get_client(name), new_topic(partitions=2), new_id()
    for mark in ("first", "second"):
        client.produce(running.address, topic, some(mark), Sending(transactional_id=ours))
    with Raw(running.address) as raw:
        [found] = raw.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [ours]})["transaction_states"]
    assert found["transaction_state"] == "CompleteCommit"
    assert found["producer_epoch"] == epoch


@pytest.fixture
def producer(running: Server) -> Iterator[Producer]:
    found = Producer({"bootstrap.servers": running.address, "transactional.id": new_id(), "linger.ms": 0})
    found.init_transactions(PATIENCE)
    yield found
    found.purge()


def committed_end(running: Server, topic: str) -> tuple[int, int]:
    """(last stable offset, high watermark) of partition 0, as consumers are told."""
    found = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer({"bootstrap.servers": running.address, "group.id": "x", "isolation.level": isolation})
        found.append(consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE)[1])
        consumer.close()
    return found[0], found[1]


def test_an_open_transaction_holds_back_readers_of_what_is_committed(
    producer: Producer, running: Server, new_topic: NewTopic
) -> None:
    topic = new_topic()
    PLAIN.produce(running.address, topic, [Message(b"k", b"before")], Sending())
    producer.begin_transaction()
    producer.produce(topic, b"inside", b"k")
    assert producer.flush(PATIENCE) == 0
    PLAIN.produce(running.address, topic, [Message(b"k", b"after")], Sending())
    assert committed_end(running, topic) == (1, 3)
    producer.commit_transaction(PATIENCE)
    assert committed_end(running, topic) == (4, 4), "the marker has an offset too"
    seen = PLAIN.consume(running.address, topic, 3, "read_committed")
    assert [m.value for m in seen] == [b"before", b"inside", b"after"]


def test_an_open_transaction_survives_a_crash_and_can_still_be_committed(
    producer: Producer, running: Server, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer.begin_transaction()
    producer.produce(topic, b"one", b"k")
    assert producer.flush(PATIENCE) == 0
    running.kill()
    running.start()
    assert committed_end(running, topic) == (0, 1)
    producer.produce(topic, b"two", b"k")
    producer.commit_transaction(PATIENCE)
    seen = PLAIN.consume(running.address, topic, 2, "read_committed")
    assert [m.value for m in seen] == [b"one", b"two"]


def test_the_next_of_the_same_id_fences_the_one_before_and_aborts_what_it_left(
    running: Server, new_topic: NewTopic
) -> None:
    topic, ours = new_topic(), new_id()
    config = {"bootstrap.servers": running.address, "transactional.id": ours}
    older = Producer(config)
    older.init_transactions(PATIENCE)
    older.begin_transaction()
    older.produce(topic, b"left open", b"k")
    assert older.flush(PATIENCE) == 0
    PLAIN.produce(running.address, topic, [Message(b"k", b"new")], Sending(transactional_id=ours))
    with pytest.raises(KafkaException) as refused:
        older.commit_transaction(PATIENCE)
    assert refused.value.args[0].fatal()
    assert "FENCED" in refused.value.args[0].name()
    assert [m.value for m in PLAIN.consume(running.address, topic, 1, "read_committed")] == [b"new"]


def test_positions_move_with_the_transaction(producer: Producer, running: Server, new_topic: NewTopic) -> None:
    """Read, transform, write: KIP-98's TxnOffsetCommit, with KIP-447's group metadata."""
    source, target, group = new_topic(), new_topic(), f"eos-{next(_numbers)}"
    PLAIN.produce(running.address, source, [Message(b"k", b"%d" % n) for n in range(10)], Sending())
    consumer = Consumer(
        {
            "bootstrap.servers": running.address,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    found: list[Any] = []
    while len(found) < 10:
        found += consumer.consume(10 - len(found), 1.0)
    for outcome in ("abort", "commit"):
        producer.begin_transaction()
        for raw in found:
            producer.produce(target, b"%s %s" % (outcome.encode(), raw.value() or b""), raw.key())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), PATIENCE
        )
        if outcome == "abort":
            producer.abort_transaction(PATIENCE)
        else:
            producer.commit_transaction(PATIENCE)
        (committed,) = consumer.committed([TopicPartition(source, 0)], PATIENCE)
        assert committed.offset == (-1001 if outcome == "abort" else 10)
    consumer.close()
    seen = PLAIN.consume(running.address, target, 10, "read_committed")
    assert [m.value for m in seen] == [b"commit %d" % n for n in range(10)]
