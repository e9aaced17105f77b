"""Reads a whole table for many lookups: sorts one piece of it while the next one is being sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from krappy.spark import hashing
from krappy.spark.chunk import Chunk, ordered
from krappy.spark.moments import Rows, TableSource, together
from krappy.spark.shared import Draft

PIECE = 16 << 20  # bytes that are sorted together, at least
PART = 2  # a piece has at least half of what was sorted before it: fewer pieces, since each lookup searches all


class TooLarge(Exception):
    """The table is too large to be read as a whole."""


class WholeTableLimits(NamedTuple):
    """`rows`, `size`: rows and bytes that a table may have to be read; `memory`: bytes that this process may keep."""

    rows: int
    size: int
    memory: int


def read(source: TableSource, limits: WholeTableLimits, draft: Draft) -> list[Chunk] | None:
    """Reads the whole table, and adds it to `draft` if there is room. Returns it; None: it is only in `draft`.

    Raises TooLarge, and what `TableSource.table` raises.
    """
    sorter = _Sorter(limits.memory, draft)
    with ThreadPoolExecutor(1) as beside:
        sorting = None
        for piece in _pieces(source, limits):
            if sorting is not None:
                sorting.result()
            sorting = beside.submit(sorter.take, piece)
        if sorting is not None:
            sorting.result()
    return sorter.pieces


class _Sorter:
    def __init__(self, room: int, draft: Draft) -> None:
        self.pieces: list[Chunk] | None = []
        self._room, self._draft = room, draft

    def take(self, piece: list[Rows]) -> None:
        keys, entries = together(piece)
        piece.clear()  # else it would be in memory three times
        chunk = ordered(hashing.fingerprints(keys), keys, entries)
        self._room -= chunk.nbytes
        if self._room < 0:
            self.pieces = None
        if self.pieces is not None:
            self.pieces.append(chunk)
        if not self._draft.add(chunk) and self.pieces is None:
            raise TooLarge


def _pieces(source: TableSource, limits: WholeTableLimits) -> Iterator[list[Rows]]:
    """The table in pieces. Raises TooLarge as soon as it seems too large, if all partitions are like the first one."""
    piece: list[Rows] = []
    rows = size = before = 0
    with source.table() as partitions:
        for number, partition in enumerate(partitions):
            alike = 1 if number else len(partitions)
            for part in partition:
                piece.append(part)
                rows += len(part[0])
                size += sum(int(each.nbytes) for each in part)
                if rows * alike > limits.rows or size * alike > limits.size:
                    raise TooLarge
                if size - before >= max(PIECE, min(before // PART, limits.memory)):
                    yield piece
                    piece, before = [], size
    if piece:
        yield piece
