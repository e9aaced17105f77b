"""Orders, and a program that carries them out in transactions (tests/cluster/transfers.py).

Each order must be carried out once, with both its sides or none."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos.checker import Violation, shortened
from tests.chaos.world import World
from tests.chaos.writers import QUIET, TOLD
from tests.cluster.transfers import ORDERS, PARTITIONS, Mover, read_moves

RATE = 4.0  # orders a second


class Transfers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._placed: set[tuple[int, int]] = set()  # the acknowledged orders: (number, amount)
        self.mover = Mover(world.kafka, "mover", {"client.id": "mover", **TOLD})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._place, name="orders", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.mover.start()

    def stop(self) -> None:
        """No more orders are placed. Raises AssertionError if the thread does not end."""
        self._stopped.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the orders do not end"

    def finish(self, patience: Callable[[], Callable[[], bool]]) -> list[Violation]:
        """Ends the mover once all orders are carried out. `patience` makes a function that tells when the mover has had
        enough time for its next transaction. If an order is not carried out by then, that is a violation."""
        wrong = ["it can't be told which orders are carried out"]
        done, is_over = self.mover.done, patience()
        while wrong and not is_over():
            if self.mover.done > done:
                done, is_over = self.mover.done, patience()
            try:
                wrong = self._judge()
            except (AssertionError, KafkaException) as error:
                wrong = [str(error)]
            time.sleep(0.2)
        try:
            self.mover.stop()
        except AssertionError as error:
            wrong.append(str(error))
        wrong = wrong or self._judge()
        return shortened([Violation("transfer", text) for text in wrong])

    def _judge(self) -> list[str]:
        """Compares the accounts with the orders that are in the log, because librdkafka may place an order twice
        (checker.py)."""
        orders, moves = read_moves(self._world.kafka, ORDERS), read_moves(self._world.kafka)
        found = [f"lost: order {order}" for order in sorted(self._placed - orders.keys())]
        wanted = Counter({(number, sign * amount): n for (number, amount), n in orders.items() for sign in (-1, 1)})
        found += [f"{count} times too few: {move}" for move, count in sorted((wanted - moves).items())]
        found += [f"{count} times too often: {move}" for move, count in sorted((moves - wanted).items())]
        return found

    def _place(self) -> None:
        settings = {"bootstrap.servers": self._world.kafka, "enable.idempotence": True, "linger.ms": 5, **QUIET}
        number = 0
        while not self._stopped.is_set():
            producer = Producer({**settings, "delivery.timeout.ms": 120_000})
            fatal: list[KafkaError] = []

            def told(error: KafkaError | None, order: tuple[int, int], fatal: list[KafkaError] = fatal) -> None:
                if error is None:
                    self._placed.add(order)
                elif error.fatal():
                    fatal.append(error)

            while not (self._stopped.is_set() or fatal):
                order = number, 1 + number % 7
                producer.produce(
                    ORDERS,
                    json.dumps(order),
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, _, order=order: told(error, order),
                )
                number += 1
                producer.poll(0)
                time.sleep(1 / RATE)
            producer.flush(60)
