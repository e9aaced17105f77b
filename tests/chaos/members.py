"""Members of groups that read everything together: a native group in the order of keys, and Kafka's two kinds of
groups.

A member leaves and joins again all the time. Whichever broker coordinates the group then must know all that its members
were told before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from krappy import blocking
from krappy.errors import KrappyError, LeaseLost
from krappy.types import Event
from tests.chaos.groups import Delivery, GroupHistory
from tests.chaos.writers import QUIET, TOLD
from tests.cluster.consumers import close

SESSION_SECONDS = 4.0, 20.0
LEASE_MS = 5_000
DELIVERIES = 100_000  # so many that no event is dead-lettered, although members come and go and brokers die
WAIT_SECONDS = 10.0
# librdkafka sends no request again earlier than this: it gives up a connection if a heartbeat is late by 1 s.
AGAIN_SECONDS = 0.9


class Member:
    """A member that runs in a thread of its own, until `stop`."""

    seconds = SESSION_SECONDS

    def __init__(self, history: GroupHistory, topic: str, random: Random) -> None:
        self.history, self._topic, self._random = history, topic, random
        self.troubles: list[str] = []
        self.left = 0  # consumers that did not close
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member of {history.group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        """Waits until the member has ended. Raises AssertionError if it does not end."""
        self._thread.join(8 * WAIT_SECONDS)
        assert not self._thread.is_alive(), f"a {self._thread.name} does not end"

    def _run(self) -> None:
        while not self._stopped.is_set():
            until = time.monotonic() + self._random.uniform(*self.seconds)
            try:
                self._session(self.history.begin(), until)
            except (KafkaException, KrappyError, OSError, EOFError) as error:
                self.troubles.append(str(error))
                self._stopped.wait(0.3)

    def _over(self, until: float) -> bool:
        return self._stopped.is_set() or time.monotonic() > until

    def _session(self, number: int, until: float) -> None:
        """One session, from joining until leaving. `number`: its number in the history. Raises KafkaException,
        KrappyError, OSError, EOFError."""
        raise NotImplementedError


class NativeMember(Member):
    def __init__(self, addresses: str, *more: Any) -> None:
        super().__init__(*more)
        self._addresses = addresses

    def _session(self, number: int, until: float) -> None:
        with (
            blocking.connect(self._addresses, timeout=WAIT_SECONDS) as client,
            client.consumer(
                self._topic, group=self.history.group, order="key", lease_ms=LEASE_MS, max_deliveries=DELIVERIES
            ) as consumer,
        ):
            while not self._over(until):
                events = consumer.poll(0.5)
                self.history.deliver([Delivery(number, each.partition, each.offset, each.key) for each in events])
                if events and self._random.random() < 0.05:
                    consumer.nack(events)
                elif events:
                    self._acknowledge(consumer, events)

    def _acknowledge(self, consumer: blocking.Consumer, events: Sequence[Event]) -> None:
        try:
            consumer.ack(events, wait=True)
        except LeaseLost:  # some leases are lost, and the error does not say which
            return
        self.history.settle((each.partition, each.offset) for each in events)


class KafkaMember(Member):
    """`protocol`: classic, or consumer (KIP-848).

    It commits asynchronously, because a synchronous commit of librdkafka has no timeout. It has only one commit under
    way at a time, because librdkafka sends a failed commit again even if a later one is already stored."""

    def __init__(self, bootstrap: str, protocol: str, *more: Any) -> None:
        super().__init__(*more)
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap, **QUIET, **TOLD}
        self._settings |= {"group.id": self.history.group, "group.protocol": protocol}
        self._settings |= {"enable.auto.commit": "false", "auto.offset.reset": "error"}
        self._settings |= {"isolation.level": "read_committed"}
        self._incremental = protocol == "consumer"
        if not self._incremental:
            self._settings |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}

    def _session(self, number: int, until: float) -> None:
        refused: list[KafkaException] = []
        due: dict[int, int] = {}  # by partition, the offset that is to be committed
        asked: list[float] = []  # when the commit was sent that is not answered yet

        def committed(error: KafkaError | None, told: list[TopicPartition]) -> None:
            if time.monotonic() - asked.pop() > AGAIN_SECONDS:
                self.history.doubt({each.partition: each.offset for each in told})
            if error is None:
                self.history.commit({each.partition: each.offset for each in told if each.error is None})

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            due.clear()

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            due.clear()
            try:
                found = self._positions(consumer, partitions)
            except KafkaException as error:  # a callback can't raise it
                refused.append(error)
                return
            (consumer.incremental_assign if self._incremental else consumer.assign)(found)

        named = {"client.id": f"{self.history.group}-{number}", "on_commit": committed}
        consumer = Consumer({**self._settings, **named})
        try:
            consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked)
            while not (self._over(until) or refused):
                messages = [each for each in consumer.consume(200, 0.3) if each.error() is None]
                self.history.deliver([Delivery(number, each.partition(), each.offset(), None) for each in messages])
                due |= {each.partition(): each.offset() + 1 for each in messages}
                if due and not asked:
                    asked.append(time.monotonic())
                    consumer.commit(offsets=[TopicPartition(self._topic, index, end) for index, end in due.items()])
                    due.clear()
            if refused:
                raise refused[0]
        finally:
            self.left += not close(consumer)

    def _positions(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Asks for the group's positions in these partitions. Raises KafkaException."""
        asked = time.monotonic()
        found: list[TopicPartition] = consumer.committed(partitions, WAIT_SECONDS)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
            each.offset = max(0, each.offset)
            self.history.resume(each.partition, each.offset, asked)
        return found
