"""`TOPIC@latest` as Kafka's handlers see it: a topic of its own that can only be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from krappy.broker.latest.latest import LatestTables
from krappy.core.latest import SUFFIX, Readings, table_of, twin_id
from krappy.errors import KrappyError
from krappy.ports import ActiveProducer, Raw
from krappy.waiting import Signal

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition
    from krappy.broker.topics.topic import Topic
    from krappy.settings.topic import TopicConfig

STATE = "latest"  # where a connection's state has its Readings


class TableTopic:
    """A table for one request of one connection, with the connection's `readings`."""

    internal = False

    def __init__(self, topic: Topic, tables: LatestTables, readings: Readings, alias: str = "") -> None:
        """`alias`: the ending by which it was asked for; empty: `@latest`."""
        self.name = topic.name + (alias or SUFFIX)
        self.id = twin_id(topic.id, aliased=bool(alias))
        self.image, self.count = topic.image, topic.count
        self._topic = topic
        self._tables = tables
        self._readings = readings

    def led(self, index: int) -> TablePartition:
        """Raises NotLeader, UnknownPartition."""
        return TablePartition(self._topic.led(index), self._tables, self._readings, self)

    def is_offline(self, index: int) -> bool:
        return self._topic.is_offline(index)

    @property
    def config(self) -> TopicConfig:
        return self._topic.config

    @property
    def given(self) -> Mapping[str, str]:
        return self._topic.given

    @property
    def defaults(self) -> Mapping[str, str]:
        return self._topic.defaults

    @property
    def deleted(self) -> bool:
        return self._topic.deleted


def table_topic(
    topics: Mapping[str, Topic], tables: LatestTables, name: str, state: dict[str, Any], alias: str = ""
) -> TableTopic | None:
    """The table of this name, if there is one: if its topic exists and has a view. `state`: the connection's.

    `alias`: an ending by which tables are asked for too.
    """
    base = table_of(name, alias)
    if base is None:
        return None
    return _bound(topics.get(base), tables, state, "" if name.endswith(SUFFIX) else alias)


def table_topic_by_id(
    topics: Mapping[bytes, Topic], tables: LatestTables, id: bytes, state: dict[str, Any], alias: str = ""
) -> TableTopic | None:
    """As `table_topic`, by the 16 bytes of its id."""
    found = _bound(topics.get(twin_id(id)), tables, state)
    if found is None and alias:
        return _bound(topics.get(twin_id(id, aliased=True)), tables, state, alias)
    return found


def _bound(topic: Topic | None, tables: LatestTables, state: dict[str, Any], alias: str = "") -> TableTopic | None:
    if topic is None or not topic.config.view:
        return None
    readings = state.get(STATE)
    if readings is None:
        readings = state[STATE] = tables.readings()
    return TableTopic(topic, tables, readings, alias)


class TablePartition:
    """Implements `krappy.ports.SourcePort`. Only `fetch` reads below the boundary."""

    def __init__(self, partition: Partition, tables: LatestTables, readings: Readings, table: TableTopic) -> None:
        self._partition = partition
        self._tables = tables
        self._readings = readings
        self._topic_id = table.id
        self.index = partition.index
        self.epoch, self.epochs = partition.epoch, partition.epochs
        self.topic = table.name

    # --- as its topic's

    @property
    def readable_end(self) -> int:
        return self._partition.readable_end

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._partition.last_stable_offset

    @property
    def start_offset(self) -> int:
        return self._partition.start_offset

    @property
    def moved(self) -> Signal:
        return self._partition.moved

    @property
    def offline(self) -> str:
        return self._partition.offline

    @property
    def gone(self) -> KrappyError | None:
        return self._partition.gone

    def producers(self) -> list[ActiveProducer]:
        """Nobody writes to a table."""
        return []

    async def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None:
        return await self._partition.find_time(timestamp, limit)

    async def find_latest_time(self, limit: int) -> tuple[int, int] | None:
        return await self._partition.find_latest_time(limit)

    # --- its own

    def told_earliest(self) -> int:
        """The log start, for a connection that asks for the earliest offset."""
        start = self.start_offset
        self._tables.reading(self._readings, self._partition, self._topic_id).told_earliest(start)
        return start

    def out_of_range(self) -> None:
        """Called when the connection is told that its offset is out of range."""
        self._tables.reading(self._readings, self._partition, self._topic_id).lost()

    def _below(self, offset: int) -> bool:
        """Whether a fetch at this offset reads below the boundary."""
        reading = self._tables.reading(self._readings, self._partition, self._topic_id)
        return reading.at(offset, self._partition.start_offset, self._partition.last_stable_offset)

    def available(self, offset: int, max_bytes: int, limit: int) -> int:
        return max_bytes if self._below(offset) else self._partition.available(offset, max_bytes, limit)

    def fetch_now(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        if self._below(offset):
            raise BlockingIOError(f"{self.topic}-{self.index} is made out of the view and the log")
        return self._partition.fetch_now(offset, max_bytes, limit, min_one=min_one)

    async def fetch(self, offset: int, max_bytes: int, limit: int, *, min_one: bool = True) -> Raw:
        if not self._below(offset):
            return await self._partition.fetch(offset, max_bytes, limit, min_one=min_one)
        reading = self._tables.reading(self._readings, self._partition, self._topic_id)
        some = await self._tables.read(self._partition, reading, offset, max_bytes, min_one=min_one)
        return Raw(some.records, offset)

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """Empty for a range that was made as a table, which has no aborted events: there `end` equals `start`."""
        return self._partition.aborted(start, end) if end > start else []
