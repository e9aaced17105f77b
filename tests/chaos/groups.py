"""What a group's members were told, and its check: no settled event comes again, no position goes back, every event is
delivered, and a native group keeps the order of each key's events.

Pure but for the clock. A delivery belongs to a session. A session lasts from a member's joining until its leaving.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.chaos.checker import Violation, shortened
from tests.chaos.histories import Fate, Sent


class Delivery(NamedTuple):
    session: int
    partition: int
    offset: int
    key: bytes | None


class Resumption(NamedTuple):
    """A member asked for its group's position at `asked`, and was told `offset`."""

    partition: int
    offset: int
    asked: float


class GroupHistory:
    """Several threads may write to it. Times: seconds of one monotonic clock."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.began: dict[int, float] = {}  # by session
        self.deliveries: list[Delivery] = []  # in the order in which members got them
        self.settled: dict[tuple[int, int], float] = {}  # (partition, offset) -> when the broker said: ack is durable
        self.resumed: list[Resumption] = []
        self.committed: list[tuple[int, int, float]] = []  # partition, offset, when the answer came
        self.sent_again: set[tuple[int, int]] = set()  # (partition, offset) of commits whose copies may be stored late
        self._lock = threading.Lock()

    def begin(self) -> int:
        with self._lock:
            number = len(self.began)
            self.began[number] = time.monotonic()
        return number

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            self.deliveries += deliveries

    def settle(self, events: Iterable[tuple[int, int]]) -> None:
        at = time.monotonic()
        with self._lock:
            for each in events:
                self.settled.setdefault(each, at)

    def commit(self, offsets: Mapping[int, int]) -> None:
        at = time.monotonic()
        with self._lock:
            self.committed += [(partition, offset, at) for partition, offset in offsets.items()]

    def doubt(self, offsets: Mapping[int, int]) -> None:
        """Notes that these commits may have been sent more than once. One copy may still be on its way over a
        connection that the client has given up. The broker may store it after later commits, because nothing in Kafka's
        protocol says that it is old."""
        with self._lock:
            self.sent_again.update(offsets.items())

    def resume(self, partition: int, offset: int, asked: float) -> None:
        with self._lock:
            self.resumed.append(Resumption(partition, offset, asked))

    def missing(self, sent: Iterable[Sent]) -> list[Sent]:
        """The acknowledged events that no member got. Events whose offset is unknown are left out."""
        with self._lock:
            got = {(each.partition, each.offset) for each in self.deliveries}
        return [e for e in sent if e.fate is Fate.ACKED and e.offset >= 0 and (e.partition, e.offset) not in got]


def check_group(history: GroupHistory, sent: Iterable[Sent]) -> list[Violation]:
    """Everything that is wrong with what a group was told. `sent`: all events of its topic."""
    found = [*_again(history), *_order(history), *_back(history)]
    for event in history.missing(sent):
        found.append(Violation("unseen", f"group {history.group} did not get {event.value!r} at {event.offset}"))
    return shortened(found)


def _again(history: GroupHistory) -> Iterator[Violation]:
    for session, partition, offset, _ in history.deliveries:
        settled = history.settled.get((partition, offset))
        if settled is not None and settled < history.began[session]:
            where = f"offset {offset} of partition {partition}"
            yield Violation("again", f"group {history.group} got {where} in a session that began after its durable ack")


def _order(history: GroupHistory) -> Iterator[Violation]:
    """Checks that each event is first delivered after all earlier events of its key."""
    seen: set[tuple[int, int]] = set()
    last: dict[tuple[int, bytes], int] = {}
    for _, partition, offset, key in history.deliveries:
        if key is None or (partition, offset) in seen:
            continue
        seen.add((partition, offset))
        before = last.get((partition, key), -1)
        if offset < before:
            text = f"key {key!r} of partition {partition}: offset {offset} was first delivered after {before}"
            yield Violation("reordered", f"group {history.group}, {text}")
        last[partition, key] = max(before, offset)


def _back(history: GroupHistory) -> Iterator[Violation]:
    since: dict[int, float] = {}  # by partition: commits before this do not count any more
    for partition, offset, asked in sorted(history.resumed, key=lambda each: each.asked):
        began = since.get(partition, 0.0)
        known = max((at for of, at, told in history.committed if of == partition and began < told < asked), default=0)
        if offset >= known:
            continue
        if (partition, offset) in history.sent_again:
            since[partition] = asked  # the group goes on from the old position
        else:
            text = f"partition {partition} resumed at {offset} although {known} had been committed"
            yield Violation("position", f"group {history.group}: {text}")
