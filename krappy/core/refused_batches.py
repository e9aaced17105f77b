"""Batches of idempotent producers that were refused for now, and that come again.

The next ones of the producer may be on their way. None of them may be stored before, though what refused the first has
passed: librdkafka (2.16) takes that for stored then, too ("implicitly acked by subsequent batch"), and of a producer
that the log does not know any sequence would be taken. And told of a gap, it begins a new epoch, and sends batches to
other partitions again that are stored there. So they get the first one's refusal until that has come again.

Clients send what was refused again in its order. So when one of the next comes a second time, and the first has not
come, that was given up: with the transaction that it was in, or because the application has emptied the client's queue.

They come by one connection, and what is remembered is of that alone: anybody may write by another's producer id, and
would hold up his batches else, or let them overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from krappy.errors import CorruptBatch, KrappyError, UnknownPartition
from krappy.records.batch import BatchHeader

KEPT_S = 600.0  # after which nothing that was sent beside a batch is on its way any more
MAX_SEQUENCE = 2**31 - 1
MANY = 1000  # producers, times partitions, of a connection whose batches are remembered at least
MOST = 10_000  # and at most

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class NextBatch(NamedTuple):
    """The batch that a log expects next of a producer that it knows."""

    epoch: int
    sequence: int


class _First(NamedTuple, Generic[R]):
    epoch: int
    sequence: int
    refusal: R
    at: float  # seconds by a steady clock
    told: int = 0  # how many sequences behind it the last one is that was refused, too

    def ahead_of(self, header: BatchHeader, now: float) -> int:
        """How many sequences behind it the batch is, which may have been sent beside it; 0: it is not such a one."""
        if header.producer_epoch != self.epoch or now - self.at > KEPT_S:
            return 0
        behind = (header.base_sequence - self.sequence) & MAX_SEQUENCE
        return behind if behind <= MAX_SEQUENCE // 2 else 0

    def lacks(self, following: NextBatch | None, behind: int) -> bool:
        """Whether the log lacks one of the batches from this one to before that `behind` it. It may have the first
        ones: they were refused after they were appended, for want of replicas, say."""
        if following is None or following.epoch != self.epoch:
            return following is None or following.epoch < self.epoch
        return (following.sequence - self.sequence) & MAX_SEQUENCE < behind


class RefusedBatches(Generic[K, R]):
    """Those of one connection. `K`: names a producer and a partition. `R`: what tells why."""

    def __init__(self, partitions: Callable[[], int]) -> None:
        """`partitions`: how many there are now that batches may be for. So many first batches are remembered, those of
        one producer in all of them, but at least MANY and at most MOST. With one more the oldest tenth is forgotten."""
        self._partitions = partitions
        self._room = MANY
        self._first: dict[K, _First[R]] = {}

    def __len__(self) -> int:
        return len(self._first)

    def note(self, key: K, header: BatchHeader, refusal: R, now: float) -> None:
        """This batch was refused for now; `now`: seconds by a steady clock."""
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        first = self._first.get(key)
        if first is not None and (header.producer_epoch < first.epoch or first.ahead_of(header, now)):
            return
        self._first.pop(key, None)
        self._first[key] = _First(header.producer_epoch, header.base_sequence, refusal, now)
        if len(self._first) > self._room:
            self._make_room()

    def _make_room(self) -> None:
        self._room = min(MOST, max(MANY, self._partitions()))
        if len(self._first) > self._room:
            for key in list(islice(self._first, max(1, self._room // 10))):
                del self._first[key]

    def find(self, key: K, header: BatchHeader, following: NextBatch | None, now: float) -> R | None:
        """Why this batch is refused, too: it is behind one that was, and the log lacks one of those between.
        `following`: None of a producer that the log does not know."""
        first = self._first.get(key)
        if first is None or header.producer_epoch < first.epoch:
            return None
        behind = first.ahead_of(header, now)
        if behind > first.told and first.lacks(following, behind):
            self._first[key] = first._replace(told=behind)
            return first.refusal
        del self._first[key]  # it comes again, or it is stored, or its producer has given it up
        return None


RefusedByPartitions: TypeAlias = RefusedBatches[tuple[int, str, int], KrappyError]  # by producer id, topic, partition


def comes_again(error: KrappyError) -> bool:
    """Whether Kafka's clients send again what was refused so."""
    return error.retriable or isinstance(error, CorruptBatch | UnknownPartition)
