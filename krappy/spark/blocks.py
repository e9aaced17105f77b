"""Blocks of columns as Arrow record batches in exactly the schema that Spark compares them with."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from krappy.arrow_layout import Binary, HeaderLists
from krappy.blocking import ColumnBlock
from krappy.errors import InvalidRecord
from krappy.spark.schema import CREATE_TIME

FETCHED = {  # what a broker has to send for a column
    "key": ["key"],
    "value": ["value"],
    "deleted": ["value"],
    "offset": ["offset"],
    "timestamp": ["timestamp", "offset"],  # a strange timestamp is told of with its offset
    "headers": ["headers"],
}
EARLIEST_MS, LATEST_MS = -62_135_510_400_000, 253_402_214_400_000  # a day within the years 1 to 9999: for time zones
MOST_TOLD = 100  # partitions of which a process tells that there are events without a usable time

log = logging.getLogger(__name__)
_told: set[tuple[str, int]] = set()


def fetched(columns: Sequence[str]) -> list[str]:
    """What a broker has to send for these columns: the others are known here."""
    return sorted({each for name in columns for each in FETCHED.get(name, ())})


def of_block(
    block: ColumnBlock,
    schema: pa.Schema,
    topic: str,
    timestamp_type: int = CREATE_TIME,
    only: pa.BooleanArray | None = None,
) -> pa.RecordBatch:
    """The columns of `schema`, made of a block that has all of `fetched`; no work for each row.

    `timestamp_type`: of a table's rows, which do not tell; an event of a log does. `only`: rows that are wanted; None:
    all. Raises InvalidRecord for a key that is not UTF-8 where the schema has text.
    """
    made = {
        "key": lambda: _binary(block.keys, block.rows),
        "value": lambda: _binary(block.values, block.rows),
        "deleted": lambda: deleted(block),
        "topic": lambda: pa.repeat(topic, block.rows),
        "partition": lambda: _partitions(block),
        "offset": lambda: _numbers(block.offsets, block.rows, pa.int64()),
        "timestamp": lambda: _times(block, topic),
        "timestampType": lambda: _timestamp_types(block, timestamp_type),
        "headers": lambda: _headers(block.headers, block.rows, schema.field("headers").type),
    }
    columns = {name: made[name]() for name in schema.names}
    if only is not None:
        columns = {name: column.filter(only) for name, column in columns.items()}
    if "key" in columns:
        columns["key"] = text_or_bytes(columns["key"], schema)
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(columns.values(), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def deleted(block: ColumnBlock) -> pa.BooleanArray:
    """Which keys are. The values must have been asked for."""
    return _binary(block.values, block.rows).is_null()


def text_or_bytes(keys: pa.Array, schema: pa.Schema) -> pa.Array:
    """Keys as text, where the schema has it. Raises InvalidRecord."""
    if schema.field("key").type != pa.string():
        return keys
    try:
        return keys.cast(pa.string())  # checks that it is UTF-8
    except pa.ArrowInvalid:
        raise InvalidRecord("there are keys that are not UTF-8: read them with keyType=binary") from None


def _partitions(block: ColumnBlock) -> pa.Array:
    if block.partitions is None:
        return pa.repeat(pa.scalar(block.partition, pa.int32()), block.rows)
    return _numbers(block.partitions, block.rows, pa.int32())


def _binary(column: Binary | None, rows: int) -> pa.Array:
    assert column is not None
    offsets, data, validity = column
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _numbers(buffer: bytes | None, rows: int, kind: pa.DataType) -> pa.Array:
    assert buffer is not None
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(buffer)])


def _times(block: ColumnBlock, topic: str) -> pa.Array:
    """Null where no calendar has the time, as of nanoseconds that were taken for milliseconds: with them neither Arrow
    nor Python could make a row. Of each partition that has such events a log line names one."""
    ms = _numbers(block.timestamps, block.rows, pa.int64())
    usable = pc.and_(pc.greater_equal(ms, EARLIEST_MS), pc.less_equal(ms, LATEST_MS))
    if usable.true_count < block.rows:
        first = pc.index(usable, False).as_py()
        _tell(block, topic, first, ms[first].as_py(), block.rows - usable.true_count)
        ms = pc.if_else(usable, ms, pa.scalar(None, pa.int64()))
    return ms.cast(pa.timestamp("ms", "UTC"))


def _tell(block: ColumnBlock, topic: str, row: int, ms: int, count: int) -> None:
    place = topic, block.partition
    if place in _told or len(_told) >= MOST_TOLD:
        return
    _told.add(place)
    offset = "?" if block.offsets is None else _numbers(block.offsets, block.rows, pa.int64())[row].as_py()
    log.warning(
        "%s-%s offset %s: its timestamp %s ms is in no calendar; it is read as null, and so are %s more of this part. "
        "Others of this partition are not told of",
        *(topic, block.partition, offset, ms, count - 1),
    )


def _timestamp_types(block: ColumnBlock, otherwise: int) -> pa.Array:
    if block.append_times is None:
        return pa.repeat(pa.scalar(otherwise, pa.int32()), block.rows)
    flags = pa.Array.from_buffers(pa.bool_(), block.rows, [None, pa.py_buffer(block.append_times)])
    return flags.cast(pa.int32())  # CREATE_TIME, LOG_APPEND_TIME


def _headers(column: HeaderLists | None, rows: int, kind: pa.DataType) -> pa.Array:
    """Lists of headers; null for an event without any, as in Spark's Kafka source."""
    if column is None:
        return pa.nulls(rows, kind)
    bounds = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(column.offsets)])
    count = bounds[-1].as_py()
    names = _binary(column.names, count).cast(pa.string())
    pairs = pa.StructArray.from_arrays([names, _binary(column.values, count)], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(bounds, pairs, type=kind, mask=pc.equal(bounds[1:], bounds[:-1]))
