"""mode=snapshot: takes a snapshot of each table, and returns a row for each partition, with the first offset that is
not in the snapshot. Any number of reads with mode=table may name the snapshot in the option `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from krappy.spark.connections import client
from krappy.spark.held import to_text
from krappy.spark.logs import logs
from krappy.spark.options import Options
from krappy.spark.table_read import SPLITS, taken

Row = tuple[str, str, int, int]  # text of the snapshot, topic, partition, offset


class Taken(InputPartition):
    """The rows. They are made when the query is planned, so every execution of it returns the same snapshot."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(None)
        self.rows = rows


class SnapshotReader(DataSourceReader):
    """Takes the snapshots when a query is planned; its one task returns the rows."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Raises UnknownTopic, UnknownPartition, ViewDisabled, Overloaded when the broker holds too many."""
        options = self._options
        assert options.topics is not None
        connected = client(options.broker)
        rows: list[Row] = []
        now = logs(connected, options.topics)
        for topic in now.ids:
            splits = options.min_partitions or max(SPLITS, len(now.of(topic)) + 1)
            held = taken(connected, now, topic, splits, options.snapshot_ttl, options.keys)
            text = to_text(held)
            rows += [(text, topic, partition, offset) for partition, offset in sorted(held.offsets.items())]
        return [Taken(rows)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, Taken)
        return iter(partition.rows)
