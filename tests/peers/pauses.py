"""A writer that notes for how long the events of each partition waited for their acknowledgement."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Producer

EVERY_S = 0.005
GOES_ON_S = 0.5  # a partition whose last acknowledgement is younger than this is written to


class Pauses:
    """Writes an event to each partition all the time. A context manager."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )
        self._last = [0.0] * partitions  # when an event was acknowledged last
        self._longest = [0.0] * partitions
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def begin(self) -> None:
        """Forgets the pauses so far."""
        now = time.monotonic()
        self._last = [now] * len(self._last)
        self._longest = [0.0] * len(self._last)

    def until_over(self, quiet_s: float, most_s: float) -> None:
        """Returns once no event of any partition has waited longer than `GOES_ON_S` for so long, or after `most_s`."""
        now = since = time.monotonic()
        end = now + most_s
        while now < min(since + quiet_s, end):
            time.sleep(EVERY_S)
            now = time.monotonic()
            if now - min(self._last) > GOES_ON_S:
                since = now

    def longest(self) -> float:
        """The longest pause in seconds, of any partition since `begin`. A pause that still lasts counts up to now.
        Raises RuntimeError if an event failed."""
        if self.failed:
            raise RuntimeError(f"an event was not written: {self.failed[0]}")
        now = time.monotonic()
        return max(max(self._longest), max(now - each for each in self._last))

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, now = message.partition(), time.monotonic()
        self._longest[partition] = max(self._longest[partition], now - self._last[partition])
        self._last[partition] = now

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition in range(len(self._last)):
                try:
                    self._producer.produce(self._topic, b"x", partition=partition, on_delivery=self._told)
                except BufferError:  # a partition waits for its leader
                    break
            self._producer.poll(EVERY_S)
