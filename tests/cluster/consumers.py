"""librdkafka's consumers in clusters whose brokers come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.process import PATIENCE

CLOSE_SECONDS = 20.0
AWAY = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
)


def close(consumer: Consumer) -> bool:
    """Closes it; returns whether that ended in time. One that does not end is left alone, as long as the process lives.

    Two threads of librdkafka (2.16, its issue 5476) may wait for each other for ever: if a broker is not in the
    metadata any more while the answer to an OffsetForLeaderEpoch that was sent to it is awaited. Such a consumer gets
    nothing more, and can't be closed.
    """
    ended = threading.Event()

    def work() -> None:
        consumer.close()
        ended.set()

    threading.Thread(target=work, name="closing", daemon=True).start()
    return ended.wait(CLOSE_SECONDS)


def commit(consumer: Consumer, at: Sequence[TopicPartition] | None = None) -> None:
    """As an application does: it tries again where the coordinator is not there yet, or waits for a replica that is
    away. librdkafka leaves that to it. `at`: by default where the consumer is."""
    end = time.monotonic() + PATIENCE
    what = {} if at is None else {"offsets": list(at)}
    while True:
        try:
            found = consumer.commit(**what, asynchronous=False)
            assert all(each.error is None for each in found or ())
            return
        except KafkaException as error:
            if error.args[0].code() not in AWAY or time.monotonic() > end:
                raise
            time.sleep(0.1)


def ends(consumer: Consumer, topic: str, index: int) -> tuple[int, int]:
    """Where a partition begins and ends, as its leader tells once it is sure. librdkafka does not ask again by itself
    when another broker leads since a moment ago."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, index), 10)
            return first, end
        except KafkaException:
            assert time.monotonic() < patience, f"no leader tells the ends of {topic}-{index}"
            time.sleep(0.1)
