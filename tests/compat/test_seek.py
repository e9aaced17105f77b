"""Reading from a time on: exact to the record, also inside compressed batches, for every client that can ask."""

from __future__ import annotations

import asyncio
import subprocess
import warnings
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.compat import tools
from tests.compat.admin import Admin
from tests.compat.clients.base import PATIENCE, Codec, Message, Sending
from tests.compat.clients.confluent import Confluent
from tests.compat.conftest import NewTopic
from tests.compat.servers import Server

BASE = 1_700_000_000_000
STEP = 1000
COUNT = 50
Ask = Callable[[str, str, int], int]  # address, topic, timestamp -> first offset at or after it; -1: none


def by_confluent(address: str, topic: str, timestamp: int) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], PATIENCE)
    consumer.close()
    return -1 if found.offset < 0 else found.offset


def by_kafka_python(address: str, topic: str, timestamp: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None)
    part = kafka.TopicPartition(topic, 0)
    found = consumer.offsets_for_times({part: timestamp})[part]
    consumer.close()
    return -1 if found is None or found.offset is None else int(found.offset)


def by_aiokafka(address: str, topic: str, timestamp: int) -> int:
    import aiokafka

    async def ask() -> int:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        try:
            part = aiokafka.TopicPartition(topic, 0)
            consumer.assign([part])
            found = (await consumer.offsets_for_times({part: timestamp}))[part]
            return -1 if found is None else int(found.offset)
        finally:
            await consumer.stop()

    return asyncio.run(ask())


def by_kcat(address: str, topic: str, timestamp: int) -> int:
    try:
        tools.wanted("kcat")
        program = tools.kcat()
    except tools.Missing as reason:
        pytest.skip(str(reason))
    command = [program, "-b", address, "-Q", "-t", f"{topic}:0:{timestamp}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("ask", [by_confluent, by_kafka_python, by_aiokafka, by_kcat])
def test_the_first_event_at_or_after_a_time(ask: Ask, codec: Codec, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [Message(b"k", b"v%d" % n, (), BASE + n * STEP) for n in range(COUNT)]
    Confluent().produce(running.address, topic, sent, Sending(codec=codec))
    for timestamp, expected in (
        (0, 0),
        (BASE, 0),
        (BASE + 1, 1),
        (BASE + 20 * STEP, 20),
        (BASE + 20 * STEP + 1, 21),
        (BASE + (COUNT - 1) * STEP, COUNT - 1),
    ):
        assert ask(running.address, topic, timestamp) == expected, f"{timestamp - BASE} ms after the first"
    after = ask(running.address, topic, BASE + COUNT * STEP)
    assert after in (-1, COUNT), "nothing is that late"  # kcat and librdkafka give the end, the others -1


def test_the_latest_timestamp_is_not_the_latest_event(admin: Admin, running: Server, new_topic: NewTopic) -> None:
    """KIP-734: ListOffsets with -3, and with earliest and latest beside it."""
    topic = new_topic()
    for timestamp in (5, 9, 7):
        Confluent().produce(running.address, topic, [Message(b"k", b"v", (), BASE + timestamp)], Sending())
    assert admin.offsets(topic, 0, OffsetSpec.max_timestamp()) == 1
    assert admin.offsets(topic, 0, OffsetSpec.earliest()) == 0
    assert admin.offsets(topic, 0, OffsetSpec.latest()) == 3
    assert admin.offsets(topic, 0, OffsetSpec.for_timestamp(BASE + 6)) == 1


def test_a_position_out_of_range_is_reset_or_reported(admin: Admin, running: Server, new_topic: NewTopic) -> None:
    topic = new_topic()
    Confluent().produce(running.address, topic, [Message(b"k", b"%d" % n) for n in range(10)], Sending())
    assert admin.delete_records(topic, 0, 4) == 4
    for reset, start, expected in (
        ("earliest", 2, (4, b"4")),
        ("earliest", 100, (4, b"4")),
        ("error", 2, "_AUTO_OFFSET_RESET"),
    ):
        config = {"bootstrap.servers": running.address, "group.id": "unused", "auto.offset.reset": reset}
        consumer = Consumer(config)
        consumer.assign([TopicPartition(topic, 0, start)])
        found = consumer.poll(PATIENCE)
        assert found is not None
        error = found.error()
        assert ((found.offset(), found.value()) if error is None else error.name()) == expected
        consumer.close()
