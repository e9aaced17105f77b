"""mode=log: reads the events of a log between offsets, a range of offsets for each task, as column blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from krappy.blocking import Client, ColumnBlock
from krappy.errors import OffsetOutOfRange, UnknownTopic
from krappy.spark import ranges
from krappy.spark.connections import client
from krappy.spark.options import Options
from krappy.spark.ranges import OffsetRange
from krappy.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class LogPartition(InputPartition):
    """What one task reads: one range, or with a limit all ranges one after the other."""

    def __init__(self, parts: Sequence[OffsetRange]) -> None:
        super().__init__(list(parts))
        self.parts = list(parts)


class LogReader(DataSourceReader):
    """Plans ranges of offsets in the driver, and reads them in tasks."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Raises what `ranges.resolve` raises."""
        options = self._options
        found = ranges.resolve(client(options.broker), options)
        if options.limit is not None or not found:
            return [LogPartition(found)]
        return [LogPartition([each]) for each in ranges.split(found, options.min_partitions, options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return read(partition.parts, self._schema, self._options)


def read(parts: Sequence[OffsetRange], schema: StructType, options: Options) -> Iterator[pa.RecordBatch]:
    """The events of ranges of offsets, read in a task.

    With failOnDataLoss it raises OffsetOutOfRange for offsets that are gone, and UnknownTopic for a topic that is;
    without, it skips them.
    """
    from krappy.spark import blocks

    connected, shape, room = client(options.broker), arrow_schema(schema), options.limit
    wanted = blocks.fetched(shape.names)
    for part in parts:
        for block in _blocks(connected, part, wanted, options.fail_on_data_loss):
            batch = blocks.of_block(block, shape, part.topic)
            if room is not None:
                batch = batch[:room]
                room -= len(batch)
            yield batch
            if room == 0:
                return


def _blocks(connected: Client, part: OffsetRange, wanted: Sequence[str], fail: bool) -> Iterator[ColumnBlock]:
    """Retention, or the deletion of the topic, may overtake a read: it raises then if `fail`, else skips the events."""
    start, (topic, partition, _, end, id, _) = part.start, part
    while start < end:
        try:
            for block in connected.read_log(topic, partition, start, end, columns=[*wanted, "offset"], topic_id=id):
                yield block
                start = last_offset(block) + 1
        except UnknownTopic as error:
            if fail:
                raise
            log.warning("%s-%s from offset %s on is skipped (failOnDataLoss=false): %s", topic, partition, start, error)
            return
        except OffsetOutOfRange as error:
            if fail or error.details["start"] <= start:
                raise
            start = error.details["start"]
        else:
            return


def last_offset(block: ColumnBlock) -> int:
    """The offset of the last event of a block, which must have offsets and events."""
    assert block.offsets is not None
    return int.from_bytes(block.offsets[-8:], "little")
