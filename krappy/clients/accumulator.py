"""A producer's buffer: records and times go in, batches come out; answers go in, settled batches come out. No I/O.

Its rules for each partition (a `Lane`):
- Batches are sent in the order of their records, at most `max_in_flight` of them unanswered.
- A batch is sent when it is full, when it has waited `linger` seconds, or when no batch of its partition is in flight.
  So records that come while one is in flight are sent together (Nagle's idea, RFC 896).
- Events with a condition (`expect`) share batches of their own, in which each key is once. Nothing else is in flight
  with such a batch: its refusal is an ordinary answer, and must not leave a gap in the sequence numbers of the batches
  behind it. The events whose own condition did not hold fail, and the others are sent again.
- A batch gets its sequence number when it is first sent. When it is sent again, its bytes and its order are the same,
  so the broker's check (KIP-98: producer id, epoch, sequence) stores it once.
- After a refusal that makes the batches behind it fail too, the lane waits until all in flight are answered, then sends
  the rest again, in order.
- A batch that failed for good while others were behind it leaves a gap, and the broker would refuse the others for
  ever. Then this partition goes on under a new producer id (`renew`), with sequence numbers from 0. Other numbers under
  the old id would not do: a copy still on its way over a lost connection could fit in, and be stored twice. The other
  partitions keep the old id: only under it does the broker recognize a batch that is sent again.
- A batch that waited too long may or may not be stored: it leaves a hole. The next batch has the next sequence number,
  and the hole is a gap only if the broker says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from krappy.clients.lane import RECORD_OVERHEAD, Lane, LaneBatch, Settled, Ticket, cut, mismatches, record_size
from krappy.errors import ConnectionLost, KrappyError, OutOfOrderSequence, RequestTimeout, UnknownProducer
from krappy.records import batch as record_batch
from krappy.types import Headers

Ready = Callable[[int], bool]


@dataclass(frozen=True)
class Limits:
    """Durations in seconds, sizes in bytes. `timeout`: after it, a record that is not stored fails. `codec`: a number
    of `krappy.records.codecs`."""

    linger: float = 0.005
    batch_bytes: int = 512 << 10
    buffer_bytes: int = 32 << 20
    max_in_flight: int = 5
    timeout: float = 120.0
    codec: int = 0


class Accumulator:
    """To be used under one lock or in one task. Times are seconds on a clock that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.partitions = 0
        self.buffered = 0  # bytes of everything not settled
        self._producer = (-1, -1)
        self._batch_bytes = limits.batch_bytes
        self._lanes: dict[int, Lane] = {}  # by partition; a lane is made by its first record
        self._sticky = 0
        self._settled: list[Settled] = []

    def registered(self, partitions: int, producer_id: int, producer_epoch: int, max_message_bytes: int) -> None:
        """Takes over what a registration said. A new producer id goes to the lanes that need one, and to new lanes."""
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
        """Whether a partition waits for a new producer id."""
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
        """The partition for records without a key: round-robin, one batch for each in turn."""
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
        """Takes one record. Returns whether to call `take`: a batch was begun, or is full."""
        lane = self._lane(partition)
        batch = lane.filling
        if batch is not None and (
            not batch.may_take(key, expect) or batch.size + record_size(key, value, headers) > self._batch_bytes
        ):
            lane.close()
            batch = None
        # The exception of a signal may come with any call: even then no batch may be without records, and no byte
        # counted twice.
        if batch is not None:
            self.buffered += batch.add(key, value, headers, timestamp, ticket, expect)
            return batch.size >= self._batch_bytes
        batch = LaneBatch(partition, now, None if expect is None else {})
        batch.add(key, value, headers, timestamp, ticket, expect)
        self.buffered += batch.size
        lane.filling = batch
        return True

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
        """Takes many records as columns of equal length, in new batches. `keys` None: no record has one."""
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
        """Closes every batch and adds this ticket to each that is not settled. Returns how many those are."""
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

    def take(self, now: float, ready: Ready | None = None) -> list[LaneBatch]:
        """All batches that may be sent now. From here on each counts as sent and has its sequence number; `encode`
        gives its bytes. `ready`: tells whether there is a way to send a partition's batches; None: there is for all."""
        taken: list[LaneBatch] = []
        for lane in self._lanes.values():
            if ready is not None and not ready(lane.partition):
                continue
            while now >= lane.not_before and lane.may_send(self.limits.max_in_flight):
                if not lane.ready:
                    if lane.filling is None or now < self._due(lane, lane.filling):
                        break
                    lane.close()
                taken.append(lane.send())
        return taken

    def encode(self, batch: LaneBatch) -> bytes:
        """The bytes of a batch that was taken. They stay the same as long as its sequence number does."""
        if batch.data is None:
            id, epoch = self._lanes[batch.partition].producer
            batch.data = record_batch.encode(
                batch.keys,
                batch.values,
                timestamps=batch.timestamps,
                headers=batch.headers,
                codec=self.limits.codec,
                producer_id=id,
                producer_epoch=epoch,
                base_sequence=batch.sequence,
            )
        return batch.data

    def next_expiry(self) -> float | None:
        """When the next batch will have waited too long; None: there is no batch."""
        oldest = [next(lane.batches(), None) for lane in self._lanes.values()]
        return min((batch.born + self.limits.timeout for batch in oldest if batch is not None), default=None)

    def waiting(self) -> list[int]:
        """The partitions that have batches to send, and none in flight."""
        return [
            lane.partition
            for lane in self._lanes.values()
            if (lane.ready or lane.filling is not None) and all(batch.back for batch in lane.sent)
        ]

    def next_due(self, ready: Ready | None = None) -> float | None:
        """When to call `take` or `expire` at the latest, even if nothing else happens; None: there is no batch.
        `ready`: as for `take`."""
        due: float | None = None
        for lane in self._lanes.values():
            oldest = next(lane.batches(), None)
            if oldest is None:
                continue
            wanted = oldest.born + self.limits.timeout
            if lane.may_send(self.limits.max_in_flight) and (ready is None or ready(lane.partition)):
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
        """The broker has stored the batch. `timestamp` (ms): its largest, or the one that the broker gave its events;
        negative: not told."""
        if batch.settled:
            return
        lane = self._lanes[batch.partition]
        own = timestamp < 0 or batch.data is None or timestamp == record_batch.read_header(batch.data).max_timestamp
        self._settle(lane, Settled(batch, offset, None if own else timestamp))
        lane.moved()
        self._resume(lane)

    def refused(self, batch: LaneBatch, error: KrappyError, now: float) -> None:
        """The broker has refused the batch. After a retriable error it is sent again. For lost connections: `lost`."""
        lane = self._lanes[batch.partition]
        if batch.settled or batch.back or batch not in lane.sent:
            return
        position = lane.sent.index(batch)
        behind = position + 1 < len(lane.sent) or any(later.sequence >= 0 for later in lane.ready)
        gap = isinstance(error, OutOfOrderSequence)
        if error.retriable:
            if not lane.halted:  # one pause for all that are in flight together
                lane.hold(now)
            batch.back = lane.halted = True
        elif gap and (
            position > 0 or lane.halted or (lane.renew and not batch.ahead)
        ):  # a batch before it is to be sent again, or left the gap
            batch.back = lane.halted = True
        elif gap and lane.hole:  # so the batch that waited too long was not stored
            batch.back = True
            lane.break_at(position)
        else:
            # A broker that does not know the producer id may be another one, or an empty one: a new id helps.
            unknown = isinstance(error, UnknownProducer)
            if behind or gap or unknown or batch.tries > 1:
                lane.break_at(position)
            else:
                lane.sequence = batch.sequence
            self._fail(lane, batch, error)
        self._resume(lane)

    def lost(self, partitions: Iterable[int] | None = None) -> None:
        """The connection was lost: batches of these partitions (None: of all) that are in flight are sent again."""
        for lane in list(self._lanes.values()) if partitions is None else map(self._lane, partitions):
            lane.recall()

    def expire(self, now: float, why: str = "") -> None:
        """Fails the batches that have waited longer than `timeout`. Those that were sent may or may not be stored.
        `why`: what is in the way, if that is known."""
        oldest = now - self.limits.timeout
        for lane in self._lanes.values():
            for batch in [batch for batch in lane.batches() if batch.born <= oldest]:
                sent = batch.sequence >= 0
                lane.hole |= sent
                fate = "it may have been stored" if sent else "it was not sent"
                text = f"no acknowledgement in {self.limits.timeout:g} s; {fate}" + (f": {why}" if why else "")
                self._settle(lane, Settled(batch, error=RequestTimeout(text)))
            self._resume(lane)

    def fail_all(self, error: KrappyError) -> None:
        """Fails every batch with this error."""
        for lane in self._lanes.values():
            for batch in list(lane.batches()):
                lane.renew |= batch.sequence >= 0
                self._settle(lane, Settled(batch, error=error))
            lane.halted = False

    def close(self) -> None:
        """Fails every batch. Those that were sent may or may not be stored."""
        for lane in self._lanes.values():
            for batch in list(lane.batches()):
                when = "sent" if batch.sequence < 0 else "acknowledged; it may have been stored"
                self._settle(
                    lane, Settled(batch, error=ConnectionLost(f"the producer was closed before this was {when}"))
                )

    def collect(self) -> list[Settled]:
        """The batches settled since the last call. The caller tells their tickets."""
        settled, self._settled = self._settled, []
        return settled

    def _resume(self, lane: Lane) -> None:
        if lane.halted and all(batch.back for batch in lane.sent):
            lane.recall()

    def _fail(self, lane: Lane, batch: LaneBatch, error: KrappyError) -> None:
        """Fails a batch that was refused. Of several conditions, fails those that did not hold, and sends the others
        again."""
        wrong = mismatches(error, len(batch)) if batch.expects is not None and len(batch) > 1 else {}
        if not wrong:
            self._settle(lane, Settled(batch, error=error))
            return
        failed = [Settled(batch.only([row]), error=wrong[row]) for row in sorted(wrong)]
        rest = batch.only(row for row in range(len(batch)) if row not in wrong)
        rest.tickets += [ticket for ticket in batch.tickets if not ticket[2]]
        batch.tickets.clear()
        self._settle(lane, Settled(batch, error=error))
        self._settled += failed
        if rest.values:
            self.buffered += rest.size
            lane.ready.appendleft(rest)
        else:
            self._settled.append(Settled(rest, error=error))

    def _settle(self, lane: Lane, settled: Settled) -> None:
        batch = settled.batch
        batch.settled = True
        self.buffered -= batch.size
        lane.remove(batch)
        self._settled.append(settled)


def _ends(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], headers: Sequence[Headers] | None
) -> list[int]:
    """Item `i`: the bytes of all rows before row `i`; the last item is the sum of all."""
    try:
        sizes: Iterable[int] = map(len, values)  # type: ignore[arg-type]
        if keys is not None:
            sizes = map(add, sizes, map(len, keys))  # type: ignore[arg-type]
        ends = list(accumulate(sizes, initial=0))
    except TypeError:  # a None among them; most columns have none, so checking each first would double the cost
        sizes = (len(value or b"") for value in values)
        if keys is not None:
            sizes = map(add, sizes, (len(key or b"") for key in keys))
        ends = list(accumulate(sizes, initial=0))
    if headers is not None:
        more = (sum(10 + 3 * len(name) + len(value or b"") for name, value in each) for each in headers)
        ends = list(map(add, ends, accumulate(more, initial=0)))
    return ends
