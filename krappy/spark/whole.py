"""A table read as a whole, for many lookups: a piece of it is sorted while the next one is being sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from krappy.spark import hashing
from krappy.spark.chunk import Chunk, ordered
from krappy.spark.moments import Rows, TableSource, together
from krappy.spark.shared import Draft

PIECE = 16 << 20  # bytes that are sorted together, at least,
PART = 2  # and half of what was sorted before: each piece is searched for each key


class TooLarge(Exception):
    """A table is not worth being read as a whole."""


class WholeTableLimits(NamedTuple):
    """Of a table: rows, bytes, and those that this process may hold of it for good."""

    rows: int
    size: int
    memory: int


def read(source: TableSource, limits: WholeTableLimits, draft: Draft) -> list[Chunk] | None:
    """All of the table, which is in the draft, too, if there is room; None: it is only there.

    Raises TooLarge, and what `Source.table` does.
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
        piece.clear()  # so much memory is not taken thrice
        chunk = ordered(hashing.fingerprints(keys), keys, entries)
        self._room -= chunk.nbytes
        if self._room < 0:
            self.pieces = None
        if self.pieces is not None:
            self.pieces.append(chunk)
        if not self._draft.add(chunk) and self.pieces is None:
            raise TooLarge


def _pieces(source: TableSource, limits: WholeTableLimits) -> Iterator[list[Rows]]:
    """The table bit by bit. Raises TooLarge as soon as it seems to be, going by its first partition."""
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
