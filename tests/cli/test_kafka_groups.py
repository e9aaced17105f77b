"""`krappy group` and groups of Kafka's clients: listed, described, moved and deleted like others, never joined."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from krappy.testing.running import RunningBroker
from tests.cli.conftest import Krappy
from tests.served import alone


def commit(broker: RunningBroker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.kafka_address, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_a_kafka_group_is_shown_moved_and_deleted(krappy: Krappy, broker: RunningBroker, topic: str) -> None:
    krappy("produce", topic, "--partition", "0", stdin=b"a\nb\nc\n")
    commit(broker, "java", topic, 1)
    krappy("consume", topic, "--group", "native", "--max", "1")
    kinds = {each["group"]: each["kind"] for each in krappy("group", "list", "--json").json}
    assert (kinds["java"], kinds["native"]) == ("classic", "shared")
    assert "classic" in krappy("group", "list").out
    [row] = krappy("group", "describe", "java", "--json").json["partitions"]
    assert (row["partition"], row["floor"], row["end"], row["lag"]) == (0, 1, 3, 2)
    moved = krappy("group", "reset", "java", "--to", "latest", "--json").json["positions"]
    assert {each["partition"]: each["new"] for each in moved} == {0: 3, 1: 0, 2: 0}
    assert krappy("group", "delete", "java", "--yes").status == 0
    assert krappy("group", "describe", "java").status == 1
    krappy("group", "delete", "native", "--yes")


def test_a_group_without_positions_says_that_nothing_was_moved(
    krappy: Krappy, broker: RunningBroker, topic: str
) -> None:
    settings = {"bootstrap.servers": broker.kafka_address, "group.id": "bare", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    deadline = time.monotonic() + 20
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    consumer.close()
    assert "nothing was moved" in krappy("group", "reset", "bare", "--to", "earliest").err
    assert "nothing was moved" not in krappy("group", "reset", "bare", "--to", "earliest", "--topic", topic).err
    krappy("group", "delete", "bare", "--yes")


@alone  # in a cluster another broker may coordinate native groups of this name
def test_a_kafka_group_is_not_joined(krappy: Krappy, broker: RunningBroker, topic: str) -> None:
    krappy("produce", topic, "--partition", "0", stdin=b"a\n")
    commit(broker, "java", topic, 0)
    refused = krappy("consume", topic, "--group", "java", "--max", "1")
    assert refused.status == 1
    assert "Kafka clients" in refused.err
    krappy("group", "delete", "java", "--yes")


def test_positions_in_the_table_of_a_topic_are_moved_too(krappy: Krappy, broker: RunningBroker, topic: str) -> None:
    krappy("produce", topic, "--partition", "0", "--key-separator", ":", stdin=b"k:a\nk:b\n")
    commit(broker, "latest", f"{topic}@latest", 2)
    moved = krappy("group", "reset", "latest", "--to", "earliest", "--json").json["positions"]
    assert (moved[0]["topic"], moved[0]["old"], moved[0]["new"]) == (f"{topic}@latest", 2, 0)
    krappy("group", "delete", "latest", "--yes")
