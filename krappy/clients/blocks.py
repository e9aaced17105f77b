"""Rows of a table or a log as columns in Arrow's memory layout: what `krappy.arrow_layout` describes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from krappy import arrow_layout
from krappy.arrow_layout import Binary, HeaderLists
from krappy.clients import events
from krappy.errors import InvalidRequest, ProtocolError
from krappy.types import Headers
from krappy.wire import messages

COLUMNS = ("key", "value", "offset", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Rows of one partition. A column is None when it was not asked for; `headers` also when no row has any.

    With pyarrow, and without work for each row:

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
    size: int = field(default=0, compare=False)  # bytes of all buffers

    def __len__(self) -> int:
        return self.rows

    def lists(self) -> dict[str, list[Any]]:
        """The columns as Python values, under the names they are asked for by: for small results, and for a look."""
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


def check_columns(columns: Collection[str]) -> list[str]:
    """Raises InvalidRequest."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or isinstance(columns, str):
        raise InvalidRequest(f"columns={columns!r}: give some of {', '.join(COLUMNS)}", field="columns")
    return list(dict.fromkeys(columns))


def of_answer(partition: int, read: messages.SnapshotRead) -> ColumnBlock:
    """Raises ProtocolError when the sizes of its buffers do not go together."""
    rows = read.rows
    try:
        keys, values = _binary(read.keys, rows), _binary(read.values, rows)
        headers = None
        if read.headers is not None:
            offsets, names, told = read.headers
            count = int.from_bytes(offsets[-4:], "little")
            arrow_layout.check_offsets(offsets, rows, count)
            named, held = _binary(names, count), _binary(told, count)
            assert named is not None
            assert held is not None
            headers = HeaderLists(offsets, named, held)
        return _block(
            partition, rows, keys, values, _numbers(read.offsets, rows), _numbers(read.timestamps, rows), headers
        )
    except ValueError as error:
        raise ProtocolError(f"a block of columns that is none: {error}") from None


def of_events(partition: int, batches: Sequence[events.EventBatch], wanted: Collection[str]) -> ColumnBlock:
    """Events as one block."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    headers: list[Headers] = []
    told = any(batch.headers is not None for batch in batches)
    for batch in batches:
        keys += batch.keys
        values += batch.values
        offsets += batch.offsets
        timestamps += batch.timestamps
        if told:
            headers += batch.headers or [()] * len(batch)
    return _block(
        partition,
        len(values),
        arrow_layout.binary(keys) if "key" in wanted else None,
        arrow_layout.binary(values) if "value" in wanted else None,
        arrow_layout.int64s(offsets) if "offset" in wanted else None,
        arrow_layout.int64s(timestamps) if "timestamp" in wanted else None,
        arrow_layout.header_lists(headers) if told and "headers" in wanted else None,
    )


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
    return ColumnBlock(partition, rows, keys, values, offsets, timestamps, headers, size)


def _binary(column: messages.BinaryColumn | None, rows: int) -> Binary | None:
    if column is None:
        return None
    found = Binary(*column)
    arrow_layout.check_binary(found, rows)
    return found


def _numbers(buffer: bytes | None, rows: int) -> bytes | None:
    if buffer is None:
        return None
    if len(buffer) != 8 * rows:
        raise ValueError(f"{len(buffer)} bytes of numbers for {rows} rows")
    return buffer
