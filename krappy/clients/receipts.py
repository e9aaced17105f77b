"""The outcomes of records sent: each batch carries tickets, and a ticket completes the delivery that its sender has."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from krappy.clients.runtime import Promise
from krappy.errors import KrappyError
from krappy.types import Receipt

if TYPE_CHECKING:
    from krappy.clients.lane import Settled


class Stored(NamedTuple):
    """A run of rows with consecutive offsets: row `rows[i]` has offset `offset + i`.

    `append_time`: the timestamp (ms) that the broker gave them all (message.timestamp.type=LogAppendTime), else None.
    """

    topic: str
    partition: int
    offset: int
    rows: Sequence[int]
    append_time: int | None = None

    @property
    def last_offset(self) -> int:
        return self.offset + len(self.rows) - 1


class One:
    """The ticket of a single record."""

    __slots__ = ("_delivery", "_topic")

    def __init__(self, topic: str, delivery: Promise[Receipt]) -> None:
        self._topic = topic
        self._delivery = delivery

    def stored(self, settled: Settled, first: int, count: int) -> None:
        batch, time = settled.batch, settled.append_time
        if time is None:
            time = batch.timestamps[first]
        self._delivery.set_result(Receipt(self._topic, batch.partition, settled.offset + first, time))

    def failed(self, error: KrappyError, count: int) -> None:
        self._delivery.set_exception(copy(error))


class Many:
    """Shared by the tickets of one `add_columns`. When the last row is settled, the delivery gets the runs
    (`list[Stored]`), or the first error, which has them as `.stored`."""

    def __init__(self, topic: str, count: int, delivery: Promise[Any]) -> None:
        self.topic = topic
        self.runs: list[Stored] = []
        self._left = count
        self._error: KrappyError | None = None
        self._delivery = delivery
        if not count:
            delivery.set_result([])

    def settled(self, count: int, error: KrappyError | None) -> None:
        """Takes the outcome of `count` rows."""
        self._error = self._error or error
        self._left -= count
        if self._left:
            return
        self.runs.sort(key=lambda run: (run.partition, run.offset))
        if self._error is None:
            self._delivery.set_result(self.runs)
        else:
            self._delivery.set_exception(copy(self._error, stored=self.runs))


class ReceiptRows:
    """The ticket of those rows of an `add_columns` that go to one partition."""

    __slots__ = ("_many", "_rows")

    def __init__(self, many: Many, rows: Sequence[int]) -> None:
        self._many = many
        self._rows = rows

    def stored(self, settled: Settled, first: int, count: int) -> None:
        batch = settled.batch
        rows = self._rows[batch.row + first : batch.row + first + count]
        self._many.runs.append(
            Stored(self._many.topic, batch.partition, settled.offset + first, rows, settled.append_time)
        )
        self._many.settled(count, None)

    def failed(self, error: KrappyError, count: int) -> None:
        self._many.settled(count, error)


class Fence:
    """The ticket of a flush. Its delivery gets None when everything sent before is stored or has failed."""

    def __init__(self, delivery: Promise[None]) -> None:
        self._delivery = delivery
        self.left = 1  # for the flush itself, until it knows the number of batches

    def stored(self, settled: Settled, first: int, count: int) -> None:
        self.passed()

    def failed(self, error: KrappyError, count: int) -> None:
        self.passed()

    def passed(self) -> None:
        self.left -= 1
        if not self.left:
            self._delivery.set_result(None)


class Looked(Protocol):
    """A delivery. `looked`: whether the caller has seen its error."""

    looked: bool


class Failures:
    """Remembers the last 1,000 deliveries that failed, so that `flush` can raise an error that nobody has looked at."""

    def __init__(self) -> None:
        self._failed: deque[tuple[Looked, BaseException]] = deque(maxlen=1000)

    def note(self, delivery: Looked, error: BaseException) -> None:
        """Remembers a delivery that failed."""
        self._failed.append((delivery, error))

    def check(self) -> None:
        """Raises the first error that nobody has looked at, then forgets all errors so far."""
        failed, self._failed = self._failed, deque(maxlen=1000)
        for delivery, error in failed:
            if not delivery.looked:
                raise error


def copy(error: KrappyError, **details: Any) -> KrappyError:
    """The same error as a new object, because each caller that it is raised in adds its own traceback."""
    return type(error)(error.text, **{**error.details, **details})
