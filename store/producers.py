"""What the log remembers of idempotent producers, so that a batch sent twice is stored once (KIP-98, KIP-360).

For each producer id its epoch and its last five batches, as in Kafka (`ProducerStateManager`): clients have at most
five in flight, so a retry is always among them. Live appends and recovery use the same `apply`.

A state is an immutable value, replaced as a whole: `check` may run in another thread than `apply`.

`stability` has what the log's control batches say of transactions (core/stability.py), as of the log's end. Readers use
the partition's own, which is as of the high watermark. `ended` has the last marker of each producer. By it, batches and
markers from before that marker are refused if they come late. A log that is read anew lacks the markers that compaction
has removed.

A producer writes either always or never in transactions. Only the transactions' coordinator knows which producer ids
do, and anybody may send batches with such an id outside of transactions. So the first transactional batch of an id
replaces what was known of it. From then on, batches outside of transactions do not change what is known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgpack

from krappy.core.refused_batches import NextBatch
from krappy.core.stability import Stability, read_marker
from krappy.errors import CorruptBatch, OutOfOrderSequence, ProducerFenced, UnknownProducer
from krappy.records.batch import TRANSACTIONAL, BatchHeader, Buffer

KEPT = 5
MOST = 10_000  # producers of one partition; the longest silent ones are forgotten beyond that
MAX_SEQUENCE = 2**31 - 1
STABILITY_PARTS = 5  # of what `Stability.pack` gives


class SentBatch(NamedTuple):
    """One batch of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int  # ms, the latest of its events


class ProducerState(NamedTuple):
    epoch: int
    seen_ms: int  # when the last batch was appended
    sent: tuple[SentBatch, ...]  # oldest first, at most KEPT


class EndedTransaction(NamedTuple):
    """A producer's last marker. `epoch`: its producer epoch."""

    epoch: int
    coordinator_epoch: int
    offset: int
    seen_ms: int  # when it was appended


def advance(sequence: int, by: int) -> int:
    """The sequence number `by` steps later; after 2^31 - 1 comes 0."""
    return (sequence + by) & MAX_SEQUENCE


