"""Clients that write numbered events, each in a thread of its own: librdkafka's producers and the native one."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from krappy import blocking
from krappy.clients.sync.producer import TopicProducer
from krappy.errors import KrappyError
from krappy.types import Receipt
from tests.chaos.histories import Fate, History, Sent

FLUSH_SECONDS = 40.0
TOLD = {"log_level": 7, "debug": "cgrp,fetch,metadata,protocol"}  # logs that explain why a consumer stands still
QUIET = {"log_level": 0, "socket.timeout.ms": 5000, "reconnect.backoff.max.ms": 1000}


class Writer:
    """Writes to all partitions in turn until `stop`. In the history its name is `NAME.N`: it has begun for the Nth
    time."""

    def __init__(self, name: str, history: History, topic: str, partitions: int, rate: float, *, once: bool) -> None:
        self.name, self._history, self._topic, self._partitions = name, history, topic, partitions
        self._pause, self._once = 1 / rate, once
        self.begun = 0  # how often it began
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.troubles: list[str] = []  # why it began anew
        self.last_ack = time.monotonic()
        self.last_acks = dict.fromkeys(range(partitions), self.last_ack)  # by partition
        self.longest_gap = 0.0  # seconds without an ack

    def start(self) -> None:
        self.last_ack = time.monotonic()
        self._thread.start()

    def waiting(self, since: float) -> list[int]:
        """The partitions in which nothing was acknowledged since then. A producer may be stuck in some partitions
        only."""
        return [partition for partition, at in self.last_acks.items() if at <= since]

    def state(self) -> str:
        """What it knows about why nothing is acknowledged."""
        return ""

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        """Waits until the writer has ended. Raises AssertionError if it does not end."""
        self._thread.join(4 * FLUSH_SECONDS)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.begun += 1
            writer = f"{self.name}.{self.begun}"
            if self._once:
                self._history.once.add(writer)
            try:
                self._write(writer)
            except (
                KafkaException,
                KrappyError,
                BufferError,
                OSError,
                SystemError,
            ) as error:  # SystemError: a bug of confluent_kafka
                self.troubles.append(f"{writer}: {error}")
                self._stopped.wait(0.5)

    def _write(self, writer: str) -> None:
        """Writes until it is stopped. Any error that it raises makes the writer begin anew under another name."""
        raise NotImplementedError

    def _acked(self, event: Sent, offset: int) -> None:
        now = time.monotonic()
        self.longest_gap = max(self.longest_gap, now - self.last_ack)
        self.last_ack = self.last_acks[event.partition] = now
        self._history.ack(event, offset)


class RdkafkaWriter(Writer):
    def __init__(self, name: str, bootstrap: str, *more: Any, idempotent: bool, log: Path) -> None:
        """`log`: a file for librdkafka's log of its idempotence."""
        super().__init__(name, *more, once=idempotent)
        self._logger = logging.Logger(name)
        handler = logging.FileHandler(log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._logger.addHandler(handler)
        self._settings = {"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "acks": "all", **QUIET}
        self._settings |= {"linger.ms": 5, "delivery.timeout.ms": 300_000, "request.timeout.ms": 10_000}
        self._settings |= {"log_level": 7, "debug": "eos", "statistics.interval.ms": 5000}
        self._broken: list[Producer] = []
        self._statistics = ""  # librdkafka's latest, as JSON

    def state(self) -> str:
        told = json.loads(self._statistics or "{}")
        brokers = {name: (each["state"], each["waitresp_cnt"]) for name, each in told.get("brokers", {}).items()}
        partitions = told.get("topics", {}).get(self._topic, {}).get("partitions", {})
        waiting = {name: (each["leader"], each["msgq_cnt"], each["xmit_msgq_cnt"]) for name, each in partitions.items()}
        return f"brokers' states and open requests {brokers}, partitions' leaders and waiting events {waiting}"

    def _write(self, writer: str) -> None:
        fatal: list[KafkaError] = []

        def on_error(error: KafkaError) -> None:
            if error.fatal():
                fatal.append(error)

        def on_statistics(text: str) -> None:
            self._statistics = text

        told = {"error_cb": on_error, "stats_cb": on_statistics, "logger": self._logger}
        producer = Producer({**self._settings, **told})
        number = 0
        try:
            while not self._stopped.is_set() and not fatal:
                with contextlib.suppress(BufferError):  # its queue is full, because a partition has no leader
                    event = self._history.send(writer, number, number % self._partitions)
                    number += 1
                    done = lambda error, message, event=event: self._told(error, message, event)  # noqa: E731
                    producer.produce(self._topic, event.value, b"%d" % (number % 50), event.partition, on_delivery=done)
                producer.poll(0)
                time.sleep(self._pause)
        except SystemError:
            self._broken.append(producer)  # after this error of confluent_kafka it may neither be flushed nor freed
            raise
        producer.flush(FLUSH_SECONDS)
        if fatal:
            raise KafkaException(fatal[0])

    def _told(self, error: KafkaError | None, message: Any, event: Sent) -> None:
        if error is None:
            self._acked(event, max(-1, message.offset()))  # the answer to a duplicate has no offset


class NativeWriter(Writer):
    def __init__(self, name: str, addresses: str, *more: Any) -> None:
        super().__init__(name, *more, once=True)
        self._addresses = addresses
        self._open = threading.Semaphore(1000)  # events that wait for their answers
        self._producer: TopicProducer | None = None

    def state(self) -> str:
        if self._producer is None:
            return ""
        core = self._producer._core
        lanes = []
        for lane in core._accumulator._lanes.values():
            flags = [name for name in ("halted", "renew", "broken", "known", "hole") if getattr(lane, name)]
            back = [each.back for each in lane.sent]
            lanes.append(f"{lane.partition}: {len(lane.ready)} ready, sent and back: {back}, {flags}")
        routes = {} if core._routes is None else core._routes._routes
        ways = {at: (str(way.link.address), way.handle, way.lives, way.link.trouble) for at, way in routes.items()}
        left = set() if core._routes is None else core._routes._left
        found = (core.trouble, "looks for ways" if core._finding else "", lanes, ways, left, core._router.known)
        return "; ".join(str(each) for each in found)

    def _write(self, writer: str) -> None:
        with (
            blocking.connect(self._addresses, timeout=20) as client,
            client.producer(self._topic, timeout=60) as producer,  # on exit it raises errors that nobody has handled
        ):
            self._producer = producer
            number = 0
            while not self._stopped.is_set():
                if self._open.acquire(timeout=0.5):
                    event = self._history.send(writer, number, number % self._partitions)
                    number += 1
                    future = producer.send(event.value, key=b"%d" % (number % 50), partition=event.partition)
                    future.add_done_callback(lambda done, event=event: self._told(done, event))  # type: ignore[misc]
                time.sleep(self._pause)

    def _told(self, done: Future[Receipt], event: Sent) -> None:
        self._open.release()
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._acked(event, done.result().offset)
        elif len(self.troubles) < 1000:
            self.troubles.append(f"{event.writer}: {error}")


class TransactionalWriter(Writer):
    """It writes transactions of some events, in one partition, and aborts every third one. After trouble it goes on in
    another partition."""

    def __init__(self, name: str, bootstrap: str, *more: Any, random: Random) -> None:
        super().__init__(name, *more, once=True)
        self._random = random
        self._settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "transaction.timeout.ms": 10_000, **QUIET}
        self.ended = {Fate.ACKED: 0, Fate.ABORTED: 0, Fate.UNKNOWN: 0}

    def _write(self, writer: str) -> None:
        id = f"{self.name}-{self._random.randrange(6)}"
        producer = Producer({**self._settings, "transactional.id": id})
        producer.init_transactions(10)
        partition, number = self._random.randrange(self._partitions), 0
        while not self._stopped.is_set():
            producer.begin_transaction()
            events = []
            for _ in range(self._random.randint(1, 8)):
                events.append(self._history.send(writer, number, partition))
                number += 1
                told = lambda error, message, event=events[-1]: self._told(error, message, event)  # noqa: E731
                producer.produce(self._topic, events[-1].value, partition=partition, on_delivery=told)
                producer.poll(0)
                time.sleep(self._pause)
            aborts = self._random.random() < 1 / 3
            fate = Fate.UNKNOWN
            try:
                if aborts:
                    producer.abort_transaction(10)
                    fate = Fate.ABORTED
                else:
                    producer.commit_transaction(10)
                    fate = Fate.ACKED
            finally:
                self._history.settle(events, fate)
                self.ended[fate] += 1

    def _told(self, error: KafkaError | None, message: Any, event: Sent) -> None:
        if error is None:
            event.offset = max(-1, message.offset())
