"""Rows of a DataFrame on their way to topics: checks their columns, and splits Arrow batches by partition. Pure.

A batch is sorted by partition as Arrow, whole columns at a time, before any row becomes a Python object.

The columns are those of Spark's Kafka sink (key, value, headers, topic, partition), and timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import StructType

from krappy.errors import ConfigError, InvalidRecord
from krappy.spark import hashing
from krappy.types import Headers

_TEXT = (types.BinaryType, types.StringType)
_WHOLE = (types.IntegerType, types.LongType, types.ShortType, types.ByteType)
_KINDS: dict[str, tuple[tuple[type[types.DataType], ...], str]] = {
    "key": (_TEXT, "binary or string"),
    "value": (_TEXT, "binary or string"),
    "headers": ((types.ArrayType,), "array<struct<key:string,value:binary>>"),
    "topic": ((types.StringType,), "string"),
    "partition": (_WHOLE, "int"),
    "timestamp": ((types.TimestampType,), "timestamp"),
}
_READ_ONLY = ("offset", "timestampType", "deleted")  # columns of a read that a write ignores


class OutgoingRows(NamedTuple):
    """Rows for one topic, by columns, as `send_columns` takes them. `partition` None: any; then no row has a key.
    `timestamps`: ms since the epoch."""

    topic: str
    partition: int | None
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None
    timestamps: Sequence[int] | None


@dataclass(frozen=True)
class Outgoing:
    """Which columns of a DataFrame are written. `topic`: that of all rows; None: the column `topic` names it."""

    topic: str | None
    columns: tuple[str, ...]

    def rows(self, batch: pa.RecordBatch, now_ms: int, partitions: Callable[[str], int]) -> Iterator[OutgoingRows]:
        """A batch split by topic and partition, rows in order within each. Rows without a time get `now_ms`.

        `partitions`: from a topic to the number of its partitions. Raises InvalidRecord for a row without a topic, or
        with a header that has no name.
        """
        for topic, partition, part in self._placed(batch, partitions):
            keys = _bytes(part.column("key")) if "key" in self.columns else None
            times = _times(part.column("timestamp"), now_ms) if "timestamp" in self.columns else None
            headers = _headers(part.column("headers")) if "headers" in self.columns else None
            values = _bytes(part.column("value"))
            yield OutgoingRows(topic, partition, keys, values, headers, times)

    def _placed(
        self, batch: pa.RecordBatch, partitions: Callable[[str], int]
    ) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
        for topic, partition, part in self._parts(batch):
            if partition is not None or "key" not in self.columns:
                yield topic, partition, part
            else:
                for place, some in _by_key(part, partitions(topic)):
                    yield topic, place, some

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
        """The batch split by its columns topic and partition."""
        topics = None if self.topic is not None else batch.column("topic")
        partitions = batch.column("partition") if "partition" in self.columns else None
        if partitions is not None and partitions.null_count == len(partitions):
            partitions = None
        if topics is None and partitions is None:
            if batch.num_rows:
                yield self.topic or "", None, batch
            return
        by_place: dict[tuple[str, int | None], list[int]] = {}
        names = [self.topic] * batch.num_rows if topics is None else topics.to_pylist()
        numbers = [None] * batch.num_rows if partitions is None else partitions.to_pylist()
        for row, (name, number) in enumerate(zip(names, numbers, strict=True)):
            if name is None:
                raise InvalidRecord("a row whose column `topic` is null: give each row a topic, or the option topic")
            by_place.setdefault((name, number), []).append(row)
        for (name, number), rows in by_place.items():
            yield name, number, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64()))


def outgoing(schema: StructType, topic: str | None) -> Outgoing:
    """Checks a DataFrame's columns. Raises ConfigError, which says how to change them."""
    names = [field.name for field in schema.fields]
    if "value" not in names:
        raise ConfigError(
            f"the DataFrame has no column `value`, it has {', '.join(names) or 'none'}: select what is to be written "
            "as `value` (binary or string), and what identifies it as `key`"
        )
    for field in schema.fields:
        _check(field)
    if topic is None and "topic" not in names:
        raise ConfigError("where to? Give the option topic, or a column `topic`")
    return Outgoing(topic, tuple(name for name in names if name in _KINDS))


def _check(field: types.StructField) -> None:
    known = _KINDS.get(field.name)
    if known is None:
        if field.name in _READ_ONLY:
            return
        raise ConfigError(
            f"column `{field.name}` has no place in an event: there are {', '.join(_KINDS)}. Drop it, or make it part "
            "of value, as with to_json(struct(*))"
        )
    kinds, said = known
    found = field.dataType
    good = isinstance(found, kinds) and (field.name != "headers" or _are_headers(found))
    if not good:
        hint = f"cast it: col('{field.name}').cast('{said.split(' or ')[-1]}')"
        if field.name in ("key", "value") and isinstance(found, types.StructType | types.MapType | types.ArrayType):
            hint = f"make it one, as with to_json({field.name})"
        raise ConfigError(f"column `{field.name}` is {found.simpleString()}, and has to be {said}: {hint}")


def _are_headers(kind: types.DataType) -> bool:
    item = kind.elementType if isinstance(kind, types.ArrayType) else None
    if not isinstance(item, types.StructType) or item.names != ["key", "value"]:
        return False
    key, value = item.fields
    return isinstance(key.dataType, types.StringType) and isinstance(value.dataType, _TEXT)


def _by_key(batch: pa.RecordBatch, count: int) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The batch split by the partitions that its keys' murmur2 names; None for rows without a key."""
    if count == 1:
        yield 0, batch
        return
    keys = batch.column("key").cast(pa.binary())
    if keys.null_count:
        import pyarrow.compute as pc

        there = keys.is_valid()
        yield None, batch.filter(pc.invert(there))
        batch, keys = batch.filter(there), keys.filter(there)
    numbers = hashing.partitions(keys, count)
    sizes = np.bincount(numbers, minlength=0)
    if np.count_nonzero(sizes) > 1:
        batch = batch.take(pa.array(np.argsort(numbers.astype(np.min_scalar_type(count)), kind="stable")))
    first = 0
    for place in np.flatnonzero(sizes).tolist():
        size = int(sizes[place])
        yield place, batch.slice(first, size)
        first += size


def _bytes(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _times(column: pa.Array, now_ms: int) -> list[int]:
    import pyarrow.compute as pc

    ms = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    found: list[int] = ms.fill_null(now_ms).to_pylist()
    return found


def _headers(column: pa.Array) -> list[Headers | None] | None:
    if column.null_count == len(column):
        return None
    return [None if some is None else tuple(map(_header, some)) for some in column.to_pylist()]


def _header(given: Any) -> tuple[str, bytes | None]:
    if given is None or given["key"] is None:
        raise InvalidRecord("a row with a header that has no key: every element of `headers` needs a name")
    value = given["value"]
    return given["key"], value.encode() if isinstance(value, str) else value
