"""Batches and records that wait to be appended to a partition, and batches that were accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from krappy.core.admission import Admitted
from krappy.errors import InvalidRecord, KrappyError, RecordTooLarge
from krappy.ports import StoredAt
from krappy.records import batch as batches
from krappy.records.batch import RECORD_COST, BatchHeader, Columns
from krappy.types import Headers, Record
from krappy.waiting import Later


class Publish:
    """One record batch that waits for a drain."""

    __slots__ = ("admission", "columns", "cost", "data", "expect", "header", "large", "later", "own")

    def __init__(
        self,
        header: BatchHeader,
        data: bytes | memoryview,
        columns: Columns | None,
        expect: Sequence[tuple[int, int]] | None,
        later: Later[StoredAt],
        *,
        own: bool = False,
        cost: int = 0,
        admission: Callable[..., Admitted] | None = None,
    ) -> None:
        self.own = own  # it is the broker's own: a marker, or part of its own transaction
        self.cost = cost  # bytes of memory that the columns take
        self.admission = admission  # decodes and checks the records (`admit_records`); None: done
        self.large = admission is not None  # the records are too large to decode on the event loop
        self.header = header
        self.data = data
        self.columns = columns
        self.expect = expect
        self.later = later

    @property
    def size(self) -> int:
        return len(self.data)

    def admit(self, admitted: Admitted) -> None:
        """Takes the result of its admission. Raises InvalidRecord."""
        self.admission = None
        self.expect = demanded(admitted, self.expect)
        self.header, self.data, self.columns, self.cost, _ = admitted

    def needs(self, codec: int) -> bool:
        """Whether its records must be recompressed for a topic with this codec."""
        return self.header.codec != codec and not self.header.is_control

    def recompress(self, codec: int, limit: int, largest: int) -> None:
        """Recompresses its records by `codec`. `limit`: bytes that they may take uncompressed. Raises RecordTooLarge if
        the batch then has more than `largest` bytes."""
        data = batches.recompress(self.data, codec, limit=limit)
        if len(data) > largest:
            text = f"a batch of {len(data)} bytes, as compression.type has it; max.message.bytes is {largest}"
            raise RecordTooLarge(text, limit=largest)
        self.header, self.data = batches.read_header(data), data

    def reject(self, error: KrappyError) -> None:
        self.later.reject(error)


class Loose:
    """Single records that wait for a drain, which makes one batch of them."""

    __slots__ = ("headers", "keys", "laters", "size", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}
        self.laters: list[Later[StoredAt]] = []
        self.size = 0

    @property
    def cost(self) -> int:
        """Bytes of memory that the columns take."""
        return self.size + len(self.keys) * RECORD_COST

    def add(self, record: Record, now: int, later: Later[StoredAt]) -> None:
        if record.headers:
            self.headers[len(self.keys)] = record.headers
        self.keys.append(record.key)
        self.values.append(record.value)
        self.timestamps.append(now if record.timestamp is None else record.timestamp)
        self.laters.append(later)
        self.size += record_size(record)

    def reject(self, error: KrappyError) -> None:
        for later in self.laters:
            later.reject(error)

    def encoded(self, codec: int) -> tuple[bytes, BatchHeader, Columns]:
        headers = [self.headers.get(index, ()) for index in range(len(self.keys))] if self.headers else None
        data = batches.encode(self.keys, self.values, timestamps=self.timestamps, headers=headers, codec=codec)
        columns = Columns(range(len(self.keys)), self.timestamps, self.keys, self.values, headers)
        return data, batches.read_header(data), columns


def record_size(record: Record) -> int:
    """The most bytes that a record takes in a batch."""
    size = 40 + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 10 + len(name) * 4 + len(value or b"")
    return size


def demanded(admitted: Admitted, expect: Sequence[tuple[int, int]] | None) -> Sequence[tuple[int, int]] | None:
    """The conditions on a batch: its own headers', or those given with it. Raises InvalidRecord."""
    if admitted.expect:
        return admitted.expect
    if expect:
        if len(expect) > admitted.header.count:
            raise InvalidRecord(f"{len(expect)} conditions on {admitted.header.count} records")
        keys = (batches.decode(admitted.data) if admitted.columns is None else admitted.columns).keys
        for index, _ in expect:
            if index >= len(keys) or keys[index] is None:
                raise InvalidRecord(f"a condition on record {index}, which is not there or has no key")
    return expect


class Accepted(NamedTuple):
    """A batch that is to be written at `offset`."""

    header: BatchHeader
    data: bytes | memoryview
    columns: Columns | None
    offset: int
    laters: list[Later[StoredAt]]
    timestamps: list[int] | None  # of loose records, one each; None: a batch, with the header's highest
    cost: int = 0  # bytes of memory that the columns take

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.header.count

    def resolve(self) -> None:
        if self.timestamps is None:
            self.laters[0].resolve(StoredAt(self.offset, self.header.max_timestamp))
        else:
            for index, later in enumerate(self.laters):
                later.resolve(StoredAt(self.offset + index, self.timestamps[index]))

    def reject(self, error: KrappyError) -> None:
        for later in self.laters:
            later.reject(error)
