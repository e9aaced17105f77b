"""Batches of idempotent producers that were refused for now, and that come again.

The producer's next batches may be on their way already. None of them may be stored before the refused one, even if the
cause of the refusal is over:

- librdkafka (2.16) would take the refused batch for stored, too ("implicitly acked by subsequent batch").
- The log would take any sequence from a producer that it does not know.
- Nor may the answer tell of a gap: then librdkafka begins a new epoch, and sends batches to other partitions again that
  are stored there.

So the next batches get the first one's refusal until the first has come again.

Clients send refused batches again in order. So when one of the next comes a second time, and the first has not come,
the producer has given up the first: with the transaction that it was in, or because the application has emptied the
client's queue.

A producer's batches come by one connection, and what is remembered belongs to that connection alone. Anybody may write
with another's producer id, and would else hold up the other's batches, or let them overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from krappy.errors import CorruptBatch, KrappyError, UnknownPartition
from krappy.records.batch import BatchHeader

KEPT_S = 600.0  # after that time nothing is on its way any more that was sent beside a batch
MAX_SEQUENCE = 2**31 - 1
MANY = 1000  # pairs of producer and partition whose batches are remembered at least, for each connection
MOST = 10_000  # pairs whose batches are remembered at most, for each connection

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
    told: int = 0  # how many sequences behind this batch the last one is that was refused, too

    def ahead_of(self, header: BatchHeader, now: float) -> int:
        """How many sequences the batch is behind this one; 0: it is not behind it, or was not sent beside it."""
        if header.producer_epoch != self.epoch or now - self.at > KEPT_S:
            return 0
        behind = (header.base_sequence - self.sequence) & MAX_SEQUENCE
        return behind if behind <= MAX_SEQUENCE // 2 else 0

    def lacks(self, following: NextBatch | None, behind: int) -> bool:
        """Whether the log lacks one of the batches from this one to before the one that is `behind` sequences later. It
        may have the first of them: they may have been refused after they were appended, for want of replicas, say."""
        if following is None or following.epoch != self.epoch:
            return following is None or following.epoch < self.epoch
        return (following.sequence - self.sequence) & MAX_SEQUENCE < behind


class RefusedBatches(Generic[K, R]):
    """The refused batches of one connection. `K`: names a producer and a partition. `R`: what tells why."""

    def __init__(self, partitions: Callable[[], int]) -> None:
        """`partitions`: gives how many partitions there are now. So many first batches are remembered, enough for one
        producer in all partitions, but at least MANY and at most MOST. With one more, the oldest tenth is forgotten.
        """
        self._partitions = partitions
        self._room = MANY
        self._first: dict[K, _First[R]] = {}

    def __len__(self) -> int:
        return len(self._first)

    def note(self, key: K, header: BatchHeader, refusal: R, now: float) -> None:
        """Notes that this batch was refused for now. `now`: seconds by a steady clock."""
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
        """The refusal that this batch gets, too: it is behind a refused one, and the log lacks a batch between. None:
        it gets none. `following`: what the log expects next; None for a producer that the log does not know."""
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
    """Whether Kafka's clients send a batch again that was refused with this error."""
    return error.retriable or isinstance(error, CorruptBatch | UnknownPartition)
