"""librdkafka's consumers in clusters whose brokers come and go."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer

CLOSE_SECONDS = 20.0


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
