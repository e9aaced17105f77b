"""A producer's batches that are not settled, and the queue of one partition's batches. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from krappy.errors import KrappyError, OffsetMismatch, RecordTooLarge
from krappy.records.batch import HEADER_SIZE
from krappy.types import Headers

MAX_SEQUENCE = 2**31 - 1
LONGEST_KEY = 100  # an error shows so many bytes of a key at most
RECORD_OVERHEAD = 24  # bytes that a record takes beside key, value and headers: an estimate, to fill batches
MOST_CONDITIONS = 500  # of a batch: the broker looks up all their keys in one go
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds before a refused batch is tried again


class Ticket(Protocol):
    """Is told what became of some records of a batch."""

    def stored(self, settled: Settled, first: int, count: int) -> None:
        """`count` records are stored, of which the first is number `first` (from 0) of the batch."""
        ...

    def failed(self, error: KrappyError, count: int) -> None: ...


@dataclass(slots=True, eq=False)
class LaneBatch:
    """A batch of one partition. `born`: when it was begun, by the client's clock. `expects`: for a batch of events with
    conditions, by the key of each in their order, the offset that the key must be at."""

    partition: int
    born: float
    expects: dict[bytes, int] | None = None
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: list[Headers] | None = None
    size: int = HEADER_SIZE
    row: int = 0  # of a batch cut from columns: the row that its first record was
    tickets: list[tuple[Ticket, int, int]] = field(default_factory=list)  # ticket, first record, count
    sequence: int = -1  # set when first sent; from then on the broker may have the batch
    data: bytes | None = None
    number: int = -1  # set with `sequence`: how many batches of the lane were sent before
    tries: int = 0
    back: bool = False  # refused, and to be sent again
    ahead: bool = False  # stands before a gap, so it is settled under the old producer id
    settled: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def may_take(self, key: bytes | None, expect: int | None) -> bool:
        """Whether this record may share the batch: with others that have no condition either, or with a few that have
        one, about other keys."""
        if self.expects is None or expect is None:
            return self.expects is None and expect is None
        return key not in self.expects and len(self.expects) < MOST_CONDITIONS

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        ticket: Ticket,
        expect: int | None = None,
    ) -> int:
        """Takes a record, and returns by how much the batch has grown."""
        size = record_size(key, value, headers)
        count, told = len(self.values), len(self.tickets)
        try:
            if headers and self.headers is None:
                self.headers = [()] * count
            if self.headers is not None:
                self.headers.append(headers)
            self.keys.append(key)
            self.values.append(value)
            self.timestamps.append(timestamp)
            self.tickets.append((ticket, count, 1))
            if self.expects is not None and key is not None and expect is not None:
                self.expects[key] = expect
            self.size += size
            return size
        except BaseException:  # a signal's: no record may get the key or the value of another
            columns: list[list[Any]] = [self.headers or [], self.keys, self.values, self.timestamps]
            for column in columns:
                del column[count:]
            del self.tickets[told:]
            if self.expects is not None and len(self.expects) > count and key is not None:
                del self.expects[key]
            raise

    def only(self, rows: Iterable[int]) -> LaneBatch:
        """A batch of only these records, as one that was never sent; without the tickets of a flush."""
        found = LaneBatch(self.partition, self.born, None if self.expects is None else {})
        expects = list((self.expects or {}).values())
        tickets = {first: ticket for ticket, first, count in self.tickets if count}
        for row in rows:
            headers = self.headers[row] if self.headers is not None else ()
            record = self.keys[row], self.values[row], headers, self.timestamps[row], tickets[row]
            found.add(*record, expects[row] if expects else None)
        return found


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About how many bytes a record takes in a batch."""
    size = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        size += sum(10 + 3 * len(name) + len(content or b"") for name, content in headers)
    return size


def mismatches(error: KrappyError, count: int) -> dict[int, OffsetMismatch]:
    """Which of a batch's `count` records the broker refused by their conditions, each with its own error; none if the
    error does not tell."""
    index, others = error.details.get("index"), error.details.get("others", ())
    if not isinstance(error, OffsetMismatch) or not isinstance(others, list | tuple):
        return {}
    found: dict[int, OffsetMismatch] = {}
    for row in ((index, error.text, error.details.get("current")), *others):
        match row:
            case (int(at), str(text), int() | None as current) if 0 <= at < count:
                found[at] = OffsetMismatch(text, current=current)
            case _:
                return {}
    return found


def too_large(error: KrappyError, topic: str, batch: LaneBatch) -> RecordTooLarge:
    """The broker's refusal of a batch, with the topic, the partition and the batch's largest event added."""
    sizes = [len(key or b"") + len(value or b"") for key, value in zip(batch.keys, batch.values, strict=True)]
    if batch.headers is not None:
        headers = [sum(len(value or b"") for _, value in some) for some in batch.headers]
        sizes = [size + more for size, more in zip(sizes, headers, strict=True)]
    row = sizes.index(max(sizes))
    key = batch.keys[row]
    named = "no key" if key is None else f"the key {key[:LONGEST_KEY]!r}{'…' if len(key) > LONGEST_KEY else ''}"
    text = f"{topic}-{batch.partition}: {error.text}; its largest event, of {sizes[row]} bytes, has {named}"
    return RecordTooLarge(text, **{**error.details, "topic": topic, "partition": batch.partition, "key": key})


