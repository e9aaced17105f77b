"""Batches on their way into a partition's log, each from its publish until its acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from krappy.broker.partition import large
from krappy.broker.partition.hashing import look_for_strays
from krappy.core.admission import Admitted
from krappy.core.refused_batches import NextBatch, RefusedByPartitions, comes_again
from krappy.errors import InvalidRecord, KrappyError, RecordTooLarge
from krappy.partitioner import any_elsewhere
from krappy.ports import StoredAt, TransactionalSender, TransactionEnd
from krappy.ports.audit import whose
from krappy.records import batch as batches
from krappy.records.batch import HEADER_SIZE, LENGTH_END, MAGIC, RECORD_COST, BatchHeader, Columns
from krappy.types import Headers, Record
from krappy.waiting import Later

# For single records that are no batch yet: the header of one record, without a producer.
NO_BATCH = BatchHeader(0, HEADER_SIZE - LENGTH_END, -1, MAGIC, 0, 0, 0, 0, 0, -1, -1, -1, 1)


class RefusedHere(NamedTuple):
    """What was refused for now of the batches that came to one partition by one connection."""

    batches: RefusedByPartitions
    topic: str
    partition: int

    def note(self, header: BatchHeader, error: KrappyError) -> None:
        self.batches.note((header.producer_id, self.topic, self.partition), header, error.copy(), trio.current_time())

    def check(self, header: BatchHeader, following: NextBatch | None) -> None:
        """Raises the error of an earlier refused batch, if this batch must be refused for that, too."""
        named = header.producer_id, self.topic, self.partition
        error = self.batches.find(named, header, following, trio.current_time())
        if error is not None:
            raise error.copy()


class Pending:
    """One record batch. `offset`: its base offset, once a drain has accepted it."""

    __slots__ = (
        *(
            "admission",
            "columns",
            "cost",
            "data",
            "elsewhere",
            "end_told",
            "epoch",
            "expect",
            "header",
            "large",
            "laters",
        ),
        *("offset", "own", "owner", "refused", "sender", "size", "wants_one", "work"),
    )

    def __init__(
        self,
        header: BatchHeader,
        data: bytes | memoryview,
        expect: Sequence[tuple[int, int]] | None = None,
        *,
        own: bool = False,
        wants_one: bool = False,
        epoch: int | None = None,
        sender: TransactionalSender | None = None,
        end_told: TransactionEnd | None = None,
        refused: RefusedHere | None = None,
    ) -> None:
        """`epoch`: the only leader epoch in which it may be appended; None: any. `sender`: who sends a batch of a
        transaction. `end_told`: what a marker stands for; None: this broker alone has decided it. `refused`: what was
        refused of the connection that it came by."""
        self.header = header
        self.data = data
        self.size = len(data)  # bytes, about
        self.expect = expect  # its conditions
        self.epoch = epoch
        self.sender = sender
        self.end_told = end_told
        self.refused = refused
        self.own = own  # it is the broker's own: a marker, or part of its own transaction
        self.wants_one = wants_one  # it is to be answered once this broker has it on its disk
        self.columns: Columns | None = None
        self.elsewhere: tuple[int, bool] | None = None  # (for how many partitions, what `has_elsewhere` gave)
        self.cost = 0  # bytes of memory that the columns take
        self.work = self.size  # what it takes to write and to apply it, in bytes: see `work`
        self.admission: Callable[..., Admitted] | None = None  # decodes and checks the records; None: done
        self.large = False  # the records are too large to decode on the event loop
        self.owner = ""  # whose turns their decoding takes
        self.laters: list[Later[StoredAt]] = [Later()]
        self.offset = -1

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.header.count

    @property
    def alone(self) -> bool:
        """Whether it is answered once this broker has it on its disk. A batch with conditions is not: they hold only
        for what is committed."""
        return self.wants_one and not self.expect

    @property
    def records(self) -> Columns:
        """Its records, decoded. Raises CorruptBatch."""
        return self.columns or batches.decode(self.data)

    @property
    def held_keys(self) -> Sequence[bytes | None] | None:
        """The keys of its records, if they are in memory."""
        return None if self.columns is None else self.columns.keys

    async def has_elsewhere(self, partitions: int, index: int) -> bool:
        """Whether one of its keys belongs to another partition than `index`. Large batches are decoded in a thread.
        Raises CorruptBatch."""

        def look(columns: Columns) -> bool:
            return any_elsewhere([key for key in columns.keys if key is not None], partitions, index)

        if self.elsewhere is None or self.elsewhere[0] != partitions:
            keys = self.held_keys
            if keys is None:
                found = await large.looked_at(memoryview(self.data), look)
            else:
                found = await look_for_strays(keys, partitions, index)
            self.elsewhere = partitions, found
        return self.elsewhere[1]

    def admit_later(self, admission: Callable[..., Admitted]) -> None:
        """Leaves its admission to its drain."""
        self.admission, self.large, self.owner = admission, True, whose()

    def admit(self, admitted: Admitted) -> None:
        """Takes the result of its admission. Raises InvalidRecord for conditions that do not fit."""
        self.admission = None
        self.header, self.data, self.columns, self.cost, by_header, key_bytes = admitted
        self.size = len(self.data)
        self.work = max(self.size, key_bytes)
        if by_header:
            self.expect = by_header
        elif self.expect:
            if len(self.expect) > self.header.count:
                raise InvalidRecord(f"{len(self.expect)} conditions on {self.header.count} records")
            keys = self.records.keys
            for index, _ in self.expect:
                if index >= len(keys) or keys[index] is None:
                    raise InvalidRecord(f"a condition on record {index}, which is not there or has no key")

    def needs(self, codec: int) -> bool:
        """Whether its records must be recompressed for a topic with this codec."""
        return self.header.codec != codec and not self.header.is_control

    def recompress(self, codec: int, limit: int, largest: int) -> None:
        """Recompresses its records by `codec`. `limit`: bytes that they may take uncompressed. Raises RecordTooLarge if
        the batch then has more than `largest` bytes."""
        data = batches.recompress(self.data, codec, limit=limit)
        if len(data) > largest:
            text = f"a batch of {len(data)} bytes, compressed by compression.type; max.message.bytes is {largest}"
            raise RecordTooLarge(text, limit=largest)
        self.header, self.data, self.size = batches.read_header(data), data, len(data)

    def make(self, codec: int) -> None:
        """Makes the batch, if it has only single records so far."""

    def stamp(self, now_ms: int) -> None:
        """Gives all its records the broker's time."""
        self.data = batches.restamp_time(self.data, now_ms)
        self.header = batches.read_header(self.data)
        if self.columns is not None:
            offsets, _, keys, values, headers = self.columns
            self.columns = Columns(offsets, [self.header.max_timestamp] * self.header.count, keys, values, headers)

    def resolve(self) -> None:
        self.laters[0].resolve(StoredAt(self.offset, self.header.max_timestamp))

    def reject(self, error: KrappyError) -> None:
        """Refuses it. If its producer is to send it again, the producer's next batches are refused until it has
        come."""
        self.note_refusal(error)
        for later in self.laters:
            later.reject(error)

    def note_refusal(self, error: KrappyError) -> None:
        """Notes that it will be refused with this error."""
        if self.refused is not None and comes_again(error):
            self.refused.note(self.header, error)

    def check_refused(self, following: NextBatch | None) -> None:
        """Raises the error of an earlier batch of its producer that was refused and is to come again. `following`: the
        batch that is expected next; None: not known."""
        if self.refused is not None:
            self.refused.check(self.header, following)


