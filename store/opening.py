"""Looks into batches for times, in threads: into one at a time, since a large one takes much memory once decoded."""

from __future__ import annotations

import threading

from krappy.records.batch import check, decode

_one = threading.Lock()


def first_since(batch: bytes, timestamp: int, start: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record from offset `start` on whose timestamp is at least `timestamp`. Raises
    CorruptBatch."""
    check(batch)
    with _one:
        columns = decode(batch)
        rows = zip(columns.offsets, columns.timestamps, strict=True)
        return next(((offset, when) for offset, when in rows if when >= timestamp and offset >= start), None)


def latest(batch: bytes, start: int, stop: int) -> tuple[int, int]:
    """(timestamp, negated offset) of the first record with the highest timestamp among those from `start` to before
    `stop`; (-1, 0) without one. Raises CorruptBatch."""
    check(batch)
    with _one:
        columns = decode(batch)
        rows = zip(columns.timestamps, columns.offsets, strict=True)
        return max(((when, -offset) for when, offset in rows if start <= offset < stop), default=(-1, 0))
