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
    """Closes a consumer; returns whether it was closed in time. If not, it is left alone as long as the process lives.

    Two threads of librdkafka (2.16, its issue 5476) may wait for each other for ever. This happens if a broker leaves
    the metadata while the consumer waits for its answer to an OffsetForLeaderEpoch. Such a consumer gets no more
    events, and can't be closed."""
    ended = threading.Event()

    def work() -> None:
        consumer.close()
        ended.set()

    threading.Thread(target=work, name="closing", daemon=True).start()
    return ended.wait(CLOSE_SECONDS)


def commit(consumer: Consumer, at: Sequence[TopicPartition] | None = None) -> None:
    """Commits as an application does: it tries again while there is no coordinator, or while the coordinator waits for
    a replica that is away. librdkafka leaves that to the application. `at`: by default the consumer's positions."""
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
    """Where a partition begins and ends, as its leader says once it is sure. librdkafka does not ask again by itself if
    another broker has just become the leader."""
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, index), 10)
            return first, end
        except KafkaException:
            assert time.monotonic() < patience, f"no leader tells the ends of {topic}-{index}"
            time.sleep(0.1)
