"""Batches that a partition refuses for now, for the producer's next ones (core/refused_batches.py)."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from krappy.broker.partition.pending import Pending
from krappy.core.refused_batches import NextBatch, RefusedBatches, comes_again
from krappy.errors import KrappyError
from krappy.records.batch import BatchHeader

MOST = 1000  # producers


class Refusals:
    def __init__(self) -> None:
        self._first = RefusedBatches[int, KrappyError](MOST)  # by producer id

    def __bool__(self) -> bool:
        return bool(self._first)

    def reject(self, items: Iterable[Pending], error: KrappyError) -> None:
        """Refuses these. Those that come again, the next ones of their producers have to wait for."""
        self.note(items, error)
        for item in items:
            item.reject(error)

    def note(self, items: Iterable[Pending], error: KrappyError) -> None:
        """These will be refused so."""
        if comes_again(error):
            now, kept = trio.current_time(), error.copy()
            for item in items:
                self._first.note(item.header.producer_id, item.header, kept, now)

    def check(self, header: BatchHeader, following: tuple[int, int] | None) -> None:
        """Raises why an earlier batch of the producer was refused, which is to come again. `following`: the epoch and
        sequence of the batch that is expected next of it; None: it is not known."""
        expected = None if following is None else NextBatch(*following)
        error = self._first.find(header.producer_id, header, expected, trio.current_time())
        if error is not None:
            raise error.copy()
