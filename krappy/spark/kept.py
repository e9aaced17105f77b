"""Answers to lookups, kept in a worker as long as they are true, for its next batches of rows.

An answer from here is always the one that the broker would give: before each batch, the broker is asked how far the
topic's partitions are. Events committed since are read from the log; if that is not possible, all is forgotten.

If many lookups are likely in the executor, or the worker has made many itself, it reads the whole table first, unless
the table has too many rows for that: to read a row costs about 1.4 us, and a lookup 3 to 7 (on a quiet machine of two
cores).
After that neither this worker nor the executor's others (`shared.py`) look keys up at the broker.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from functools import cache

import numpy as np
import pyarrow as pa

from krappy.blocking import Client
from krappy.errors import KrappyError
from krappy.spark import hashing, shared, whole
from krappy.spark.chunk import Chunk, Flags, Numbers, merged, ordered
from krappy.spark.hashing import Prints
from krappy.spark.moments import Moment, TableSource, TooManyChanges, together
from krappy.spark.schema import arrow_schema, spark_schema
from krappy.spark.shared import SharedAmongWorkers

MOST = 192 << 20  # bytes: more than a million entries of 150
TOPICS = 4  # topics of which answers are kept
FREE = 100_000  # lookups; with fewer, the whole table is never read
ROWS = 5  # a table with more rows for each lookup is not read as a whole
SHARED = 10  # times the bytes that one worker keeps: the size of the file that an executor's workers may share


class Kept:
    """Entries of one topic by their keys, null for absent keys. `most`: bytes that are kept, about. `patience`: with
    fewer lookups than this, the whole table is not read."""

    def __init__(self, source: TableSource, at: Moment, most: int, patience: float) -> None:
        self.moment = at  # nothing here is older; entries may be newer, and `follow` then reads their events again
        self._source, self._most = source, most
        self._kind = pa.struct(list(arrow_schema(spark_schema(source.columns))))
        self._recent: list[Chunk] = []  # the newest first: the first that has a key is right
        self._table: list[Chunk] | None = None  # the whole table before those; then a key in neither is absent
        self._table_size = 0  # bytes of `_table` in this worker's own memory
        folder = shared.folder()
        self._shared = SharedAmongWorkers(folder, source)
        self._largest = most if folder is None else min(SHARED * most, _memory() // 4)
        self._asked = 0
        self.patience = patience

    @property
    def whole(self) -> bool:
        """Whether the whole table is here, so that every key is known."""
        return self._table is not None

    @property
    def _chunks(self) -> list[Chunk]:
        return [*self._recent, *(self._table or ())]

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def look(self, keys: pa.Array, prints: Prints) -> tuple[pa.StructArray, Flags]:
        """The entry of each key, null if there is none; and a flag for each key: whether that is known."""
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
        """Keeps the broker's answers: `entries` of `keys`, null for absent ones; nothing if there is no room."""
        self._add(keys, entries)
        self._asked += len(keys)

    def prepare(self, expected: int) -> bool:
        """Takes the whole table from another worker, or reads it if that is worth it; returns whether it is here.

        `expected`: how many lookups all workers of the executor are likely to make.
        """
        if self._taken():
            return True
        wanted = max(self._asked, expected)
        if wanted >= self.patience:
            with suppress(whole.TooLarge, KrappyError), self._shared.turn() as mine:  # KrappyError: Overloaded, say
                if not self._taken() and mine:
                    self._read(wanted)
            if not self.whole:
                self.patience = 2 * wanted
        return self.whole

    def _taken(self) -> bool:
        """Takes the table that another worker has read, and brings it up to date; False if there is none that fits."""
        found = self._shared.newer()
        if found is None or sum(each.nbytes for each in found[1]) > self._largest:
            return False
        mine = self.moment, self._recent, self._table, self._table_size
        self.moment, self._recent, self._table, self._table_size = found[0], [], found[1], 0
        if self.follow(self._source.moment()):
            return True
        self.moment, self._recent, self._table, self._table_size = mine
        return False

    def follow(self, to: Moment) -> bool:
        """Takes in all changes up to `to`. False, and nothing is taken in, if they are more than is kept here, or if
        the log no longer has all of them."""
        moved = sum(end - self.moment.ends.get(partition, 0) for partition, end in to.ends.items())
        size = sum(each.nbytes for each in self._chunks)  # changed entries are assumed to be as large as those here
        if moved > len(self) or moved * size > self._most * len(self) or not self.moment.leads_to(to):
            return False
        try:
            changes = list(self._source.changes(self.moment, to, self._most))
        except (KrappyError, TooManyChanges):  # KrappyError: that part of the log is gone, say
            return False
        if not self.moment.leads_to(to) or (changes and not self._add(*together(changes))):
            return False
        self.moment = to
        return True

    def _add(self, keys: pa.Array, entries: pa.StructArray) -> bool:
        """Keeps entries as the newest; returns whether there was room."""
        chunk, recent = ordered(hashing.fingerprints(keys), keys, entries), self._recent
        if chunk.nbytes + self._table_size + sum(each.nbytes for each in recent) > self._most:
            return False
        recent.insert(0, chunk)
        while len(recent) > 1 and len(recent[1]) < 2 * len(recent[0]):
            recent[:2] = [merged(recent[:2])]
        return True

    def _read(self, wanted: int) -> None:
        """Reads the whole table, and shares it if there is room in the file. Raises TooLarge, KrappyError."""
        limits = whole.WholeTableLimits(ROWS * wanted, self._largest, self._most)
        with closing(self._shared.draft(self.moment, self._kind)) as draft:
            table = whole.read(self._source, limits, draft)
            draft.publish()
        if table is not None:
            self._recent, self._table = [], table
            self._table_size = sum(each.nbytes for each in table)
        self._taken()  # uses the shared file in place of this worker's own memory


_kept: dict[tuple[TableSource, int], Kept] = {}


def kept(connected: Client, topic: str, columns: tuple[str, ...], most: int) -> tuple[Kept, int]:
    """The answers of a topic, with these columns, that are still true; and the number of its partitions. While the
    topic has strays: no answers, and 0.

    `most`: bytes that may be kept, about; it is limited to a quarter of the process's memory if
    spark.executor.pyspark.memory bounds that. Raises UnknownTopic.
    """
    most = min(most, _memory() // 4)
    source = TableSource(connected, topic, columns)
    place, now = (source, most), source.moment()
    found = _kept.pop(place, None)
    if now.scattered:
        return Kept(source, now, 0, FREE), 0
    if found is not None and found.moment.same(now):
        found.moment = now
    elif found is None or not found.follow(now):
        found = Kept(source, now, most, FREE if found is None else found.patience)
    while len(_kept) >= TOPICS:
        del _kept[next(iter(_kept))]
    _kept[place] = found
    return found, len(now.ends)


@cache
def _memory() -> int:
    """Bytes of memory that this process may have."""
    try:
        import resource  # not on Windows
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def in_order(parts: list[pa.Array], rows: list[Numbers]) -> pa.Array:
    """One array of all parts. `rows`: for each part, the places of its rows in that array."""
    full = [(part, mine) for part, mine in zip(parts, rows, strict=True) if len(part)]
    if len(full) == 1:  # within a part, rows are ascending
        return full[0][0]
    return pa.concat_arrays(parts).take(pa.array(inverse(np.concatenate(rows))))


def inverse(order: Numbers) -> Numbers:
    """The index of each number in `order`, a permutation of 0 to len - 1."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places
