"""What clients did and were told, as plain values. The checker judges them; the workload writes them down.

An event's value is `WRITER:NUMBER`, so that every event of a log tells who sent it. Sometimes a writer has to begin
anew: an idempotent one after a fatal error, for example. Then it goes on under a new name."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What a producer was told about one event."""

    UNKNOWN = "unknown"  # no answer, or an error after which the event may be in the log
    ACKED = "acknowledged"
    ABORTED = "aborted"  # its transaction was aborted, or the event was surely not written


@dataclass(slots=True, eq=False)
class Sent:
    """One event that was given to a producer. `offset`: −1 unless it was acknowledged with one."""

    writer: str
    number: int
    partition: int
    fate: Fate = Fate.UNKNOWN
    offset: int = -1

    @property
    def value(self) -> bytes:
        return f"{self.writer}:{self.number}".encode()


class Seen(NamedTuple):
    """One event as a reader got it."""

    offset: int
    value: bytes


@dataclass(slots=True)
class Reading:
    """What one reader got, by partition, in the order in which it came. `finished`: by partition, the offset up to
    which the reader says that it has read everything. `errors`: the errors that ended the reader or moved its position.
    """

    reader: str
    seen: dict[int, list[Seen]] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def note(self, partition: int, offset: int, value: bytes) -> None:
        self.seen.setdefault(partition, []).append(Seen(offset, value))


class History:
    """The events of one topic. Several threads may write to it. `once`: the writers whose events must be in the log
    only once, and in the order in which they were sent."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.once: set[str] = set()
        self.readings: list[Reading] = []
        self.acked = 0
        self._lock = threading.Lock()

    def send(self, writer: str, number: int, partition: int) -> Sent:
        event = Sent(writer, number, partition)
        with self._lock:
            self.sent[event.value] = event
        return event

    def ack(self, event: Sent, offset: int) -> None:
        event.offset, event.fate = offset, Fate.ACKED
        with self._lock:
            self.acked += 1

    def settle(self, events: Iterable[Sent], fate: Fate) -> None:
        """Notes for a transaction's events how it ended. Their offsets stay as they are."""
        for event in events:
            event.fate = fate

    def reading(self, reader: str) -> Reading:
        made = Reading(reader)
        with self._lock:
            self.readings.append(made)
        return made


class Outcome(Enum):
    """The outcome of an operation on a register."""

    OK = "ok"
    MISMATCH = "mismatch"  # compare-and-set found another value
    UNKNOWN = "unknown"  # it may have been done, or may be done at any later time


@dataclass(slots=True, eq=False)
class Operation:
    """One operation on a register. A register is a key of a table. Times: ns of one monotonic clock. A value of ""
    means that the key is absent.

    `kind`: read (its `value` is what was read), write, or cas (writes `value` if the register has `expected`).
    """

    client: int
    key: str
    kind: str
    called: int
    value: str = ""
    expected: str = ""
    returned: int = 0
    outcome: Outcome = Outcome.UNKNOWN

    def as_json(self) -> dict[str, object]:
        names = ("client", "key", "kind", "called", "value", "expected", "returned")
        return {name: getattr(self, name) for name in names} | {"outcome": self.outcome.value}
