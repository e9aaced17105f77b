"""Looks exact keys of a table up when the task runs, without a scan.

The broker knows in which partition a key is. If the options name partitions, each of them is asked, so that a lookup
gives the same rows as a scan with a filter.
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
    """The rows of `keys` in the topics of `now`. Raises ViewDisabled, UnknownTopic, UnknownPartition."""
    from krappy.spark import by_key

    for topic in now.ids:
        places: Sequence[int | None] = now.named(topic) or [None]
        for partition in places:
            yield from by_key.rows(connected.table(topic), keys, partition, schema, tombstones)
