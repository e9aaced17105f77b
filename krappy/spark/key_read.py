"""Exact keys of a table, as they are when the task runs: asked of every partition, not scanned.

A key is looked for in all partitions that are read, not only in the one that its hash names: a lookup gives the rows
that a scan with a filter gives, also where producers choose partitions themselves or partitions were added since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from krappy.blocking import Client
from krappy.spark.schema import arrow_schema
from krappy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

AT_ONCE = 5_000  # keys of a request, and of a batch


def read(
    connected: Client, keys: Sequence[bytes], places: Sequence[TopicPartition], schema: StructType, tombstones: bool
) -> Iterator[pa.RecordBatch]:
    """The entries of keys. Raises ViewDisabled, UnknownTopic, UnknownPartition."""
    from krappy.spark import blocks

    shape = arrow_schema(schema)
    for first in range(0, len(keys), AT_ONCE):
        some = keys[first : first + AT_ONCE]
        for place in places:
            found = connected.table(place.topic).get_many(some, partition=place.partition)
            entries = [entry for entry in found if entry is not None and (tombstones or not entry.deleted)]
            if entries:
                yield blocks.of_entries(entries, shape, place.topic)
