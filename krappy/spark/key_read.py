"""Exact keys of a table, as they are when the task runs: asked of every partition, not scanned.

A key is looked for in all partitions that are read, not only in the one that its hash names: a lookup gives the rows
that a scan with a filter gives, also where producers choose partitions themselves or partitions were added since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from krappy.blocking import Client
from krappy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def read(
    connected: Client, keys: Sequence[bytes], places: Iterable[TopicPartition], schema: StructType, tombstones: bool
) -> Iterator[pa.RecordBatch]:
    """The entries of keys. Raises ViewDisabled, UnknownTopic, UnknownPartition."""
    from krappy.spark import by_key

    for place in places:
        yield from by_key.rows(connected.table(place.topic), keys, place.partition, schema, tombstones)
