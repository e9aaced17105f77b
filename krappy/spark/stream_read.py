"""readStream: micro-batches between positions of the logs; with startingOffsets=snapshot, the table comes first.

`logs.py` tells where the logs begin and end, `stream_offsets.py` what lies between two positions, `stream_rate.py` how
far a batch goes, `stream_losses.py` what happens if events are gone. `stream_snapshots.py` and `stream_table.py` make
the first batch if it is a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from krappy.errors import KrappyError
from krappy.spark import log_read, ranges, stream_table
from krappy.spark.connections import client
from krappy.spark.log_read import LogPartition
from krappy.spark.logs import Logs, logs
from krappy.spark.options import Options
from krappy.spark.ranges import OffsetRange
from krappy.spark.stream_losses import Losses
from krappy.spark.stream_offsets import StreamPosition, begins, decoded, encoded, initial, losses
from krappy.spark.stream_rate import Patience, behind, rationed
from krappy.spark.stream_snapshots import StreamSnapshots
from krappy.spark.stream_table import FirstPartition
from krappy.spark.topics import TopicChoice
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


class StreamReader(*BASES):  # type: ignore[misc]
    """One object lives in the driver as long as the query, and says where each batch ends; its pickled copies read in
    the tasks.

    Before PySpark 4.2, `latestOffset` is called without arguments. The stream's position is then the end of the batch
    that Spark planned last; after a restart Spark shows it by planning an empty batch.
    """

    def __init__(self, schema: StructType, options: Options, clock: Callable[[], float] = monotonic) -> None:
        self._schema = schema
        self._clock = clock
        self._options = options
        self._losses = Losses(options.fail_on_data_loss)
        self._patience = Patience(options.max_trigger_delay)
        self._snapshots = StreamSnapshots(options)
        self._planned: StreamPosition | None = None  # the end of the last batch that Spark planned
        self._offered: StreamPosition | None = None  # the end of the last batch that was offered to Spark
        self._target: Logs | None = None  # with Trigger.AvailableNow, where the query ends

    # --- where the stream goes on, in the driver ---

    def initialOffset(self) -> dict[str, Any]:
        return initial(self._options.start.kind)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        at = decoded(start) if start is not None else self._offered or self._planned or StreamPosition(None)
        self._passed(at)
        found = self._next(at, limit) if at.begun else self._begin(limit)
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
        self._target = self._logs()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The logs' ends, for the query's progress: `krappy.spark.lag` compares them with the query's position."""
        with suppress(KrappyError):
            return encoded(StreamPosition(self._logs().ends))
        return None

    def commit(self, end: dict[str, Any]) -> None:
        self._passed(decoded(end))

    def _passed(self, at: StreamPosition) -> None:
        if at.snapshots is not None:
            self._snapshots.close(at.snapshots.values())

    @property
    def _topics(self) -> TopicChoice:
        assert self._options.topics is not None
        return self._options.topics

    def _logs(self, at: StreamPosition | None = None, begun: bool = True) -> Logs:
        """The logs now. If `begun` and with failOnDataLoss=false, missing topics are left out until they are back.
        `at`: the stream's position: a topic in it is not missing if it only may not be described any more."""
        known = self._known(at) if at is not None else ()
        return logs(client(self._options.broker), self._topics, begun and not self._losses.fail, known=known)

    def _known(self, at: StreamPosition) -> set[str]:
        return {each.topic for each in at.at if self._topics.mean(each)}

    def _begin(self, limit: Any) -> StreamPosition:
        """The end of the first batch, which says where it begins."""
        options, connected = self._options, client(self._options.broker)
        now = self._logs(begun=False)
        if options.start.kind == "snapshot":
            taken = self._snapshots.take(now)
            if self._target is not None:
                self._target = now._replace(ends=dict(taken.at))  # the snapshot is the "now" of AvailableNow
            return taken
        now = self._target or now
        begin = dict(ranges.offsets(connected, options.start, now, options.timestamp_strategy))
        for each, offset in begin.items():
            first, end = now.starts[each], now.ends[each]
            if not first <= offset <= end:
                self._losses.tell(f"{each} was to be read from offset {offset} on, and it has offsets {first} to {end}")
            begin[each] = min(max(offset, first), end)
        self._patience.waits(None, 0, self._clock())
        most, _ = self._limits(limit)
        return StreamPosition(now.ends if most is None else rationed(begin, now.ends, most), now.ids, first=begin)

    def _next(self, at: StreamPosition, limit: Any) -> StreamPosition:
        """The end of the batch that begins at `at`: `at` itself if there is nothing to read."""
        now = self._target
        if now is None or not self._known(at) <= now.ids.keys():
            now = self._logs(at)
            self._target = self._target and now  # when that was taken, the position was not known
        to = StreamPosition(now.ends, now.ids)
        for what in losses(at, to, self._topics.mean):
            self._losses.tell(what)
        begin = begins(at, to)
        lag = sum(behind(begin, now.ends).values())
        most, least = self._limits(limit)
        if lag and self._patience.waits(least, lag, self._clock()):
            return at
        left = {
            each: offset for each, offset in at.at.items() if not self._topics.mean(each)
        }  # they stay in the position until their topics are named again
        ids = {each.topic: at.ids[each.topic] for each in left if each.topic in at.ids}
        ends = now.ends if most is None else rationed(begin, now.ends, most)
        found = StreamPosition({**left, **ends}, {**ids, **now.ids})
        return at if (found.at, found.ids) == (at.at, at.ids) else found

    def _limits(self, limit: Any) -> tuple[int | None, int | None]:
        """The most and the least offsets of a batch; None: no limit. If Spark asks for all, no option counts."""
        if limit is not None and isinstance(limit, ReadAllAvailable):
            return None, None
        most = self._options.max_offsets_per_trigger
        least = self._options.min_offsets_per_trigger if self._target is None else None
        return most, least

    # --- what a batch consists of, in the driver ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, to = decoded(start), decoded(end)
        self._planned = self._offered = to
        if start == end:
            return []
        if not begin.begun and to.snapshots is not None:
            return list(self._snapshots.parts(to, self._logs(to), self._losses))
        first = begins(begin, to) if begin.begun else to.first
        if first is None:
            raise KrappyError("the checkpoint does not say where the stream's first batch begins: start a new one")
        found = list(self._ranges(first, to))
        options = self._options
        return [LogPartition([each]) for each in ranges.split(found, options.min_partitions, options.max_records)]

    def _ranges(self, begin: Mapping[TopicPartition, int], to: StreamPosition) -> Iterator[OffsetRange]:
        """The ranges of a batch. If events of it are gone, it raises or leaves them out, by failOnDataLoss."""
        now = self._logs(to)
        for each, end in sorted(to.at.items()):
            start, there, id = begin.get(each, 0), now.starts.get(each), now.ids.get(each.topic)
            if start == end:
                continue
            wanted = f"offsets from {start} to {end} of it were to be read"
            if there is None or id is None:
                self._losses.tell(f"{each} is not there any more; {wanted}")
                continue
            if to.ids.get(each.topic, id) != id:
                self._losses.tell(f"the topic of {each} was deleted and made anew; {wanted}")
                continue
            if start < there:
                self._losses.tell(f"{each} begins at offset {there} by now; {wanted}")
                start = there
            if start < end:
                yield OffsetRange(*each, start, end, id, now.leaders[each])

    # --- reading, in the tasks ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, FirstPartition):
            return stream_table.read(partition, self._schema, self._options)
        assert isinstance(partition, LogPartition)
        return log_read.read(partition.parts, self._schema, self._options)
