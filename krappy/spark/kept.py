"""Answers to lookups that are still true, kept in a worker for the batches of rows to come.

Nothing is ever answered from here that the broker would answer otherwise: before each batch it is asked how far the
topic's partitions are. What was committed since is read from the log, or all that was kept is forgotten.

A worker that asks for many keys also reads the table as it goes, a few rows for each key that it asks for, which costs
about as much again. So it spends little more than twice of what is best, whether a few keys are wanted of a large table
or each key of a small one many times; when it has read all of the table, it asks for nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Hashable
from functools import cache

import numpy as np
import pyarrow as pa

from krappy.blocking import Client
from krappy.errors import KrappyError
from krappy.spark import hashing, moments
from krappy.spark.chunk import Chunk, Flags, Numbers, merged
from krappy.spark.hashing import Prints
from krappy.spark.moments import Moment, Rows, moment
from krappy.spark.schema import arrow_schema, spark_schema

MOST = 192 << 20  # bytes: more than a million entries of 150
TOPICS = 4
FREE = 50_000  # keys that are asked for before any of the table is read: a fifth of a second
READ = 4  # rows that are read for a key that is asked for: they cost about the same


class Kept:
    """Entries of one topic by their keys, null for what is absent.

    `moment`: nothing is older than that. What is newer, since the broker was asked later, comes once more by `follow`.
    `table`: all of its rows, which are read step by step. `most`: bytes that are kept, about.
    """

    def __init__(self, at: Moment, kind: pa.DataType, table: Generator[Rows, None, None], most: int) -> None:
        self.moment = at
        self.whole = False  # what is not here is not in the table
        self._kind, self._most = kind, most
        self._table: Generator[Rows, None, None] | None = table
        self._chunks: list[Chunk] = []  # the newest first: what it says of a key is true
        self._asked = 0

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

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
        self._add(keys, entries, newest=True)
        self._asked += len(keys)
        if self._asked > FREE and self._table is not None:
            self._read(self._table, READ * len(keys))

    def follow(self, connected: Client, topic: str, columns: tuple[str, ...], to: Moment) -> bool:
        """Takes in what has changed until then, unless that is more than is kept, or not all of it can be known."""
        moved = sum(end - self.moment.ends.get(partition, 0) for partition, end in to.ends.items())
        if moved > len(self) or not self.moment.leads_to(to):
            return False
        try:
            changes = list(moments.changes(connected, topic, columns, self.moment, to))
        except KrappyError:  # it can't be read any more
            return False
        if not self.moment.leads_to(to):
            return False
        if changes and not self._add(*_together(changes), newest=True):
            return False
        self.moment = to
        return True

    def _add(self, keys: pa.Array, entries: pa.StructArray, *, newest: bool) -> bool:
        """Whether there was room. Those at the end are merged until each is half of the next."""
        chunk, chunks = Chunk(hashing.fingerprints(keys), keys, entries), self._chunks
        if chunk.nbytes + sum(each.nbytes for each in chunks) > self._most:
            self.close()
            return False
        if newest:
            chunks.insert(0, chunk)
            while len(chunks) > 1 and len(chunks[1]) < 2 * len(chunks[0]):
                chunks[:2] = [merged(chunks[:2])]
        else:
            chunks.append(chunk)
            while len(chunks) > 1 and len(chunks[-2]) < 2 * len(chunks[-1]):
                chunks[-2:] = [merged(chunks[-2:])]
        return True

    def _read(self, table: Generator[Rows, None, None], rows: int) -> None:
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
        fits = not parts or self._add(*_together(parts), newest=False)
        if ended and fits:
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
    now = moment(connected, topic)
    place = connected, topic, columns, most
    found = _kept.pop(place, None)
    if found is not None and not found.moment.same(now) and not found.follow(connected, topic, columns, now):
        found.close()
        found = None
    if found is None:
        kind = pa.struct(list(arrow_schema(spark_schema(columns))))
        found = Kept(now, kind, moments.table(connected, topic, columns, len(now.ends)), most)
    while len(_kept) >= TOPICS:
        _kept.pop(next(iter(_kept))).close()
    _kept[place] = found
    return found, len(now.ends)


@cache
def _memory() -> int:
    """Bytes that this process may have."""
    try:
        import resource  # not on Windows
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _together(parts: list[Rows]) -> Rows:
    keys, entries = zip(*parts, strict=True)
    return pa.concat_arrays(keys), pa.concat_arrays(entries)


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
