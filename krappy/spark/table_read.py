"""mode=table: the latest entry of each key, or of some keys, on one snapshot of each topic.

- Exact keys are looked up when the task runs (`key_read.py`).
- A small table, or one that is read with a limit, is read by one task, which takes a snapshot and closes it.
- A large table is read by many tasks on a snapshot that is taken when the query is planned. Spark does not say when a
  query is over, so the broker ends the snapshot when nobody has read it for `snapshotTtl`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from krappy.blocking import Client, KeyRange, Snapshot
from krappy.errors import SnapshotGone, UnknownTopic
from krappy.spark import key_read
from krappy.spark.connections import client
from krappy.spark.held import from_text
from krappy.spark.keys import Keys
from krappy.spark.logs import Logs, logs
from krappy.spark.options import Options
from krappy.spark.schema import CREATE_TIME, arrow_schema
from krappy.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = 16  # ranges of a snapshot that any number of queries may read: more than most machines have cores
SMALL = 8 << 20  # bytes of keys and entries: one task reads a table up to this size; a task buffers about as much
TASK = 32 << 20  # bytes of keys and entries for each task of a larger table: so much is a second or two of work
MOST_TASKS = 256
MEASURING = 60.0  # seconds to live of a snapshot that only measures, if this program ends before it closes it
LOOKUPS = 50_000  # exact keys of a task


class Lookups(NamedTuple):
    """Exact keys, which a task looks up."""

    keys: tuple[bytes, ...]


class Whole(NamedTuple):
    """All that is wanted of a topic. The task takes a snapshot of its own, of the partitions that exist then."""

    topic: str


class Part(NamedTuple):
    """Ranges of a snapshot. `leader`: the broker that led all of their partitions when the read was planned; -1: there
    are several, or it is unknown, because the option `snapshot` does not tell it."""

    topic: str
    snapshot: str
    ranges: list[KeyRange]
    leader: int = -1


Piece = Lookups | Whole | Part


class TableSplit(InputPartition):
    """What one task reads, one piece after the other."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = list(pieces)


