"""Clients that read, write and compare-and-set a few keys of a table. Their history is judged for linearizability."""

from __future__ import annotations

import threading
import time
from random import Random

from krappy import blocking
from krappy.errors import KrappyError, OffsetMismatch
from krappy.types import Entry
from tests.chaos.histories import Operation, Outcome

TIMEOUT = 8.0  # seconds for one operation
PAUSE = 0.02


class RegisterClient:
    """One thread, one operation at a time. After an operation whose outcome is unknown it goes on as another client in
    the history, because that operation may still be under way. `name`: its number.

    `known`: by key, the entry that any client read last; all clients share it. A client that still asks an old leader
    may therefore expect an entry that only the new leader has shown."""

    def __init__(
        self,
        name: int,
        addresses: str,
        topic: str,
        keys: list[str],
        random: Random,
        known: dict[str, Entry | None],
    ) -> None:
        self.operations: list[Operation] = []
        self.troubles: list[str] = []
        self.name = f"register client {name}"
        self._client, self._addresses, self._topic, self._keys = name, addresses, topic, keys
        self._random = random
        self._known = known
        self._writes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        self._thread.join(6 * TIMEOUT)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with blocking.connect(self._addresses, timeout=TIMEOUT) as client:
                    table = client.table(self._topic)
                    while not self._stopped.is_set():
                        self._operate(table)
                        time.sleep(self._random.random() * 2 * PAUSE)
            except KrappyError as error:
                self.troubles.append(str(error))
                self._stopped.wait(0.3)

    def _operate(self, table: blocking.Table) -> None:
        """Does one operation. Raises KrappyError if its outcome is unknown; then the connection is made anew."""
        key = self._random.choice(self._keys)
        kind = self._random.choice(["read", "read", "cas", "write"])
        if kind == "cas" and key not in self._known:
            kind = "read"
        expected = self._known.get(key)
        operation = Operation(self._client, key, kind, time.monotonic_ns())
        try:
            if kind == "read":
                self._known[key] = entry = table.get(key)
                operation.value = _value(entry)
            else:
                self._writes += 1
                operation.value = f"{self._client}-{self._writes}"
                if kind == "write":
                    table.put(key, operation.value)
                else:
                    operation.expected = _value(expected)
                    table.put(key, operation.value, expect="absent" if expected is None else expected.offset)
            operation.outcome = Outcome.OK
        except OffsetMismatch:
            operation.outcome = Outcome.MISMATCH
        except KrappyError:
            if kind != "read":  # a read without an answer says nothing about the register
                self.operations.append(operation)
                self._client += 1000
            raise
        operation.returned = time.monotonic_ns()
        self.operations.append(operation)


def _value(entry: Entry | None) -> str:
    return "" if entry is None or entry.value is None else entry.value.decode()
