"""The snapshots that a stream's first batch reads: its driver takes them, finds them again, and closes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from krappy.blocking import KeyRange, Snapshot
from krappy.errors import KrappyError, SnapshotGone
from krappy.spark.connections import client
from krappy.spark.logs import Logs
from krappy.spark.options import Options
from krappy.spark.stream_losses import Losses
from krappy.spark.stream_offsets import StreamPosition
from krappy.spark.stream_table import FirstPartition
from krappy.spark.table_read import SPLITS


class StreamSnapshots:
    """The snapshots of one stream. The broker holds them for `snapshotTtl` after they were last read; this object knows
    them until the first batch is done."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._held: dict[str, Snapshot] = {}  # by id
        self._closed: set[str] = set()

    def take(self, now: Logs) -> StreamPosition:
        """Takes a snapshot of each topic's table; returns the end of the first batch. Raises UnknownTopic if a topic
        was made anew since `now`."""
        offsets: dict[tuple[str, int], int] = {}
        ids = {}
        for topic, topic_id in now.ids.items():
            held = self._take(topic, now, topic_id)
            ids[topic] = held.id
            offsets |= {(topic, partition): offset for partition, offset in held.offsets.items()}
        at = {each: offsets[each] for each in now.ends}
        return StreamPosition(at, now.ids, snapshots=ids)

    def _take(self, topic: str, now: Logs, topic_id: str) -> Snapshot:
        options, partitions = self._options, now.named(topic)
        splits = max(SPLITS, len(now.of(topic)), options.min_partitions or 0)
        held = client(options.broker).snapshot(
            topic, partitions=partitions, splits=splits, ttl=options.snapshot_ttl, topic_id=topic_id
        )
        self._held[held.id] = held
        return held

    def parts(self, end: StreamPosition, now: Logs, losses: Losses) -> Iterator[FirstPartition]:
        """The tasks of the first batch, which ends at `end`. If a topic is gone, it raises or leaves it out, by
        failOnDataLoss."""
        for topic, id in (end.snapshots or {}).items():
            some = {each.partition: offset for each, offset in end.at.items() if each.topic == topic}
            topic_id = end.ids.get(topic, now.ids.get(topic))
            if topic_id is None or topic_id != now.ids.get(topic):
                what = "deleted" if topic not in now.ids else "deleted and made anew"
                losses.tell(f"the table of '{topic}' was to be read, and the topic was {what} since")
                continue
            held = self._held.get(id) or self._again(topic, id, list(some), now, topic_id)
            for part in held.ranges:
                if part.partition not in some:
                    continue  # it was added since: the batches that follow have all of it
                yield FirstPartition(topic, topic_id, held.id, part, some[part.partition])

    def _again(self, topic: str, id: str, partitions: list[int], now: Logs, topic_id: str) -> Snapshot:
        """The snapshot of a query that was restarted, or a new one if the broker holds it no longer."""
        try:
            client(self._options.broker).keep_snapshot(id, self._options.snapshot_ttl)
        except SnapshotGone:
            return self._take(topic, now, topic_id)
        self._held[id] = Snapshot(id, topic, {}, [KeyRange(each) for each in partitions])
        return self._held[id]

    def close(self, passed: Iterable[str]) -> None:
        """Closes the snapshots `passed` (ids), and all that are held here: the first batch is done."""
        for id in {*passed, *self._held} - self._closed:
            with suppress(KrappyError):
                client(self._options.broker).close_snapshot(id)
                self._closed.add(id)
        self._held.clear()
