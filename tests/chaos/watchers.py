"""A client that watches a table, whatever happens to brokers. In the end it must have all that the table has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from krappy import blocking
from krappy.errors import KrappyError
from krappy.types import Entry
from tests.chaos.checker import Violation


class Watcher:
    """It runs in a thread of its own. After an error it watches anew, and keeps the entries that it has."""

    def __init__(self, addresses: str, topic: str) -> None:
        self._addresses, self._topic = addresses, topic
        self.has: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}  # (partition, key) -> (offset, value)
        self.back: list[str] = []  # a text for each older entry that came after a newer one
        self.begun = 0
        self.troubles: list[str] = []
        self._watch: blocking.Watch | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, is_over: Callable[[], bool]) -> list[Violation]:
        """Ends the watcher once it has what the table has. Entries that differ when `is_over()` are violations."""
        lacking = ["the table can't be read"]
        while lacking and not is_over():
            try:
                with blocking.connect(self._addresses, timeout=10) as client:
                    table = {(e.partition, e.key): (e.offset, e.value) for e in client.table(self._topic).scan()}
            except KrappyError as error:
                lacking = [f"the table can't be read: {error}"]
                continue
            has = {at: entry for at, entry in dict(self.has).items() if entry[1] is not None}
            lacking = [
                f"{at}: the table has {table.get(at)}, the watcher {has.get(at)}"
                for at in sorted(table.keys() | has.keys())
                if table.get(at) != has.get(at)
            ]
            time.sleep(0.2)
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join(30)
        return [Violation("watch", text) for text in [*self.back, *lacking]]

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.begun += 1
            try:
                with (
                    blocking.connect(self._addresses, timeout=20) as client,
                    client.table(self._topic).watch(tombstones=True) as self._watch,
                ):
                    for item in self._watch:
                        if isinstance(item, Entry):
                            self._note(item)
            except KrappyError as error:
                if not self._stopped.is_set():
                    self.troubles.append(str(error))
                    self._stopped.wait(0.3)

    def _note(self, entry: Entry) -> None:
        at = entry.partition, entry.key
        before, _ = self.has.get(at, (-1, None))
        if entry.offset < before:
            self.back.append(f"{at}: an entry of offset {entry.offset} came after that of {before}")
        self.has[at] = entry.offset, entry.value
