"""Answers to lookups that are still true, kept in a worker for the batches of rows to come.

Nothing is ever answered from here that the broker would answer otherwise: before each batch it is asked how far the
topic's partitions are. What was committed since is read from the log, or all that was kept is forgotten.

A worker that is likely to ask for many keys, or has done so, reads the whole table first, if that is small enough
beside them: it costs about 1.4 us a row, and a lookup 3 to 7 (on a quiet machine of two cores). Then it asks no more.
"""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from functools import cache

import numpy as np
import pyarrow as pa

from krappy.blocking import Client
from krappy.errors import KrappyError
from krappy.spark import hashing
from krappy.spark.chunk import Chunk, Flags, Numbers, merged
from krappy.spark.hashing import Prints
from krappy.spark.moments import Moment, Rows, Source, together
from krappy.spark.schema import arrow_schema, spark_schema

MOST = 192 << 20  # bytes: more than a million entries of 150
TOPICS = 4
FREE = 100_000  # lookups, with fewer than which nobody cares how large the table is
ROWS = 5  # that a table may have for each lookup, to be read instead


class Kept:
    """Entries of one topic by their keys, null for what is absent. `most`: bytes that are kept, about."""

    def __init__(self, source: Source, at: Moment, most: int) -> None:
        self.moment = at  # nothing here is older; what is newer, as the broker was asked later, comes again by `follow`
        self.whole = False  # what is not here is not in the table
        self._source, self._most = source, most
        self._kind = pa.struct(list(arrow_schema(spark_schema(source.columns))))
        self._chunks: list[Chunk] = []  # the newest first: what it says of a key is true
        self._asked, self._patience = 0, float(FREE)

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
        """Keeps what the broker was asked for, while there is room."""
        self._add(keys, entries)
        self._asked += len(keys)

    def prepare(self, expected: int) -> bool:
        """Reads the whole table, if that is worth it: whether it has. `expected`: lookups that are likely, in all."""
        wanted = max(self._asked, expected)
        if wanted >= self._patience:
            self._patience = math.inf
            with suppress(KrappyError):  # too many snapshots are held (Overloaded), for one
                self._read(wanted)
        return self.whole

    def follow(self, to: Moment) -> bool:
        """Takes in what has changed until then, unless that is more than is kept, or not all of it can be known."""
        moved = sum(end - self.moment.ends.get(partition, 0) for partition, end in to.ends.items())
        if moved > len(self) or not self.moment.leads_to(to):
            return False
        try:
            changes = list(self._source.changes(self.moment, to))
        except KrappyError:  # it can't be read any more
            return False
        if not self.moment.leads_to(to) or (changes and not self._add(*together(changes))):
            return False
        self.moment = to
        return True

    def _add(self, keys: pa.Array, entries: pa.StructArray) -> bool:
        """Whether there was room."""
        chunk, chunks = Chunk(hashing.fingerprints(keys), keys, entries), self._chunks
        if chunk.nbytes + sum(each.nbytes for each in chunks) > self._most:
            return False
        chunks.insert(0, chunk)
        while len(chunks) > 1 and len(chunks[1]) < 2 * len(chunks[0]):
            chunks[:2] = [merged(chunks[:2])]
        return True

    def _read(self, wanted: int) -> None:
        """All of the table, unless it turns out to be too large, to judge the others by its first partition."""
        parts: list[Rows] = []
        rows = size = 0
        with self._source.table() as partitions:
            for number, partition in enumerate(partitions):
                alike = 1 if number else len(partitions)
                for part in partition:
                    parts.append(part)
                    rows += len(part[0])
                    size += sum(int(each.nbytes) for each in part)
                    if size * alike > self._most:
                        return
                    if rows * alike > ROWS * wanted:
                        self._patience = 2 * wanted
                        return
        held = [*((each.keys, each.entries) for each in self._chunks), *parts]  # of a key, the first is the newest
        if held:
            keys, entries = together(held)
            held.clear()
            parts.clear()  # so much memory is not taken thrice
            every = Chunk(hashing.fingerprints(keys), keys, entries)
            if every.nbytes > self._most:
                return
            self._chunks = [every]
        self.whole = True


_kept: dict[tuple[Source, int], Kept] = {}


def kept(connected: Client, topic: str, columns: tuple[str, ...], most: int) -> tuple[Kept, int]:
    """What is still true of a topic's entries with these columns, and how many partitions the topic has.

    `most`: bytes that may be kept, about; no more than a quarter of what the process may have altogether, where
    spark.executor.pyspark.memory bounds that. Raises UnknownTopic.
    """
    most = min(most, _memory() // 4)
    source = Source(connected, topic, columns)
    place, now = (source, most), source.moment()
    found = _kept.pop(place, None)
    if found is not None and found.moment.same(now):
        found.moment = now
    elif found is None or not found.follow(now):
        found = Kept(source, now, most)
    while len(_kept) >= TOPICS:
        del _kept[next(iter(_kept))]
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