class Singles(Pending):
    """Single records. The drain makes one batch of them."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        super().__init__(NO_BATCH, b"")
        self.laters.clear()
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}

    def add(self, record: Record, now: int) -> Later[StoredAt]:
        self.elsewhere = None  # it may have been in a drain that had no room for it
        if record.headers:
            self.headers[len(self.keys)] = record.headers
        self.keys.append(record.key)
        self.values.append(record.value)
        self.timestamps.append(now if record.timestamp is None else record.timestamp)
        self.size += record_size(record)
        later: Later[StoredAt] = Later()
        self.laters.append(later)
        return later

    @property
    def held_keys(self) -> Sequence[bytes | None]:
        return self.keys

    def needs(self, codec: int) -> bool:
        return False

    def make(self, codec: int) -> None:
        headers = [self.headers.get(index, ()) for index in range(len(self.keys))] if self.headers else None
        self.data = batches.encode(self.keys, self.values, timestamps=self.timestamps, headers=headers, codec=codec)
        self.header = batches.read_header(self.data)
        self.columns = Columns(range(len(self.keys)), self.timestamps, self.keys, self.values, headers)
        self.cost = self.size + len(self.keys) * RECORD_COST
        self.work = work(self.header.size, self.keys)

    def resolve(self) -> None:
        assert self.columns is not None
        for index, (later, timestamp) in enumerate(zip(self.laters, self.columns.timestamps, strict=True)):
            later.resolve(StoredAt(self.offset + index, timestamp))


def work(size: int, keys: Sequence[bytes | None]) -> int:
    """The work of applying a batch of `size` bytes with these keys, in bytes. Keys are hashed uncompressed, so they
    count so."""
    return max(size, sum(map(len, filter(None, keys))))


def record_size(record: Record) -> int:
    """The most bytes that a record takes in a batch."""
    size = 40 + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 10 + len(name) * 4 + len(value or b"")
    return size
