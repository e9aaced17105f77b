"""Records of a producer on their way, pure: batches, and the line that the batches of one partition stand in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from krappy.batch import HEADER_SIZE
from krappy.errors import KrappyError
from krappy.types import Headers

MAX_SEQUENCE = 2**31 - 1
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds before a refused batch is tried again


class Ticket(Protocol):
    """Whoever waits for some records of a batch."""

    def stored(self, settled: Settled, first: int, count: int) -> None:
        """`count` records from the `first` of the batch on are stored."""
        ...

    def failed(self, error: KrappyError, count: int) -> None: ...


class Batch:
    """Records of one partition on their way."""

    __slots__ = (
        "back",
        "born",
        "data",
        "expect",
        "headers",
        "keys",
        "partition",
        "row",
        "sequence",
        "settled",
        "size",
        "tickets",
        "timestamps",
        "values",
    )

    def __init__(self, partition: int, born: float, expect: int | None = None) -> None:
        self.partition = partition
        self.born = born
        self.expect = expect
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers] | None = None
        self.size = HEADER_SIZE
        self.row = 0  # cut from columns: which row of them is the first here
        self.tickets: list[tuple[Ticket, int, int]] = []  # ticket, first record, count
        self.sequence = -1  # once given: it may have reached the broker
        self.data: bytes | None = None
        self.back = False  # came back, to be sent again
        self.settled = False

    def __len__(self) -> int:
        return len(self.values)

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int, size: int) -> None:
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [()] * len(self.values)
            self.headers.append(headers)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)
        self.size += size


class Settled(NamedTuple):
    """What became of a batch: an error, or the offset of its first record. `append_time`: the broker's own time, when
    it stamped the events (LogAppendTime); None when they keep theirs."""

    batch: Batch
    offset: int = -1
    append_time: int | None = None
    error: KrappyError | None = None

    def tell(self) -> None:
        """Lets every ticket know."""
        for ticket, first, count in self.batch.tickets:
            if self.error is None:
                ticket.stored(self, first, count)
            else:
                ticket.failed(self.error, count)


class Lane:
    """One partition: a batch being filled, batches ready to go, batches sent and not settled, each in order."""

    __slots__ = ("filling", "halted", "not_before", "partition", "pause", "ready", "sent", "sequence")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.filling: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.sent: deque[Batch] = deque()
        self.sequence = 0
        self.halted = False  # nothing leaves until all that was sent is answered
        self.not_before = 0.0
        self.pause = FIRST_PAUSE

    def close(self) -> None:
        """What is being filled is ready."""
        if self.filling is not None:
            self.ready.append(self.filling)
            self.filling = None

    def may_send(self, max_in_flight: int) -> bool:
        """Whether the next batch may leave as far as those before it are concerned."""
        if self.halted or len(self.sent) >= max_in_flight:
            return False
        if not self.sent:
            return True
        return self.sent[-1].expect is None and not (self.ready and self.ready[0].expect is not None)

    def send(self) -> Batch:
        """The next ready batch, which counts as sent and has its sequence number."""
        batch = self.ready.popleft()
        self.sent.append(batch)
        if batch.sequence < 0:
            batch.sequence = self.sequence
            self.sequence = (self.sequence + len(batch)) & MAX_SEQUENCE
        return batch

    def recall(self) -> None:
        """Everything sent and not settled is ready to be sent again."""
        for batch in reversed(self.sent):
            batch.back = False
            self.ready.appendleft(batch)
        self.sent.clear()
        self.halted = False

    def hold(self, now: float) -> None:
        """Nothing leaves for a while, longer each time."""
        self.not_before = now + self.pause
        self.pause = min(LONGEST_PAUSE, self.pause * 2)

    def moved(self) -> None:
        """Something was stored."""
        self.not_before, self.pause = 0.0, FIRST_PAUSE

    def restart(self) -> None:
        """Sequence numbers begin anew."""
        self.sequence = 0
        for batch in self.batches():
            batch.sequence, batch.data = -1, None

    def remove(self, batch: Batch) -> None:
        if batch is self.filling:
            self.filling = None
        elif batch in self.sent:
            self.sent.remove(batch)
        else:
            self.ready.remove(batch)

    def batches(self) -> Iterator[Batch]:
        yield from self.sent
        yield from self.ready
        if self.filling is not None:
            yield self.filling


def cut(ends: Sequence[int], first: int, room: int) -> int:
    """The end of the longest run of rows from `first` that fits in `room` bytes, one row at least.

    `ends`: the sizes of the rows before each row, summed up, and at last the sum of all.
    """
    low, high = first + 1, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if ends[middle] - ends[first] <= room:
            low = middle
        else:
            high = middle - 1
    return low
