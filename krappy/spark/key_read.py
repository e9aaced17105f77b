"""Exact keys of a table, as they are when the task runs: asked for, not scanned.

The broker knows where a key is to be looked for. Where partitions are named each of them is asked, so that a lookup
gives the rows that a scan with a filter gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from krappy.blocking import Client
from krappy.spark.logs import Logs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def read(
    connected: Client, keys: Sequence[bytes], now: Logs, schema: StructType, tombstones: bool
) -> Iterator[pa.RecordBatch]:
    """The entries of keys. Raises ViewDisabled, UnknownTopic, UnknownPartition."""
    from krappy.spark import by_key

    for topic in now.ids:
        places: Sequence[int | None] = now.named(topic) or [None]
        for partition in places:
            yield from by_key.rows(connected.table(topic), keys, partition, schema, tombstones)
