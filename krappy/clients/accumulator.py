"""A producer's memory, pure: records and times in, batches out; answers in, settled batches out.

The rules it keeps, per partition (a `Lane`):
- Batches leave in the order of their records, at most `max_in_flight` unanswered.
- A batch leaves when it is full, or has waited `linger` seconds, or nothing of its partition is in flight (what
  comes while one is in flight then travels together: Nagle's idea, RFC 896).
- An event with an expectation is a batch of its own and travels alone: its refusal is an ordinary answer, and must
  not make the broker see a gap in the sequence numbers of those behind it.
- Sequence numbers are given when a batch is first sent. A batch that is sent again is the very same bytes, and in
  the same order, so the broker's check (KIP-98: producer id, epoch, sequence) stores it once.
- After an answer that makes those behind it fail too, the lane waits until all in flight are answered, then sends
  again what is left, in order.
- A batch that failed for good while others were behind it has made a gap that the broker would refuse for ever. Then
  its partition, and it alone, goes on under a new producer id (`renew`), with sequences from 0. It is never the old id
  with other numbers: a copy still on its way over a lost connection could then fit in, and be stored twice. For the
  other partitions it stays the old id, under which alone a batch that is sent again is known for what it is.
- A batch whose fate is unknown (it waited too long) leaves a hole: what comes next has the next number, and only if
  the broker sees a gap there is it one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from krappy.clients.lane import Lane, LaneBatch, Settled, Ticket, cut
from krappy.errors import ConnectionLost, KrappyError, OutOfOrderSequence, RequestTimeout, UnknownProducer
from krappy.records import batch as record_batch
from krappy.types import Headers

RECORD_OVERHEAD = 24  # bytes of a record beside key, value and headers, for what fits in a batch


@dataclass(frozen=True)
class Limits:
    """Durations in seconds, sizes in bytes."""

    linger: float = 0.005
    batch_bytes: int = 512 << 10
    buffer_bytes: int = 32 << 20
    max_in_flight: int = 5
    timeout: float = 120.0
    codec: int = 0
    idempotent: bool = True


class Accumulator:
    """Used under one lock or in one task. Times are seconds on a clock that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.partitions = 0
        self.buffered = 0  # bytes of everything not settled
        self._producer = (-1, -1)
        self._batch_bytes = limits.batch_bytes
        self._lanes: dict[int, Lane] = {}  # those that ever had something
        self._sticky = 0
        self._settled: list[Settled] = []

    def registered(self, partitions: int, producer_id: int, producer_epoch: int, max_message_bytes: int) -> None:
        """A registration is in force. A new producer id is for the partitions that need one, and for fresh ones."""
        self.partitions = partitions
        self._batch_bytes = min(self.limits.batch_bytes, max(1, max_message_bytes))
        producer = producer_id, producer_epoch
        if producer != self._producer:
            self._producer = producer
            for lane in self._lanes.values():
                if lane.broken:
                    lane.restart(producer)

    @property
    def renew(self) -> bool:
        """Whether some partition waits for a new producer id."""
        return any(lane.broken for lane in self._lanes.values())

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch to register again with; (-1, -1) when a new id is needed."""
        return (-1, -1) if self.renew else self._producer

    @property
    def full(self) -> bool:
        return self.buffered >= self.limits.buffer_bytes

    @property
    def empty(self) -> bool:
        return self.buffered == 0

    @property
    def in_flight(self) -> int:
        """Batches sent whose answers are awaited."""
        return sum(not batch.back for lane in self._lanes.values() for batch in lane.sent)

    # --- records in ---------------------------------------------------------------------------------------------

    def next_partition(self) -> int:
        """Where keyless records go now: round-robin, a batch each."""
        lane = self._lanes.get(self._sticky)
        if lane is None or lane.filling is None:
            self._sticky = (self._sticky + 1) % self.partitions
        return self._sticky

    def add(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        ticket: Ticket,
        now: float,
        expect: int | None = None,
    ) -> bool:
        """Takes one record. Whether `take` should look again: a batch was begun, or is full."""
        size = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            size += sum(10 + 3 * len(name) + len(content or b"") for name, content in headers)
        lane = self._lane(partition)
        batch = lane.filling
        if batch is not None and (expect is not None or batch.size + size > self._batch_bytes):
            lane.close()
            batch = None
        begun = batch is None
        if batch is None:
            batch = LaneBatch(partition, now, expect)
            self.buffered += batch.size
            if expect is None:
                lane.filling = batch
            else:
                lane.ready.append(batch)
        batch.tickets.append((ticket, len(batch.values), 1))
        batch.add(key, value, headers, timestamp, size)
        self.buffered += size
        return begun or batch.size >= self._batch_bytes

    def add_columns(
        self,
        partition: int,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Sequence[Headers] | None,
        timestamps: Sequence[int],
        ticket: Ticket,
        now: float,
    ) -> None:
        """Takes many records, cut into batches of their own. `keys` None: no record has one."""
        lane = self._lane(partition)
        lane.close()
        count = len(values)
        ends = _ends(keys, values, headers)
        first = 0
        while first < count:
            last = cut(ends, first, self._batch_bytes - record_batch.HEADER_SIZE, RECORD_OVERHEAD)
            batch = LaneBatch(partition, now)
            batch.row = first
            batch.values = list(values[first:last])
            batch.keys = [None] * (last - first) if keys is None else list(keys[first:last])
            batch.timestamps = list(timestamps[first:last])
            if headers is not None:
                batch.headers = list(headers[first:last])
            batch.size += ends[last] - ends[first] + RECORD_OVERHEAD * (last - first)
            batch.tickets.append((ticket, 0, last - first))
            self.buffered += batch.size
            lane.ready.append(batch)
            first = last

    def fence(self, ticket: Ticket) -> int:
        """Closes every batch and gives each that is not settled this ticket too; how many those are."""
        count = 0
        for lane in self._lanes.values():
            lane.close()
            for batch in lane.batches():
                batch.tickets.append((ticket, 0, 0))
                count += 1
        return count

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition, self._producer)
        return lane

    # --- batches out --------------------------------------------------------------------------------------------

    def take(self, now: float) -> list[LaneBatch]:
        """Every batch that may leave now. Each counts as sent, has its sequence number, and waits for `encode`."""
        taken: list[LaneBatch] = []
        for lane in self._lanes.values():
            while now >= lane.not_before and lane.may_send(self.limits.max_in_flight):
                if not lane.ready:
                    if lane.filling is None or now < self._due(lane, lane.filling):
                        break
                    lane.close()
                taken.append(lane.send())
        return taken

    def encode(self, batch: LaneBatch) -> bytes:
        """The bytes of a batch that was taken: made once, then the same for as long as its sequence number holds."""
        if batch.data is None:
            id, epoch = self._lanes[batch.partition].producer if self.limits.idempotent else (-1, -1)
            batch.data = record_batch.encode(
                batch.keys,
                batch.values,
                timestamps=batch.timestamps,
                headers=batch.headers,
                codec=self.limits.codec,
                producer_id=id,
                producer_epoch=epoch,
                base_sequence=batch.sequence if self.limits.idempotent else -1,
            )
        return batch.data

    def next_expiry(self) -> float | None:
        """When something here will have waited too long."""
        oldest = [next(lane.batches(), None) for lane in self._lanes.values()]
        return min((batch.born + self.limits.timeout for batch in oldest if batch is not None), default=None)

    def next_due(self) -> float | None:
        """When `take` or `expire` should be called although nothing else happens."""
        due: float | None = None
        for lane in self._lanes.values():
            oldest = next(lane.batches(), None)
            if oldest is None:
                continue
            wanted = oldest.born + self.limits.timeout
            if lane.may_send(self.limits.max_in_flight):
                if lane.ready:
                    wanted = min(wanted, lane.not_before)
                elif lane.filling is not None:
                    wanted = min(wanted, max(lane.not_before, self._due(lane, lane.filling)))
            due = wanted if due is None else min(due, wanted)
        return due

    def _due(self, lane: Lane, batch: LaneBatch) -> float:
        if not lane.sent or batch.size >= self._batch_bytes:
            return batch.born
        return batch.born + self.limits.linger

    # --- answers in ---------------------------------------------------------------------------------------------

    def stored(self, batch: LaneBatch, offset: int, timestamp: int) -> None:
        """The broker has it. `timestamp` is the batch's largest, or the broker's own time."""
        if batch.settled:
            return
        lane = self._lanes[batch.partition]
        own = timestamp < 0 or batch.data is None or timestamp == record_batch.read_header(batch.data).max_timestamp
        self._settle(lane, Settled(batch, offset, None if own else timestamp))
        lane.moved()
        self._resume(lane)

    def refused(self, batch: LaneBatch, error: KrappyError, now: float) -> None:
        """The broker has it not, and says why. A retriable error sends it again; a lost connection is for `lost`."""
        lane = self._lanes[batch.partition]
        if batch.settled or batch.back or batch not in lane.sent:
            return
        position = lane.sent.index(batch)
        behind = position + 1 < len(lane.sent) or any(later.sequence >= 0 for later in lane.ready)
        idempotent = self.limits.idempotent
        gap = idempotent and isinstance(error, OutOfOrderSequence)
        if error.retriable:
            batch.back = lane.halted = True
            lane.hold(now)
        elif gap and (
            position > 0 or lane.halted or (lane.renew and not batch.ahead)
        ):  # one before it came back, and made the gap
            batch.back = lane.halted = True
        elif gap and lane.hole:  # what waited too long was not stored
            batch.back = True
            lane.break_at(position)
        else:
            # Who has given its producer id to nobody may be another broker, or an empty one: a new id helps.
            unknown = isinstance(error, UnknownProducer)
            if idempotent and (behind or gap or unknown or batch.tries > 1):
                lane.break_at(position)
            else:
                lane.sequence = batch.sequence
            self._settle(lane, Settled(batch, error=error))
        self._resume(lane)

    def lost(self, error: KrappyError) -> None:
        """The connection went. What was in flight goes again, unless that could store it twice."""
        for lane in self._lanes.values():
            if not self.limits.idempotent:
                for batch in [batch for batch in lane.sent if not batch.back]:
                    self._settle(lane, Settled(batch, error=error))
            lane.recall()

    def expire(self, now: float) -> None:
        """Fails what has waited longer than `timeout`. What had been sent may or may not have been stored."""
        oldest = now - self.limits.timeout
        for lane in self._lanes.values():
            for batch in [batch for batch in lane.batches() if batch.born <= oldest]:
                sent = batch.sequence >= 0
                lane.hole |= sent
                fate = "it may have been stored" if sent else "it was not sent"
                text = f"no acknowledgement in {self.limits.timeout:g} s; {fate}"
                self._settle(lane, Settled(batch, error=RequestTimeout(text)))
            self._resume(lane)

    def fail_all(self, error: KrappyError) -> None:
        """Nothing of what is here can be sent."""
        for lane in self._lanes.values():
            for batch in list(lane.batches()):
                lane.renew |= batch.sequence >= 0 and self.limits.idempotent
                self._settle(lane, Settled(batch, error=error))
            lane.halted = False

    def close(self) -> None:
        """Nothing more is sent. What had been may or may not have been stored."""
        for lane in self._lanes.values():
            for batch in list(lane.batches()):
                when = "sent" if batch.sequence < 0 else "acknowledged; it may have been stored"
                self._settle(
                    lane, Settled(batch, error=ConnectionLost(f"the producer was closed before this was {when}"))
                )

    def collect(self) -> list[Settled]:
        """What was settled since the last time, for its tickets to be told."""
        settled, self._settled = self._settled, []
        return settled

    def _resume(self, lane: Lane) -> None:
        if lane.halted and all(batch.back for batch in lane.sent):
            lane.recall()

    def _settle(self, lane: Lane, settled: Settled) -> None:
        batch = settled.batch
        batch.settled = True
        self.buffered -= batch.size
        lane.remove(batch)
        self._settled.append(settled)


def _ends(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], headers: Sequence[Headers] | None
) -> list[int]:
    """The sizes of the rows before each row, summed up, and at last the sum of all."""
    try:
        sizes: Iterable[int] = map(len, values)  # type: ignore[arg-type]
        if keys is not None:
            sizes = map(add, sizes, map(len, keys))  # type: ignore[arg-type]
        ends = list(accumulate(sizes, initial=0))
    except TypeError:  # a None among them, which most columns have not: a look at each would cost as much again
        sizes = (len(value or b"") for value in values)
        if keys is not None:
            sizes = map(add, sizes, (len(key or b"") for key in keys))
        ends = list(accumulate(sizes, initial=0))
    if headers is not None:
        more = (sum(10 + 3 * len(name) + len(value or b"") for name, value in each) for each in headers)
        ends = list(map(add, ends, accumulate(more, initial=0)))
    return ends
