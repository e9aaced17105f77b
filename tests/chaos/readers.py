"""Clients that read everything from the beginning, each in a thread of its own: librdkafka's consumer and Krappy's."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from krappy import blocking
from krappy.errors import KrappyError
from tests.chaos.histories import History
from tests.chaos.writers import QUIET, TOLD
from tests.cluster.consumers import close

FINISH_SECONDS = 60.0
STANDS_SECONDS = 15.0


class Reader:
    """Reads until `finish`. The events that it got are in the history, in the reading with its name."""

    def __init__(self, name: str, history: History, topic: str, partitions: int) -> None:
        self.reading = history.reading(name)
        self.troubles: list[str] = []
        self.left = 0  # consumers that did not close
        self._topic, self._partitions = topic, partitions
        self._next = dict.fromkeys(range(partitions), 0)
        self._ends: Mapping[int, int] | None = None
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, ends: Mapping[int, int]) -> None:
        """Waits until it has read everything before these offsets, or until FINISH_SECONDS are over; then events that
        it has not read are violations."""
        self._until = time.monotonic() + FINISH_SECONDS
        self._ends = ends
        self._thread.join(2 * FINISH_SECONDS)
        self.reading.finished.update(ends)
        for partition, end in ends.items():
            if self._next[partition] < end:
                text = f"it stands at {self._next[partition]} of {end} in partition {partition}"
                self.reading.errors.append(f"{text} after {FINISH_SECONDS:.0f} s of peace; {self.troubles[-2:]}")

    @property
    def _over(self) -> bool:
        ends = self._ends
        if ends is None:
            return False
        return time.monotonic() > self._until or all(self._next[each] >= end for each, end in ends.items())

    def _note(self, partition: int, offset: int, value: bytes | None) -> None:
        self.reading.note(partition, offset, value or b"")
        self._next[partition] = offset + 1

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:  # it is reported at the end
            self.reading.errors.append(f"it ended: {error!r}")

    def _read(self) -> None:
        raise NotImplementedError


class RdkafkaReader(Reader):
    def __init__(self, name: str, bootstrap: str, history: History, topic: str, partitions: int) -> None:
        super().__init__(name, history, topic, partitions)
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            **QUIET,
            **TOLD,
        }
        self._settings |= {
            "client.id": "reader",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 200,
        }
        self._settings |= {"enable.partition.eof": True}  # a log may end in a transaction's marker

    def _read(self) -> None:
        """If a consumer stands still after the trouble and can't be closed, it has a deadlock
        (tests/cluster/consumers.py), and another consumer goes on where it stopped. If it can be closed, it had no
        reason to stand still: that is a violation."""
        while not self._over:
            consumer = Consumer(self._settings)
            consumer.assign([TopicPartition(self._topic, each, offset) for each, offset in self._next.items()])
            self._consume(consumer)
            stood = not self._over
            if not close(consumer):
                self.left += 1
            elif stood:
                self.reading.errors.append(f"it stood still for {STANDS_SECONDS:.0f} s of peace")

    def _consume(self, consumer: Consumer) -> None:
        """Reads until it has everything, or stands still."""
        before, since = dict(self._next), time.monotonic()
        while not self._over:
            if self._next != before or self._ends is None:
                before, since = dict(self._next), time.monotonic()
            elif time.monotonic() - since > STANDS_SECONDS:
                return
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    self._note(message.partition(), message.offset(), message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._next[message.partition()] = max(self._next[message.partition()], message.offset())
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.reading.errors.append(str(error))
                else:
                    self.troubles.append(str(error))


class NativeReader(Reader):
    def __init__(self, name: str, addresses: str, history: History, topic: str, partitions: int) -> None:
        super().__init__(name, history, topic, partitions)
        self._addresses = addresses

    def _read(self) -> None:
        while not self._over:
            try:
                self._consume()
            except KrappyError as error:
                self.troubles.append(str(error))
                time.sleep(0.5)

    def _consume(self) -> None:
        with blocking.connect(self._addresses, timeout=20) as client, client.consumer(self._topic) as consumer:
            for partition, offset in self._next.items():
                if offset:
                    consumer.seek(partition, offset)
            while not self._over:
                for event in consumer.poll(0.5):
                    self._note(event.partition, event.offset, event.value)
                for place, offset in consumer.positions.items():
                    self._next[place.partition] = max(self._next[place.partition], offset)
