"""The first batch of a stream with startingOffsets=snapshot: each topic's table, on one snapshot.

All later batches are the events from the snapshot's offsets on: nothing is missing and nothing comes twice.

The broker holds the snapshot for `snapshotTtl` after it was last read. If it is gone before the first batch is done
(the query was down for long, the broker was restarted, a task stood still), the rest is read from a new snapshot,
without the entries that were changed after the first one: their changes come with the batches that follow. So a
replayed first batch may have fewer rows than the one that failed, but in the end its reader has the same latest values,
and got no event twice. A compacted log makes the same promise. The very same table can't be read again: the view has
the latest values only, and the log may have been compacted since.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from krappy.blocking import Client, ColumnBlock, KeyRange
from krappy.errors import SnapshotGone, UnknownTopic
from krappy.spark.connections import client
from krappy.spark.options import Options
from krappy.spark.schema import CREATE_TIME, LOG_APPEND_TIME, arrow_schema

log = logging.getLogger(__name__)


class FirstPartition(InputPartition):
    """A range of a topic's table. `before`: entries from this offset on are left to later batches."""

    def __init__(self, topic: str, topic_id: str, snapshot: str, part: KeyRange, before: int) -> None:
        super().__init__(None)
        self.topic, self.topic_id = topic, topic_id
        self.snapshot, self.part, self.before = snapshot, part, before


def read(partition: FirstPartition, schema: StructType, options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of a range, read in a task. Raises UnknownTopic if the topic is gone, with failOnDataLoss."""
    from krappy.spark import blocks  # imports pyarrow.compute, which planning does not need

    connected = client(options.broker)
    shape = arrow_schema(schema)
    wanted = sorted({*blocks.fetched(shape.names), "key", "offset"})
    try:
        kind = timestamp_type(connected, partition.topic) if "timestampType" in shape.names else CREATE_TIME
        whole = options.topics is None or options.topics.assigned is None
        for block in _blocks(connected, partition, wanted, options.snapshot_ttl, whole):
            batch = _before(blocks.of_block(block, shape, partition.topic, kind), block, partition.before)
            if len(batch):
                yield batch
    except UnknownTopic as error:
        if options.fail_on_data_loss:
            raise
        log.warning("a part of the table of '%s' is skipped (failOnDataLoss=false): %s", partition.topic, error)


def timestamp_type(connected: Client, topic: str) -> int:
    """The timestampType of a topic's entries, by the topic's setting now: an entry does not have it."""
    settings = connected.describe(topic).settings
    return LOG_APPEND_TIME if settings.get("message.timestamp.type") == "LogAppendTime" else CREATE_TIME


def _blocks(
    connected: Client, partition: FirstPartition, wanted: list[str], ttl: float, whole: bool
) -> Iterator[ColumnBlock]:
    snapshot, part = partition.snapshot, partition.part
    while True:
        try:
            for block in connected.read_snapshot(snapshot, part, columns=wanted):
                yield block
                part = part._replace(start=_last_key(block) + b"\0")
            return
        except SnapshotGone:
            held = connected.snapshot(
                partition.topic,
                partitions=None if whole else [part.partition],
                splits=1,
                ttl=ttl,
                start=part.start,
                end=part.end,
                topic_id=partition.topic_id,
            )
            snapshot = held.id


def _before(batch: pa.RecordBatch, block: ColumnBlock, offset: int) -> pa.RecordBatch:
    """The rows of entries before `offset`: all of them, if the snapshot is still the first one."""
    import pyarrow.compute as pc

    assert block.offsets is not None
    offsets = pa.Array.from_buffers(pa.int64(), block.rows, [None, pa.py_buffer(block.offsets)])
    fit = pc.less(offsets, offset)
    return batch if pc.all(fit).as_py() else batch.filter(fit)


def _last_key(block: ColumnBlock) -> bytes:
    assert block.keys is not None
    offsets, data, _ = block.keys
    start, end = (int.from_bytes(offsets[at : at + 4 or None], "little") for at in (-8, -4))
    return bytes(data[start:end])
