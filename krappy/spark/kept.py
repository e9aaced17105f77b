"""Answers to lookups that are still true, kept in a worker for the batches of rows to come.

Nothing is ever answered from here that the broker would answer otherwise: before each batch it is asked how far the
topic's partitions are, and when anything was committed or deleted since, all that was kept of the topic is forgotten.

A worker that asks for many keys also reads the table as it goes, a few rows for each key that it asks for, which costs
about as much again. So it spends little more than twice of what is best, whether a few keys are wanted of a large table
or each key of a small one many times; when it has read all of the table, it asks for nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Hashable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from krappy.blocking import Client
from krappy.errors import KrappyError, SnapshotGone
from krappy.spark import blocks, hashing
from krappy.spark.chunk import Chunk, Flags, Numbers, merged
from krappy.spark.hashing import Prints
from krappy.spark.schema import CREATE_TIME, arrow_schema, spark_schema

MOST = 192 << 20  # bytes: more than a million entries of 150
TOPICS = 4
FREE = 50_000  # keys that are asked for before any of the table is read: a fifth of a second
READ = 4  # rows that are read for a key that is asked for: they cost about the same
TTL = 60.0  # seconds that the broker holds a snapshot which nobody reads on

Rows = Generator[tuple[pa.Array, pa.StructArray], None, None]  # keys and their entries


class Moment(NamedTuple):
    """A topic as it is now: while nothing of this has changed, neither has its table."""

    id: Hashable
    starts: dict[int, int]
    ends: dict[int, int]


class Kept:
    """Entries of one topic by their keys, null for what is absent.

    `table`: all of its rows at that moment, which are read step by step. `most`: bytes that are kept, about.
    """

    def __init__(self, moment: Moment, kind: pa.DataType, table: Rows, most: int) -> None:
        self.moment = moment
        self.whole = False  # what is not here is not in the table
        self._kind, self._most = kind, most
        self._table: Rows | None = table
        self._chunks: list[Chunk] = []
        self._asked = 0

    def look(self, keys: pa.Array, prints: Prints) -> tuple[pa.StructArray, Flags]:
        """The entry of each key, null where there is none; and of which keys that is known."""
        known = np.full(len(keys), self.whole)
        parts, rows, left = [], [], np.arange(len(keys))
        for chunk in self._chunks:
            at = chunk.places(prints[left])
            here, left, at = left[at >= 0], left[at < 0], at[at >= 0]
            same = chunk.same(keys if len(here) == len(keys) else keys.take(pa.array(here)), at)
            known[here] = same  # not when another key has its fingerprint
            parts.append(chunk.entries.take(pa.array(at, mask=~same)))
            rows.append(here)
        return in_order([*parts, pa.nulls(len(left), self._kind)], [*rows, left]), known

    def add(self, keys: pa.Array, entries: pa.StructArray) -> None:
        """Keeps what the broker was asked for, while there is room; and reads on in the table."""
        self._add(keys, entries)
        self._asked += len(keys)
        if self._asked > FREE and self._table is not None:
            self._read(self._table, READ * len(keys))

    def _add(self, keys: pa.Array, entries: pa.StructArray) -> None:
        chunk, chunks = Chunk(hashing.fingerprints(keys), keys, entries), self._chunks
        if chunk.nbytes + sum(each.nbytes for each in chunks) > self._most:
            self.close()
            return
        chunks.append(chunk)
        while len(chunks) > 1 and len(chunks[-2]) < 2 * len(chunks[-1]):
            chunks[-2:] = [merged(chunks[-2:])]

    def _read(self, table: Rows, rows: int) -> None:
        """So many rows, or a block more."""
        parts, ended = [], True
        try:
            for part in table:
                parts.append(part)
                rows -= len(part[0])
                if rows <= 0:
                    ended = False
                    break
        except KrappyError:  # too many snapshots are held (Overloaded), or this one has ended (SnapshotGone)
            self.close()
            return
        if parts:
            self._add(*map(pa.concat_arrays, zip(*parts, strict=True)))
        if ended and self._table is not None:  # all of it, and there was room
            self._chunks = [merged(self._chunks)] if self._chunks else []
            self.whole = True
            self.close()

    def close(self) -> None:
        """Reads on no more."""
        if self._table is not None:
            self._table.close()
            self._table = None


_kept: dict[Hashable, Kept] = {}


def kept(connected: Client, topic: str, columns: tuple[str, ...], most: int) -> tuple[Kept, int]:
    """What is still true of a topic's entries with these columns, and how many partitions the topic has.

    `most`: bytes that may be kept, about; no more than a quarter of what the process may have altogether, where
    spark.executor.pyspark.memory bounds that. Raises UnknownTopic.
    """
    most = min(most, _memory() // 4)
    info = connected.describe(topic)
    starts = {each.partition: each.start for each in info.partitions}
    ends = {each.partition: each.high_watermark for each in info.partitions}
    moment = Moment(info.id, starts, ends)
    place = connected, topic, columns, most
    found = _kept.pop(place, None)
    if found is None or found.moment != moment:
        if found is not None:
            found.close()
        kind = pa.struct(list(arrow_schema(spark_schema(columns))))
        found = Kept(moment, kind, _table(connected, topic, columns, moment), most)
    while len(_kept) >= TOPICS:
        _kept.pop(next(iter(_kept))).close()
    _kept[place] = found
    return found, len(info.partitions)


@cache
def _memory() -> int:
    """Bytes that this process may have."""
    try:
        import resource  # not on Windows
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _table(connected: Client, topic: str, columns: tuple[str, ...], moment: Moment) -> Rows:
    """The rows that lookups would find: those in the partitions that their keys name."""
    shape = arrow_schema(spark_schema(("key", *columns)))
    wanted, count = blocks.fetched(shape.names), len(moment.starts)
    snapshot = connected.snapshot(topic, splits=1, ttl=TTL)
    try:
        if snapshot.offsets != moment.ends:
            raise SnapshotGone("the table has moved on")
        for some in snapshot.ranges:
            for block in connected.read_snapshot(snapshot.id, some, columns=wanted):
                held = blocks.of_block(block, shape, topic, CREATE_TIME)
                mine = pa.array(hashing.partitions(held.column("key"), count) == some.partition)
                keys, *rest = (each.filter(mine) for each in held.columns)
                yield keys, pa.StructArray.from_arrays(rest, fields=list(shape)[1:])
    finally:
        with suppress(KrappyError):
            connected.close_snapshot(snapshot.id)


def in_order(parts: list[pa.Array], rows: list[Numbers]) -> pa.Array:
    """One array of parts, given which row of it each of theirs is to be."""
    full = [(part, mine) for part, mine in zip(parts, rows, strict=True) if len(part)]
    if len(full) == 1:  # the rows of a part are in their order
        return full[0][0]
    return pa.concat_arrays(parts).take(pa.array(inverse(np.concatenate(rows))))


def inverse(order: Numbers) -> Numbers:
    """Where each number is in `order`, which has each of them once."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places