class Settled(NamedTuple):
    """The outcome of a batch: an error, or the offset of its first record. `append_time`: the timestamp (ms) that the
    broker gave the events (LogAppendTime); None when they keep their own."""

    batch: LaneBatch
    offset: int = -1
    append_time: int | None = None
    error: KrappyError | None = None

    def tell(self) -> None:
        """Tells every ticket of the batch."""
        for ticket, first, count in self.batch.tickets:
            if self.error is None:
                ticket.stored(self, first, count)
            else:
                ticket.failed(self.error, count)


@dataclass(slots=True, eq=False)
class Lane:
    """The batches of one partition in order: one being filled, those ready to send, those sent and not settled.

    A lane uses the producer's id until a gap in its sequence numbers requires a new one (`renew`).
    """

    partition: int
    producer: tuple[int, int]  # id and epoch
    filling: LaneBatch | None = None
    ready: deque[LaneBatch] = field(default_factory=deque)
    sent: deque[LaneBatch] = field(default_factory=deque)
    sequence: int = 0
    count: int = 0  # batches that were given a sequence number
    known: bool = False  # the broker has stored a batch under the producer id
    halted: bool = False  # nothing is sent until every sent batch is answered
    hole: bool = False  # a batch before the next sequence number expired: it may or may not be stored
    renew: bool = False  # there is a gap for good: nothing behind it is sent before there is a new producer id
    not_before: float = 0.0
    pause: float = FIRST_PAUSE

    def close(self) -> None:
        """Makes the batch being filled ready to send."""
        filling, self.filling = self.filling, None
        if filling is not None:
            self.ready.append(filling)

    def may_send(self, max_in_flight: int) -> bool:
        """Whether the batches before the next one allow it to be sent.

        Counted from the oldest batch that is not settled, at most `max_in_flight` batches are sent, settled or not:
        the broker recognizes only so many batches that are sent again. Nothing is sent beside the first batch of a
        producer id. For the broker takes any sequence number of an id that it does not know. It may refuse the first
        batch because it does not lead the partition yet, and then take a later one.
        """
        following = self.ready[0] if self.ready else None
        if self.halted or (self.renew and not (following and following.ahead)):
            return False
        if not self.sent:
            return True
        if not self.known:
            return False
        number = self.count if following is None or following.number < 0 else following.number
        if number - self.sent[0].number >= max_in_flight:
            return False
        following = following or self.filling
        return self.sent[-1].expects is None and (following is None or following.expects is None)

    def send(self) -> LaneBatch:
        """Takes the next ready batch, counts it as sent and gives it a sequence number if it has none."""
        batch = self.ready.popleft()
        self.sent.append(batch)
        batch.tries += 1
        if batch.sequence < 0:
            batch.sequence = self.sequence
            batch.number = self.count
            self.count += 1
            self.sequence = (self.sequence + len(batch)) & MAX_SEQUENCE
        return batch

    def recall(self) -> None:
        """Makes all batches that were sent and are not settled ready to be sent again."""
        for batch in reversed(self.sent):
            batch.back = False
            self.ready.appendleft(batch)
        self.sent.clear()
        self.halted = False

    def break_at(self, position: int) -> None:
        """The batch at this position of `sent` will never be stored: those behind it need a new producer id."""
        for at, batch in enumerate(self.sent):
            batch.ahead = at < position and (batch.ahead or not self.renew)
        for batch in self.ready:
            batch.ahead = False
        self.renew = self.halted = True

    @property
    def broken(self) -> bool:
        """Whether a new producer id is needed now: all before the gap is settled and nothing is in flight."""
        return (
            self.renew
            and not any(batch.ahead or not batch.back for batch in self.sent)
            and not any(batch.ahead for batch in self.ready)
        )

    def hold(self, now: float) -> None:
        """Sends nothing for a while, longer each time."""
        self.not_before = now + self.pause
        self.pause = min(LONGEST_PAUSE, self.pause * 2)

    def moved(self) -> None:
        """A batch was stored: pauses begin short again."""
        self.not_before, self.pause = 0.0, FIRST_PAUSE
        self.hole, self.known = False, True

    def restart(self, producer: tuple[int, int]) -> None:
        """Sequence numbers begin anew, under another producer id."""
        self.producer = producer
        self.sequence = self.count = 0
        self.hole = self.renew = self.known = False
        for batch in self.batches():
            batch.sequence, batch.number, batch.data = -1, -1, None
            batch.tries, batch.ahead = 0, False

    def remove(self, batch: LaneBatch) -> None:
        if batch is self.filling:
            self.filling = None
        elif batch in self.sent:
            self.sent.remove(batch)
        else:
            self.ready.remove(batch)

    def batches(self) -> Iterator[LaneBatch]:
        yield from self.sent
        yield from self.ready
        if self.filling is not None:
            yield self.filling


def cut(ends: Sequence[int], first: int, room: int, overhead: int) -> int:
    """The row after the longest run of rows from `first` that fits in `room` bytes; at least one row.

    `ends[i]`: the bytes of all rows before row `i`; the last one is the sum of all. `overhead`: bytes added per row.
    """
    low, high = first + 1, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if ends[middle] - ends[first] + overhead * (middle - first) <= room:
            low = middle
        else:
            high = middle - 1
    return low
