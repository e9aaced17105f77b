"""readStream: micro-batches between positions of the logs; with startingOffsets=snapshot, the table comes first.

How that first batch is read, and read again: `stream_table.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from krappy.blocking import Client, KeyRange, Snapshot
from krappy.errors import KrappyError, OffsetOutOfRange, SnapshotGone
from krappy.spark import log_read, ranges, stream_table
from krappy.spark.connections import client
from krappy.spark.log_read import LogPartition
from krappy.spark.options import Options
from krappy.spark.ranges import OffsetRange
from krappy.spark.stream_offsets import Offsets, Patience, Position, behind, decoded, encoded, initial, limited
from krappy.spark.stream_table import TablePartition
from krappy.spark.table_read import SPLITS
from krappy.spark.versions import features
from krappy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

BASES: tuple[type, ...] = (DataSourceStreamReader,)
if features().admission_control:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    BASES = (DataSourceStreamReader, SupportsTriggerAvailableNow)

log = logging.getLogger(__name__)


class StreamReader(*BASES):  # type: ignore[misc]
    """One object lives in the driver as long as the query and is asked where it goes on; others, made of its pickled
    likes, read in the tasks.

    `latestOffset` is called without arguments before PySpark 4.2; where the stream stands is known then from what Spark
    has planned last, which it tells after a restart too, by planning an empty batch.
    """

    def __init__(self, schema: StructType, options: Options, clock: Callable[[], float] = monotonic) -> None:
        self._schema = schema
        self._clock = clock
        self._options = options
        self._patience = Patience(options.max_trigger_delay)
        self._planned: Position | None = None  # where the batch ends that was planned last
        self._offered: Position | None = None  # where the one ends that was offered last
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._held: dict[str, Snapshot] = {}  # by id
        self._closed: set[str] = set()

    # --- where the stream goes on, in the driver ---

    def initialOffset(self) -> dict[str, Any]:
        return initial(self._options.start.kind)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        at = decoded(start) if start is not None else self._offered or self._planned or Position(None)
        self._close(at)
        if not at.begun:
            found = self._begin(limit)
        else:
            ends = self._next(at.at, limit)
            found = at if ends == at.at else Position(ends)
        self._offered = found
        return start if start is not None and found is at else encoded(found)

    def getDefaultReadLimit(self) -> Any:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: what there is to read, so that `krappy.spark.lag` can tell how far it is behind."""
        with suppress(KrappyError):
            return encoded(Position(self._ends()))
        return None

    def commit(self, end: dict[str, Any]) -> None:
        self._close(decoded(end))

    def _ends(self) -> Offsets:
        connected = client(self._options.address)
        return ranges.at_end(connected, self._known(connected), "latest")

    def _known(self, connected: Client, begun: bool = True) -> list[TopicPartition]:
        """Once the stream has begun, with failOnDataLoss=false, topics may be gone; they are read again when back."""
        assert self._options.topics is not None
        return ranges.partitions(connected, self._options.topics, begun and not self._options.fail_on_data_loss)

    def _begin(self, limit: Any) -> Position:
        """The end of the first batch, which says where it begins."""
        options, connected = self._options, client(self._options.address)
        if options.start.kind == "snapshot":
            return self._snapshots(connected)
        self._known(connected, begun=False)
        latest = dict(self._target if self._target is not None else self._ends())
        earliest = ranges.at_end(connected, latest, "earliest")
        begin = ranges.offsets(connected, options.start, earliest, latest, options.timestamp_strategy)
        for each, offset in begin.items():
            if not earliest[each] <= offset <= latest[each]:
                there = f"{earliest[each]} to {latest[each]}"
                self._lost(f"{each} was to be read from offset {offset} on, and it has offsets {there}")
        begin = {each: min(max(offset, earliest[each]), latest[each]) for each, offset in begin.items()}
        self._patience.waits(None, 0, self._clock())
        most, _ = self._limits(limit)
        return Position(latest if most is None else limited(begin, latest, most), first=begin)

    def _snapshots(self, connected: Client) -> Position:
        offsets: dict[TopicPartition, int] = {}
        ids = {}
        for topic, some in groupby(self._known(connected, begun=False), key=lambda each: each.topic):
            held = self._take(connected, topic, [each.partition for each in some])
            ids[topic] = held.id
            offsets |= {TopicPartition(topic, partition): offset for partition, offset in held.offsets.items()}
        if self._target is not None:
            self._target = offsets  # the snapshot is the "now" of AvailableNow
        return Position(offsets, snapshots=ids)

    def _take(self, connected: Client, topic: str, partitions: Sequence[int]) -> Snapshot:
        options = self._options
        splits = max(SPLITS, len(partitions), options.min_partitions or 0)
        held = connected.snapshot(topic, partitions=partitions, splits=splits, ttl=options.snapshot_ttl)
        self._held[held.id] = held
        return held

    def _next(self, begin: Offsets, limit: Any) -> Offsets:
        ends = self._target if self._target is not None else self._ends()
        others = self._others(begin)
        if others and self._options.fail_on_data_loss:
            each, offset = next(iter(others.items()))
            self._lost(f"{each} was read up to offset {offset}, and is no topic of this query's")
        for each, offset in begin.items():
            end = ends.get(each)
            if each not in others and (end is None or end < offset):
                now = "is gone" if end is None else f"ends at {end} now: it was made anew"
                self._lost(f"{each} was read up to offset {offset}, and {now}")
        lag = sum(behind(begin, ends).values())
        most, least = self._limits(limit)
        if lag and self._patience.waits(least, lag, self._clock()):
            return begin
        return others | (dict(ends) if most is None else limited(begin, ends, most))

    def _others(self, begin: Offsets) -> dict[TopicPartition, int]:
        """Where it stands in what the query names no more: it goes on there once that is named again."""
        topics = self._options.topics
        assert topics is not None
        return {each: offset for each, offset in begin.items() if not topics.mean(each)}

    def _limits(self, limit: Any) -> tuple[int | None, int | None]:
        """The most and the least offsets of a batch. Spark may ask for all there is, whatever the options say."""
        if limit is not None and isinstance(limit, ReadAllAvailable):
            return None, None
        most = self._options.max_offsets_per_trigger
        least = self._options.min_offsets_per_trigger if self._target is None else None
        return most, least

    # --- what a batch consists of, in the driver ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins, ends = decoded(start), decoded(end)
        self._planned = self._offered = ends
        if start == end:
            return []
        if not begins.begun and ends.snapshots is not None:
            return list(self._table(ends, ends.snapshots))
        begin = begins.offsets if begins.begun else ends.first
        if begin is None:
            raise KrappyError("the checkpoint does not say where the stream's first batch begins: start a new one")
        found = self._ranges(begin, ends.at)
        options = self._options
        return [LogPartition([each]) for each in ranges.split(found, options.min_partitions, options.max_records)]

    def _ranges(self, begin: Offsets, ends: Offsets) -> list[OffsetRange]:
        """Without what is lost, or else raises."""
        connected = client(self._options.address)
        known = self._known(connected)
        earliest = ranges.at_end(connected, [each for each in known if each in ends], "earliest")
        found = []
        for each, end in sorted(ends.items()):
            first = begin.get(each, 0)  # a partition that was added is read from its first event on
            if end == first:
                continue
            if end < first:
                first = 0  # made anew
            there = earliest.get(each)
            if there is None:
                self._lost(f"{each} is not there any more; offsets {first} to {end} of it were to be read")
                continue
            if first < there and first < end:
                self._lost(f"{each} begins at offset {there} by now; offsets from {first} on were to be read")
                first = there
            if first < end:
                found.append(OffsetRange(*each, first, end))
        return found

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{what}. Events were lost to this query, by retention or because a topic was deleted. The option "
                "failOnDataLoss=false goes on with what is there."
            )
        log.warning("%s. Going on with what is there (failOnDataLoss=false).", what)

    def _table(self, ends: Position, ids: Mapping[str, str]) -> Iterator[TablePartition]:
        connected = client(self._options.address)
        for topic, id in ids.items():
            some = {each.partition: offset for each, offset in ends.at.items() if each.topic == topic}
            held = self._held.get(id) or self._again(connected, topic, id, list(some))
            for part in held.ranges:
                yield TablePartition(topic, held.id, part, some[part.partition])

    def _again(self, connected: Client, topic: str, id: str, partitions: Sequence[int]) -> Snapshot:
        """The snapshot of a query that was restarted, or a new one when it is gone."""
        try:
            connected.keep_snapshot(id, self._options.snapshot_ttl)
        except SnapshotGone:
            return self._take(connected, topic, partitions)
        self._held[id] = Snapshot(id, topic, {}, [KeyRange(each) for each in partitions])
        return self._held[id]

    def _close(self, passed: Position) -> None:
        """The first batch is through: nobody needs its snapshots any more."""
        if passed.snapshots is None:
            return
        for id in {*passed.snapshots.values(), *self._held} - self._closed:
            with suppress(KrappyError):
                client(self._options.address).close_snapshot(id)
                self._closed.add(id)
        self._held.clear()

    # --- reading, in the tasks ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TablePartition):
            return stream_table.read(partition, self._schema, self._options)
        assert isinstance(partition, LogPartition)
        return log_read.read(partition.parts, self._schema, self._options)
