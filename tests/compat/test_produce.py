"""Every client writes with every acks and codec that it has, and is told clearly what the broker refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compat.clients.base import Acks, Client, Message, Refused, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.servers import Server

BASE = 1_700_000_000_000
READER = Confluent()


def some(count: int, size: int = 200) -> list[Message]:
    return [Message(b"k%d" % n, (b"%d " % n) * (size // 4), (), BASE + n) for n in range(count)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_with_every_codec(acks: Acks, client: Client, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent: list[Message] = []
    for codec in client.codecs:
        more = some(20)
        offsets = client.produce(running.address, topic, more, Sending(acks=acks, codec=codec))
        assert offsets == ([] if acks == "0" else list(range(len(sent), len(sent) + len(more)))), codec
        sent += more
    found = READER.consume(running.address, topic, len(sent))
    assert [(m.key, m.value) for m in found] == [(m.key, m.value) for m in sent]
    assert [m.offset for m in found] == list(range(len(sent)))


def test_a_topic_takes_the_brokers_time(client: Client, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    sent = some(5)
    client.produce(running.address, topic, sent, Sending())
    found = READER.consume(running.address, topic, len(sent))
    assert [m.value for m in found] == [m.value for m in sent]
    assert all(m.timestamp is not None and m.timestamp > BASE + 1_000_000 for m in found)


def test_a_message_over_the_topics_limit_is_refused_and_the_next_is_taken(
    client: Client, running: Server, new_topic: NewTopic
) -> None:
    topic = new_topic(max_message_bytes=100_000)
    with pytest.raises(Refused) as refused:
        client.produce(running.address, topic, [Message(b"k", b"x" * 200_000)], Sending(max_bytes=2_000_000))
    assert "toolarge" in refused.value.reason, refused.value
    client.produce(running.address, topic, [Message(b"k", b"small")], Sending())
    assert [m.value for m in READER.consume(running.address, topic, 1)] == [b"small"]


def test_large_messages(client: Client, running: Server, new_topic: NewTopic) -> None:
    """Beyond what a fetch asks for by default: the first batch comes whole, whatever its size."""
    topic = new_topic(max_message_bytes=10_000_000)
    sent = [Message(b"k%d" % n, bytes([65 + n]) * 5_000_000) for n in range(2)]
    for message in sent:
        client.produce(running.address, topic, [message], Sending(max_bytes=8_000_000))
    found = client.consume(running.address, topic, 2)
    assert [(m.key, m.value) for m in found] == [(m.key, m.value) for m in sent]


def test_a_compacted_topic_refuses_events_without_a_key(client: Client, running: Server, new_topic: NewTopic) -> None:
    if client.name == "kcat":
        pytest.skip("kcat -K writes an empty key, not none")
    topic = new_topic(cleanup_policy="compact")
    with pytest.raises(Refused) as refused:
        client.produce(running.address, topic, [Message(None, b"v")], Sending())
    # librdkafka: INVALID_RECORD; kafkajs has no name for the code, and shows its text
    assert (
        "invalidrecord" in refused.value.reason
        or "failedtovalidate" in refused.value.reason
        or ("rejected" in refused.value.reason or "unknown" in refused.value.reason)
    ), refused.value
    client.produce(running.address, topic, [Message(b"k", b"v")], Sending())


def test_order_holds_with_many_batches_in_flight(client: Client, running: Server, new_topic: NewTopic) -> None:
    if client.name == "kafka-go":
        pytest.skip("kafka-go has no idempotent producer")
    topic = new_topic()
    sent = [replace(message, value=b"%06d" % n) for n, message in enumerate(some(3000, 8))]
    offsets = client.produce(running.address, topic, sent, Sending(idempotent=True))
    assert offsets == list(range(len(sent)))
    found = READER.consume(running.address, topic, len(sent))
    assert [m.value for m in found] == [m.value for m in sent]
