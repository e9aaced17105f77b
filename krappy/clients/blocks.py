"""Rows of a table or a log as columns in Arrow's memory layout, as `krappy.arrow_layout` describes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from krappy import arrow_layout
from krappy.arrow_layout import Binary, HeaderLists
from krappy.errors import InvalidRequest, ProtocolError
from krappy.types import Headers
from krappy.wire import messages

if TYPE_CHECKING:
    from krappy.clients.events import EventBatch

COLUMNS = ("key", "value", "offset", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Rows of one partition, as buffers; a lookup's rows may be of several, which `partitions` then names row by row.

    A column is None when it was not asked for; `headers` is None also when no row has any.

    To make pyarrow arrays, without work for each row:

        offsets, data, validity = block.keys
        pa.Array.from_buffers(pa.binary(), block.rows, [validity and pa.py_buffer(validity), pa.py_buffer(offsets), …])
    """

    partition: int
    rows: int
    keys: Binary | None = None
    values: Binary | None = None  # null: a tombstone
    offsets: bytes | None = None  # int64
    timestamps: bytes | None = None  # int64, ms since the epoch; -1: the producer gave none
    headers: HeaderLists | None = None
    found: bytes | None = None  # lookups: a validity bitmap, 1: the key was found; None: every key was found
    partitions: bytes | None = None  # lookups in several partitions: int32
    append_times: bytes | None = None  # logs: a bitmap, 1: the timestamp is the broker's; None: no row's is
    size: int = field(default=0, compare=False)  # bytes of all buffers

    def __len__(self) -> int:
        return self.rows

    def lists(self) -> dict[str, list[Any]]:
        """The columns as lists of Python values, by the names in COLUMNS. For small results."""
        found: dict[str, list[Any]] = {}
        for name, column in (("key", self.keys), ("value", self.values)):
            if column is not None:
                found[name] = arrow_layout.items(column)
        for name, numbers in (("offset", self.offsets), ("timestamp", self.timestamps)):
            if numbers is not None:
                found[name] = arrow_layout.numbers(numbers)
        if self.headers is not None:
            found["headers"] = arrow_layout.headers(self.headers)
        return found

    def there(self) -> list[bool]:
        """For lookups: whether each key was found; deleted keys count as found."""
        return [True] * self.rows if self.found is None else arrow_layout.flags(self.found, self.rows)


def check_columns(columns: Collection[str]) -> list[str]:
    """The names without duplicates. Raises InvalidRequest for a name that is not in COLUMNS."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or isinstance(columns, str):
        raise InvalidRequest(f"columns={columns!r}: give some of {', '.join(COLUMNS)}", field="columns")
    return list(dict.fromkeys(columns))


def of_answer(partition: int, read: messages.SnapshotRead | messages.ColumnsGot) -> ColumnBlock:
    """The block in a broker's answer. Raises ProtocolError when the sizes of its buffers do not fit together."""
    rows = read.rows
    try:
        keys = _binary(read.keys, rows) if isinstance(read, messages.SnapshotRead) else None
        block = _block(
            partition,
            rows,
            keys,
            _binary(read.values, rows),
            _numbers(read.offsets, rows),
            _numbers(read.timestamps, rows),
            _headers(read.headers, rows),
        )
        if isinstance(read, messages.SnapshotRead):
            return block
        if read.found is not None and len(read.found) != (rows + 7) // 8:
            raise ValueError(f"{len(read.found)} bytes that say which of {rows} rows were found")
        return replace(block, found=read.found, partitions=_numbers(read.partitions, rows, 4))
    except ValueError as error:
        raise ProtocolError(f"a bad block of columns: {error}") from None


def merged(rows: int, parts: Sequence[tuple[list[int], ColumnBlock]]) -> ColumnBlock:
    """One block with the answers of several lookups. `parts`: each block, with the numbers that its rows get in the
    merged one."""
    if len(parts) == 1 and parts[0][0] == list(range(rows)):
        return parts[0][1]
    columns: dict[str, list[Any]] = {}
    there, partitions = [False] * rows, [0] * rows
    for numbers, block in parts:
        its = block.partitions
        for name, column in block.lists().items():
            into = columns.setdefault(name, [() if name == "headers" else None] * rows)
            for number, value in zip(numbers, column, strict=True):
                into[number] = value
        at = [block.partition] * len(block) if its is None else arrow_layout.numbers32(its)
        for number, was, index in zip(numbers, block.there(), at, strict=True):
            there[number], partitions[number] = was, index
    keys, values, offsets, timestamps, headers = map(columns.get, COLUMNS)
    block = _block(
        0,
        rows,
        None if keys is None else arrow_layout.binary(keys),
        None if values is None else arrow_layout.binary(values),
        None if offsets is None else arrow_layout.int64s(offsets),
        None if timestamps is None else arrow_layout.int64s(timestamps),
        None if headers is None else arrow_layout.header_lists(headers),
    )
    found = None if all(there) else arrow_layout.bits(bytes(there))
    return replace(block, found=found, partitions=arrow_layout.int32s(partitions))


def _headers(column: messages.HeadersColumn | None, rows: int) -> HeaderLists | None:
    if column is None:
        return None
    offsets, names, values = column
    count = int.from_bytes(offsets[-4:], "little")
    arrow_layout.check_offsets(offsets, rows, count)
    lists = HeaderLists(offsets, Binary(*names), Binary(*values))
    arrow_layout.check_binary(lists.names, count)
    arrow_layout.check_binary(lists.values, count)
    return lists


def of_events(partition: int, batches: Sequence[EventBatch], wanted: Collection[str]) -> ColumnBlock:
    """Events as one block with the `wanted` columns (names in COLUMNS)."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    headers: list[Headers] = []
    told = any(batch.headers is not None for batch in batches)
    by_broker = b"".join([bytes([batch.append_time]) * len(batch) for batch in batches])
    for batch in batches:
        keys += batch.keys
        values += batch.values
        offsets += batch.offsets
        timestamps += batch.timestamps
        if told:
            headers += batch.headers or [()] * len(batch)
    block = _block(
        partition,
        len(values),
        arrow_layout.binary(keys) if "key" in wanted else None,
        arrow_layout.binary(values) if "value" in wanted else None,
        arrow_layout.int64s(offsets) if "offset" in wanted else None,
        arrow_layout.int64s(timestamps) if "timestamp" in wanted else None,
        arrow_layout.header_lists(headers) if told and "headers" in wanted else None,
    )
    return replace(block, append_times=arrow_layout.bits(by_broker)) if any(by_broker) else block


def _block(
    partition: int,
    rows: int,
    keys: Binary | None,
    values: Binary | None,
    offsets: bytes | None,
    timestamps: bytes | None,
    headers: HeaderLists | None,
) -> ColumnBlock:
    binaries = [column for column in (keys, values, *((headers.names, headers.values) if headers else ())) if column]
    plain = [offsets, timestamps, headers and headers.offsets]
    buffers = [buffer for column in binaries for buffer in column] + plain
    size = sum(len(buffer) for buffer in buffers if buffer is not None)
    return ColumnBlock(partition, rows, keys, values, offsets, timestamps, headers, size=size)


def _binary(column: messages.BinaryColumn | None, rows: int) -> Binary | None:
    if column is None:
        return None
    found = Binary(*column)
    arrow_layout.check_binary(found, rows)
    return found


def _numbers(buffer: bytes | None, rows: int, width: int = 8) -> bytes | None:
    if buffer is None:
        return None
    if len(buffer) != width * rows:
        raise ValueError(f"{len(buffer)} bytes of numbers for {rows} rows")
    return buffer
