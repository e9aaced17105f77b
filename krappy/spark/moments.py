"""Reads a whole table at one moment, and from the log the changes between two moments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from krappy.blocking import Client, ColumnBlock, KeyRange
from krappy.errors import KrappyError
from krappy.spark import blocks
from krappy.spark.logs import check_led, until_led
from krappy.spark.schema import CREATE_TIME, arrow_schema, spark_schema

Rows = tuple[pa.Array, pa.StructArray]  # keys and their entries; null for a deleted key


class TooManyChanges(Exception):
    """The changes are larger than the given limit."""


class Moment(NamedTuple):
    """What the broker says of a topic. If all of it but `taken` is equal at two moments, so is the table."""

    # The topic's id, whether it has a view, how long tombstones stay (ms), whether it has strays.
    of: tuple[str, object, object, bool]
    starts: dict[int, int]  # by partition, the log start
    ends: dict[int, int]  # by partition, the last stable offset
    taken: float  # seconds by the monotonic clock, before the broker was asked
    tombstones: float  # seconds that a tombstone stays in the log, at least

    @property
    def scattered(self) -> bool:
        """Whether the topic has strays: then one partition's log does not tell what has become of a key."""
        return self.of[3]

    def same(self, other: Moment) -> bool:
        return self[:3] == other[:3]

    def leads_to(self, other: Moment) -> bool:
        """Whether the log between the two has all changes: it is the same topic, no end went back, and no tombstone
        can have been removed since. Call it after reading the log, too: time passes."""
        back = any(other.ends[partition] < end for partition, end in self.ends.items() if partition in other.ends)
        return self[:2] == other[:2] and not back and time.monotonic() - self.taken < self.tombstones


class TableSource(NamedTuple):
    """Some columns of a topic's table."""

    connected: Client
    topic: str
    columns: tuple[str, ...]

    def moment(self) -> Moment:
        """The topic as it is now. Raises UnknownTopic, NotLeader."""
        return until_led(self._moment)

    def _moment(self) -> Moment:
        taken = time.monotonic()
        info = self.connected.describe(self.topic)  # one answer, so one moment
        for each in info.partitions:
            check_led(self.topic, each, sure=True)
        starts = {each.partition: each.start for each in info.partitions}
        ends = {each.partition: each.last_stable_offset for each in info.partitions}
        # Not everybody who may read a topic is told its settings. Then a tombstone may be gone at any time.
        view, tombstones = info.settings.get("view.enable"), float(info.settings.get("delete.retention.ms", 0))
        return Moment((info.id, view, tombstones, info.scattered), starts, ends, taken, tombstones / 1000)

    @contextmanager
    def table(self) -> Iterator[list[Iterator[Rows]]]:
        """All entries as they are now: an iterator for each partition, on one snapshot that is closed at the end.

        Raises Overloaded, SnapshotGone.
        """
        shape = self._shape()
        snapshot = self.connected.snapshot(self.topic, splits=1)

        def read(some: KeyRange) -> Iterator[Rows]:
            for block in self.connected.read_snapshot(snapshot.id, some, columns=blocks.fetched(shape.names)):
                yield _rows(block, shape, self.topic)

        try:
            yield list(map(read, snapshot.ranges))
        finally:
            with suppress(KrappyError):
                self.connected.close_snapshot(snapshot.id)

    def changes(self, before: Moment, after: Moment, most: int) -> Iterator[Rows]:
        """Every event with a key between two moments, partition by partition; in each, the latest comes first.

        Raises TooManyChanges beyond `most` bytes in all, OffsetOutOfRange, UnknownTopic.
        """
        shape = self._shape()
        wanted = sorted({*blocks.fetched(shape.names), "value"})  # the value tells what is deleted
        for partition, end in after.ends.items():
            start = before.ends[partition]
            if start < end:
                id = after.of[0]
                read = []
                for block in self.connected.read_log(self.topic, partition, start, end, columns=wanted, topic_id=id):
                    most -= block.size
                    if most < 0:
                        raise TooManyChanges
                    read.append(block)
                for block in reversed(read):
                    keys, entries = _rows(block, shape, self.topic)
                    backwards = pa.array(np.arange(len(keys) - 1, -1, -1))
                    yield keys.take(backwards), entries.take(backwards)

    def _shape(self) -> pa.Schema:
        return arrow_schema(spark_schema(("key", *self.columns)))


def together(parts: Sequence[Rows]) -> Rows:
    """All parts in one; there must be at least one."""
    keys, entries = zip(*parts, strict=True)
    return pa.concat_arrays(keys), pa.concat_arrays(entries)


def _rows(block: ColumnBlock, shape: pa.Schema, topic: str) -> Rows:
    """The events of a block that have a key."""
    held = blocks.of_block(block, shape, topic, CREATE_TIME)
    keys, *rest = held.columns
    absent = None if block.values is None else blocks.deleted(block)
    entries = pa.StructArray.from_arrays(rest, fields=list(shape)[1:], mask=absent)
    if keys.null_count:
        there = keys.is_valid()
        return keys.filter(there), entries.filter(there)
    return keys, entries
