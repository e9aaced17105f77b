"""What Krappy adds for Kafka's clients: lookups of what they wrote, `TOPIC@latest`, conditional writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from krappy.blocking import connect
from tests.compat.clients.base import Client, Message, Refused, Sending, by_partition
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NAMES, GetClient, NewTopic
from tests.compat.servers import UNDER_TEST, KrappyServer, Server
from tests.compat.test_groups import drain, new_group, settle

pytestmark = pytest.mark.skipif(UNDER_TEST != "krappy", reason="Apache Kafka has no table")
WRITER = Confluent()


def history(rounds: int = 5, keys: int = 12, partitions: int = 2) -> list[Message]:
    """Every key several times; at last one key of three is deleted."""
    found = []
    for number in range(rounds):
        for key in range(keys):
            gone = number == rounds - 1 and key % 3 == 0
            value = None if gone else b"%d of %d" % (number, key)
            found.append(Message(b"k%d" % key, value, (("round", b"%d" % number),), 1000 + number, key % partitions))
    return found


def write(running: Server, topic: str) -> list[Message]:
    """Writes the history; returns the latest event of each key that lives, in the order of offsets."""
    sent = history()
    offsets = WRITER.produce(running.address, topic, sent, Sending())
    written = [message.at(offset) for message, offset in zip(sent, offsets, strict=True)]
    last = {message.key: message for message in written}
    return [message for message in written if last[message.key] is message and message.value is not None]


def same(found: Sequence[Message], expected: Sequence[Message]) -> bool:
    return by_partition(found) == by_partition(expected)


def test_what_a_kafka_client_wrote_is_looked_up_at_once(client: Client, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert isinstance(running, KrappyServer)
    with connect(running.broker.address) as native:
        table = native.table(topic)
        for number in range(5):
            (offset,) = client.produce(running.address, topic, [Message(b"k", b"v%d" % number)], Sending())
            entry = table.get("k")
            assert entry is not None
            assert (entry.value, entry.offset) == (b"v%d" % number, offset)


# kafka-python refuses names with an @.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("kcat", "kafka-python")])
def test_latest_is_one_event_of_each_key_with_its_own_offset(
    name: str, get_client: GetClient, running: Server, new_topic: NewTopic
) -> None:
    client = get_client(name)
    topic = new_topic(partitions=2)
    expected = write(running, topic)
    assert same(client.consume(running.address, f"{topic}@latest", len(expected)), expected)


def test_kcat_reads_latest_to_its_end(get_client: GetClient, running: Server, new_topic: NewTopic) -> None:
    client = get_client("kcat")
    topic = new_topic(partitions=2)
    expected = write(running, topic)
    found = client.consume(running.address, f"{topic}@latest", len(expected))
    assert [(m.key, m.value, m.offset) for m in sorted(found, key=lambda m: (m.partition, m.offset or 0))] == [
        (m.key, m.value, m.offset) for m in sorted(expected, key=lambda m: (m.partition, m.offset or 0))
    ]


def test_the_live_tail_follows_the_table(running: Server, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    expected = write(running, topic)
    consumer = Consumer({"bootstrap.servers": running.address, "group.id": "unused", "auto.offset.reset": "error"})
    name = f"{topic}@latest"
    consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in range(2)])
    got: list[tuple[int, int]] = []
    while len(got) < len(expected):
        raw = consumer.poll(30)
        assert raw is not None
        assert raw.error() is None
        got.append((raw.partition(), raw.offset()))
    assert sorted(got) == sorted((m.partition, m.offset) for m in expected)
    # From here on every event comes, also of keys that are written again.
    more = [Message(b"k1", b"again %d" % number, (), None, 1) for number in range(20)]
    offsets = WRITER.produce(running.address, topic, more, Sending())
    tail: list[tuple[int, bytes]] = []
    while len(tail) < len(more):
        raw = consumer.poll(30)
        assert raw is not None
        assert raw.error() is None
        tail.append((raw.offset(), raw.value()))
    assert tail == [(offset, m.value) for offset, m in zip(offsets, more, strict=True)]
    consumer.close()


def test_a_group_reads_latest_and_goes_on_where_it_was(running: Server, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=2), new_group()
    expected = write(running, topic)
    member = WRITER.member(running.address, f"{topic}@latest", group)
    found = drain([member], len(expected))
    assert same(found, expected)
    settle([member], partitions=2)
    member.commit()
    member.close()
    WRITER.produce(running.address, topic, [Message(b"k2", b"new", (), None, 0)], Sending())
    member = WRITER.member(running.address, f"{topic}@latest", group)
    assert [m.value for m in drain([member], 1)] == [b"new"]
    member.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kcat"])
def test_a_conditional_write(name: str, get_client: GetClient, running: Server, new_topic: NewTopic) -> None:
    """The header krappy-expect-offset: the key must be at that offset, or `absent`."""
    client = get_client(name)
    topic = new_topic()
    (first,) = client.produce(
        running.address, topic, [Message(b"k", b"1", (("krappy-expect-offset", b"absent"),))], Sending()
    )
    (second,) = client.produce(
        running.address, topic, [Message(b"k", b"2", (("krappy-expect-offset", str(first).encode()),))], Sending()
    )
    with pytest.raises(Refused) as refused:
        client.produce(
            running.address, topic, [Message(b"k", b"3", (("krappy-expect-offset", str(first).encode()),))], Sending()
        )
    assert refused.value.reason, "it has a reason"
    if name.startswith("java"):
        assert str(second) in str(refused.value), "the message names the offset that the key is at"
    found = WRITER.consume(running.address, topic, 2)
    assert [m.value for m in found] == [b"1", b"2"]
    assert WRITER.produce(running.address, topic, [Message(b"k", b"4")], Sending()) == [second + 1]
