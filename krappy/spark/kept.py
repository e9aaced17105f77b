"""Answers to lookups that are still true, kept in a worker for the batches of rows to come.

Nothing is ever answered from here that the broker would answer otherwise: before each batch it is asked how far the
topic's partitions are. What was committed since is read from the log, or all that was kept is forgotten.

A worker whose executor is likely to ask for many keys, or that has asked for many itself, reads the whole table first,
if that is small enough beside them: it costs about 1.4 us a row, and a lookup 3 to 7 (on a quiet machine of two cores).
Then it asks no more, nor do the executor's other workers (`shared.py`).
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
TOPICS = 4
FREE = 100_000  # lookups, with fewer than which nobody cares how large the table is
ROWS = 5  # that a table may have for each lookup, to be read instead
SHARED = 10  # times what one worker may keep, the workers of an executor may share in a file


class Kept:
    """Entries of one topic by their keys, null for what is absent. `most`: bytes that are kept, about."""

    def __init__(self, source: TableSource, at: Moment, most: int, patience: float) -> None:
        self.moment = at  # nothing here is older; what is newer, as the broker was asked later, comes again by `follow`
        self._source, self._most = source, most
        self._kind = pa.struct(list(arrow_schema(spark_schema(source.columns))))
        self._recent: list[Chunk] = []  # the newest first: what it says of a key is true
        self._table: list[Chunk] | None = None  # all that there was before those: what is in neither is not there
        self._table_size = 0  # of this worker's memory
        folder = shared.folder()
        self._shared = SharedAmongWorkers(folder, source)
        self._largest = most if folder is None else min(SHARED * most, _memory() // 4)
        self._asked = 0
        self.patience = patience  # lookups, with fewer than which the table is not read

    @property
    def whole(self) -> bool:
        """Whether nothing needs to be asked."""
        return self._table is not None

    @property
    def _chunks(self) -> list[Chunk]:
        return [*self._recent, *(self._table or ())]

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
        """Has the whole table from another worker, or reads it, if that is worth it: whether it has.

        `expected`: lookups that are likely, of all workers of the executor.
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
        """Whether another worker's reading serves."""
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
        """Takes in what has changed until then, unless that is more than is kept, or not all of it can be known."""
        moved = sum(end - self.moment.ends.get(partition, 0) for partition, end in to.ends.items())
        size = sum(each.nbytes for each in self._chunks)  # and the changes are as large as what is here, about
        if moved > len(self) or moved * size > self._most * len(self) or not self.moment.leads_to(to):
            return False
        try:
            changes = list(self._source.changes(self.moment, to, self._most))
        except (KrappyError, TooManyChanges):  # it can't be read any more
            return False
        if not self.moment.leads_to(to) or (changes and not self._add(*together(changes))):
            return False
        self.moment = to
        return True

    def _add(self, keys: pa.Array, entries: pa.StructArray) -> bool:
        """Whether there was room."""
        chunk, recent = ordered(hashing.fingerprints(keys), keys, entries), self._recent
        if chunk.nbytes + self._table_size + sum(each.nbytes for each in recent) > self._most:
            return False
        recent.insert(0, chunk)
        while len(recent) > 1 and len(recent[1]) < 2 * len(recent[0]):
            recent[:2] = [merged(recent[:2])]
        return True

    def _read(self, wanted: int) -> None:
        """All of the table. Raises TooLarge, KrappyError."""
        limits = whole.WholeTableLimits(ROWS * wanted, self._largest, self._most)
        with closing(self._shared.draft(self.moment, self._kind)) as draft:
            table = whole.read(self._source, limits, draft)
            draft.publish()
        if table is not None:
            self._recent, self._table = [], table
            self._table_size = sum(each.nbytes for each in table)
        self._taken()  # and gives back what this worker has had to itself


_kept: dict[tuple[TableSource, int], Kept] = {}


def kept(connected: Client, topic: str, columns: tuple[str, ...], most: int) -> tuple[Kept, int]:
    """What is still true of a topic's entries with these columns, and how many partitions the topic has; nothing, and
    0, while keys may stand in other partitions than their own.

    `most`: bytes that may be kept, about; no more than a quarter of what the process may have altogether, where
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