class ProducerStates:
    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self.stability = Stability()
        self.ended: dict[int, EndedTransaction] = {}  # by producer id

    def __len__(self) -> int:
        return len(self._states)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._states == other._states and self.stability == other.stability

    __hash__ = None  # type: ignore[assignment]

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def following(self, producer_id: int) -> NextBatch | None:
        """The batch that is expected next; None for an unknown producer."""
        state = self.get(producer_id)
        return None if state is None else NextBatch(state.epoch, advance(state.sent[-1].last_sequence, 1))

    def is_transactional(self, producer_id: int) -> bool:
        """Whether the producer has, or had, a transaction here."""
        return producer_id in self.stability.open or producer_id in self.ended

    def copy(self) -> ProducerStates:
        """An independent copy of the states as they are now."""
        copied = ProducerStates()
        copied._states = self._states.copy()
        copied.stability = self.stability.copy()
        copied.ended = self.ended.copy()
        return copied

    def check(self, header: BatchHeader, *, from_zero: bool = False) -> int | None:
        """None if the batch is to be appended: it is the next one, or has no producer. Of a duplicate, the base offset
        that it already has.

        Raises OutOfOrderSequence when batches before it are missing, or a new epoch does not start at 0;
        ProducerFenced when a newer epoch of the producer exists. An unknown producer may begin with any sequence, for
        what was known of it may have expired (KIP-360). With `from_zero` it must begin with 0: what is known of such a
        producer never expires, and its batches may be sent again after their transaction's end.

        A client's transactional batch is no duplicate of a batch whose transaction has ended: it raises
        UnknownProducer. For librdkafka (2.16) uses sequences again: those of events that it sent, got no answer for,
        and gave up with their transaction. The next events with these sequences would be acknowledged, but lost. This
        error makes librdkafka abort, and ask for the next epoch.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id < 0 or first < 0:
            return None
        state = self.get(producer_id)
        if state is None:
            if from_zero and first:
                raise OutOfOrderSequence(f"producer {producer_id} starts with sequence {first}, not 0", expected=0)
            return None
        if epoch < state.epoch:
            raise ProducerFenced(
                f"producer {producer_id} has epoch {state.epoch}; this batch is of epoch {epoch}", epoch=state.epoch
            )
        if epoch > state.epoch:
            if first:
                raise OutOfOrderSequence(
                    f"producer {producer_id} starts epoch {epoch} with sequence {first}, not 0", expected=0
                )
            return None
        last = advance(first, header.last_offset_delta)
        for sent in state.sent:
            if sent.base_sequence == first and sent.last_sequence == last:
                if header.is_transactional and not from_zero and self._has_ended(producer_id, sent.base_offset):
                    raise UnknownProducer(
                        f"sequence {first} of producer {producer_id} belongs to a transaction that has ended: abort, "
                        "and ask for the next epoch (InitProducerId)"
                    )
                return sent.base_offset
        expected = advance(state.sent[-1].last_sequence, 1)
        if first != expected:
            raise OutOfOrderSequence(
                f"producer {producer_id} sent sequence {first}; {expected} comes next", expected=expected
            )
        return None

    def _has_ended(self, producer_id: int, offset: int) -> bool:
        """Whether the transaction that this producer had open at the offset has ended."""
        ended = self.ended.get(producer_id)
        return ended is not None and offset < ended.offset

    def items(self) -> list[tuple[int, ProducerState]]:
        """(producer id, state) of every producer now."""
        return list(self._states.copy().items())

    def apply(self, header: BatchHeader, base_offset: int, now_ms: int, data: Buffer | None = None) -> None:
        """Remembers an appended batch. One that is remembered already (by its offset) changes nothing.

        `data`: the batch itself, which is looked at when it is a control batch.
        """
        producer_id = header.producer_id
        known = bool(header.attributes & TRANSACTIONAL) is self.is_transactional(producer_id)
        if header.attributes & TRANSACTIONAL:
            self.stability.apply(header, base_offset, data)
            if header.is_control and header.count and data is not None:
                self._note_end(header, base_offset, now_ms, data)
        if producer_id < 0 or header.base_sequence < 0:
            return
        state = self.get(producer_id)
        first = header.base_sequence
        sent = SentBatch(
            first,
            advance(first, header.last_offset_delta),
            base_offset,
            base_offset + header.last_offset_delta,
            header.max_timestamp,
        )
        if not known and not header.attributes & TRANSACTIONAL:
            return
        if state is None or header.producer_epoch != state.epoch:
            self._states[producer_id] = ProducerState(header.producer_epoch, now_ms, (sent,))
            if len(self._states) > MOST:
                self._forget_oldest()
        elif base_offset > state.sent[-1].base_offset:
            before = state.sent[1 - KEPT :] if known else ()
            self._states[producer_id] = ProducerState(state.epoch, now_ms, (*before, sent))

    def _note_end(self, header: BatchHeader, offset: int, now_ms: int, data: Buffer) -> None:
        marker, before = read_marker(data), self.ended.get(header.producer_id)
        if marker is None or (before is not None and before.offset >= offset):
            return
        found = EndedTransaction(header.producer_epoch, marker.coordinator_epoch, offset, now_ms)
        self.ended[header.producer_id] = found
        if len(self.ended) > MOST:
            for number in sorted(self.ended, key=lambda number: self.ended[number].offset)[: MOST // 10]:
                del self.ended[number]

    def _forget_oldest(self) -> None:
        """Removes the tenth of the producers that has been silent for longest: by offsets, since the clock may have
        been set back. Those with an open transaction go last: their state tells how much of a staged job the log has.
        """
        open = self.stability.open
        silent = sorted(self._states, key=lambda number: (number in open, self._states[number].sent[-1].base_offset))
        for number in silent[: max(1, MOST // 10)]:
            del self._states[number]

    def silent(self, now_ms: int, older_than_ms: int, kept: Collection[int] = ()) -> list[int]:
        """The producers that appended nothing for `older_than_ms`, without those in `kept`."""
        return [
            number
            for number, state in self._states.copy().items()
            if now_ms - state.seen_ms > older_than_ms and number not in kept
        ]

    def expire(self, now_ms: int, older_than_ms: int, kept: Collection[int] = ()) -> int:
        """Forgets the producers that are `silent`. Returns how many. No append may run: it might be one of theirs."""
        old = self.silent(now_ms, older_than_ms, kept)
        for number in old:
            self._states.pop(number, None)
        for number, ended in list(self.ended.items()):
            if now_ms - ended.seen_ms > older_than_ms and number not in self._states:
                self.ended.pop(number, None)
        return len(old)

    def cut(self, end: int, found: ProducerStates) -> ProducerStates:
        """The states once the log ends at the offset `end`. `found`: what was read of the batches up to there.

        If some of a producer's remembered batches are below `end`, its state is these: a retry is one of the last KEPT
        that it has sent. `found` may have fewer, for retention and the cleaner remove batches from the log, but not
        from these states.
        """
        left = ProducerStates()
        for number, state in self._states.items():
            sent = tuple(each for each in state.sent if each.base_offset < end)
            read = found.get(number)
            if sent:
                left._states[number] = state._replace(sent=sent)
            elif read is not None:
                left._states[number] = read._replace(seen_ms=state.seen_ms)
        left.stability = self.stability.cut(end, found.stability.open)
        left.ended = found.ended | {number: each for number, each in self.ended.items() if each.offset < end}
        return left

    def snapshot(self) -> bytes:
        """All states as bytes for the checkpoint."""
        return bytes(msgpack.packb([[number, *state] for number, state in self._states.copy().items()]))

    def transactions(self) -> bytes:
        """Open, aborted and ended transactions as bytes for the checkpoint; nothing without any."""
        stability, ended = self.stability, [[number, *each] for number, each in self.ended.copy().items()]
        return bytes(msgpack.packb([*stability.pack(), ended])) if stability.open or len(stability) or ended else b""

    def restore(self, data: bytes, transactions: bytes = b"") -> None:
        """Replaces all by a checkpoint's `snapshot()` and `transactions()`. Raises CorruptBatch when they can't be
        read."""
        try:
            states = {
                int(number): ProducerState(
                    int(epoch), int(seen_ms), tuple(SentBatch(*map(int, batch)) for batch in sent)
                )
                for number, epoch, seen_ms, sent in msgpack.unpackb(data)
            }
            if not all(1 <= len(state.sent) <= KEPT for state in states.values()):
                raise ValueError("a producer without batches")
            stability, ended = Stability(), []
            if transactions:
                stored = msgpack.unpackb(transactions)
                if len(stored) > STABILITY_PARTS:  # earlier versions did not keep what has ended
                    ended = stored.pop()
                stability = Stability.unpack(stored)
            last = {int(number): EndedTransaction(*map(int, each)) for number, *each in ended}
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise CorruptBatch(f"a producer snapshot that can't be read: {error}") from None
        self._states = states
        self.stability, self.ended = stability, last