class TableReader(DataSourceReader):
    """Plans pieces of tables in the driver, and reads them in tasks."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._keys = options.keys

    def partitions(self) -> Sequence[InputPartition]:
        """Raises UnknownTopic, UnknownPartition, ViewDisabled, Overloaded when the broker holds too many snapshots."""
        pieces = self._pieces()
        if self._options.limit is not None or not pieces:
            return [TableSplit(pieces)]
        return [TableSplit([piece]) for piece in pieces]

    def _pieces(self) -> list[Piece]:
        options, exact = self._options, self._keys.exact
        if options.snapshot is not None:
            held = from_text(options.snapshot)
            return [Part(held.topic, held.id, some) for each in held.ranges if (some := within(each, self._keys))]
        assert options.topics is not None
        connected = client(options.broker)
        now = logs(connected, options.topics)
        if exact is not None:
            each = min(LOOKUPS, -(-len(exact) // (options.min_partitions or 1))) or 1
            return [Lookups(exact[at : at + each]) for at in range(0, len(exact), each)]
        if options.limit is not None:
            return [Whole(topic) for topic in now.ids]
        return [piece for topic in now.ids for piece in self._split(connected, now, topic)]

    def _split(self, connected: Client, now: Logs, topic: str) -> list[Piece]:
        options, places = self._options, now.of(topic)
        tasks = options.min_partitions or self._tasks(connected, now, topic)
        if tasks == 1 and options.min_partitions is None:
            return [Whole(topic)]
        held = taken(connected, now, topic, max(tasks, len(places) + 1), options.snapshot_ttl, self._keys)

        def part(some: list[KeyRange]) -> Part:
            leaders = {now.leaders[TopicPartition(topic, each.partition)] for each in some}
            return Part(topic, held.id, some, leaders.pop() if len(leaders) == 1 else -1)

        if options.min_partitions is not None:
            return [part([each]) for each in held.ranges]
        if len(held.ranges) <= len(places):  # nothing was worth splitting
            connected.close_snapshot(held.id)
            return [Whole(topic)]
        return [part(some) for at in range(tasks) if (some := held.ranges[at::tasks])]

    def _tasks(self, connected: Client, now: Logs, topic: str) -> int:
        """How many tasks to use, by the table's uncompressed size: a compressed log may be a thousandth of it."""
        measured = taken(connected, now, topic, 1, MEASURING, self._keys, SMALL)
        connected.close_snapshot(measured.id)
        size = measured.size or 0
        return 1 if size <= SMALL else min(MOST_TASKS, max(2, -(-size // TASK)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableSplit)
        found = (batch for piece in partition.pieces for batch in self._batches(piece))
        return found if self._options.limit is None else first_rows(found, self._options.limit)

    def _batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        connected = client(self._options.broker)
        if isinstance(piece, Lookups):
            assert self._options.topics is not None
            now = logs(connected, self._options.topics)
            yield from key_read.read(connected, piece.keys, now, self._schema, self._options.tombstones)
        elif isinstance(piece, Part):
            yield from self._part(connected, piece)
        else:
            yield from self._whole(connected, piece)

    def _whole(self, connected: Client, piece: Whole) -> Iterator[pa.RecordBatch]:
        """All rows that are wanted of a topic. A small table is read ahead, so that its snapshot is closed soon,
        however slowly Spark takes the rows. With a limit, or if the table has grown since it was measured, the snapshot
        is held until the rows are taken."""
        options = self._options
        assert options.topics is not None
        held = taken(connected, logs(connected, options.topics), piece.topic, 1, options.snapshot_ttl, self._keys)
        batches = self._part(connected, Part(held.topic, held.id, held.ranges))
        ahead: deque[pa.RecordBatch] = deque()
        try:
            if options.limit is None:
                ahead.extend(up_to(batches, SMALL))
            if options.limit is not None or sum(each.nbytes for each in ahead) > SMALL:
                while ahead:
                    yield ahead.popleft()
                yield from batches
        finally:
            connected.close_snapshot(held.id)
        yield from ahead

    def _part(self, connected: Client, piece: Part) -> Iterator[pa.RecordBatch]:
        from krappy.spark import blocks

        shape, tombstones = arrow_schema(self._schema), self._options.tombstones
        wanted = blocks.fetched(shape.names)
        try:
            for some in piece.ranges:
                for block in connected.read_snapshot(piece.snapshot, some, tombstones=tombstones, columns=wanted):
                    yield blocks.of_block(block, shape, piece.topic, CREATE_TIME)
        except SnapshotGone as error:
            raise SnapshotGone(
                f"the snapshot that this DataFrame reads has ended: {self._what_to_do()}: {error}"
            ) from None

    def _what_to_do(self) -> str:
        if self._options.snapshot is not None:
            return "take another one, with a longer ttl where nobody reads it for so long"
        ttl = f"{self._options.snapshot_ttl:g} s"
        return f"load() it again, or give it a longer life with the option snapshotTtl, now {ttl}"


def first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows."""
    for batch in batches:
        yield batch[:limit]
        limit -= min(limit, len(batch))
        if not limit:
            return


def up_to(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The first batches, until they have more than `most` bytes; the others stay in `batches`."""
    size = 0
    while size <= most and (batch := next(batches, None)) is not None:
        yield batch
        size += batch.nbytes


def within(part: KeyRange, keys: Keys) -> list[KeyRange]:
    """The parts of a range of keys that are wanted."""
    some = [Keys(start=key, end=key + b"\0") for key in keys.exact] if keys.exact is not None else [keys.as_range()]
    found = []
    for each in some:
        start = max(part.start or b"", each.start or b"")
        end = min((at for at in (part.end, each.end) if at is not None), default=None)
        if end is None or start < end:
            found.append(KeyRange(part.partition, start, end))
    return found


def taken(
    connected: Client, now: Logs, topic: str, splits: int, ttl: float, keys: Keys, measure: int | None = None
) -> Snapshot:
    """A snapshot of a topic's partitions, in at least `splits` ranges if the table is large enough. `ttl`: in seconds.

    `measure`: measures the snapshot's `size`, in bytes; above this many, it is an estimate. Raises UnknownTopic if the
    topic does not exist, or was made anew since `now`: its partitions may be others.
    """
    if topic not in now.ids:  # a pattern matched it when the read was planned
        raise UnknownTopic(f"the topic '{topic}' was deleted since this read was planned", topic=topic)
    return connected.snapshot(
        topic,
        partitions=now.named(topic),
        topic_id=now.ids[topic],
        splits=splits,
        ttl=ttl,
        prefix=keys.prefix,
        start=keys.start,
        end=keys.end,
        measure=measure,
    )
