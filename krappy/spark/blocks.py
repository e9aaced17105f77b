"""Makes Arrow record batches of column blocks, with exactly the schema that Spark compares them with."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from krappy.arrow_layout import Binary, HeaderLists
from krappy.blocking import ColumnBlock
from krappy.errors import InvalidRecord
from krappy.spark.schema import CREATE_TIME

FETCHED = {  # by column: the columns that a broker has to send for it
    "key": ["key"],
    "value": ["value"],
    "deleted": ["value"],
    "offset": ["offset"],
    "timestamp": ["timestamp", "offset"],  # a log line about an unusable timestamp names its offset
    "headers": ["headers"],
}
EARLIEST_MS, LATEST_MS = -62_135_510_400_000, 253_402_214_400_000  # the years 1 to 9999, less a day for time zones
MOST_TOLD = 100  # a process warns of events without a usable time in at most so many partitions

log = logging.getLogger(__name__)
_told: set[tuple[str, int]] = set()


def fetched(columns: Sequence[str]) -> list[str]:
    """The columns that a broker has to send to make `columns`: the others are known here."""
    return sorted({each for name in columns for each in FETCHED.get(name, ())})


def of_block(
    block: ColumnBlock,
    schema: pa.Schema,
    topic: str,
    timestamp_type: int = CREATE_TIME,
    only: pa.BooleanArray | None = None,
) -> pa.RecordBatch:
    """The columns of `schema`, made of a block that has all of `fetched`; it does nothing row by row.

    `timestamp_type`: for rows of a table, which do not have it; events of a log do. `only`: a flag for each row that
    is wanted; None: all rows. Raises InvalidRecord for a key that is not UTF-8 if the schema has a text key.
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
    """A flag for each key: whether it is deleted. The block must have values."""
    return _binary(block.values, block.rows).is_null()


def text_or_bytes(keys: pa.Array, schema: pa.Schema) -> pa.Array:
    """Keys as text, if the schema has a text key; else as they are. Raises InvalidRecord if one is not UTF-8."""
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
    """Null for times outside of the years 1 to 9999 (nanoseconds mistaken for milliseconds, say), of which neither
    Arrow nor Python could make a row. For each partition with such events, a log line names one."""
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
        "%s-%s offset %s: its timestamp %s ms is not in the years 1 to 9999. It is read as null, and so are %s more in "
        "the same block. Later ones in this partition are not logged",
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
