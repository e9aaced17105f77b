"""Answers to lookups that are still true, kept in a worker for the batches of rows to come.

Nothing is ever answered from here that the broker would answer otherwise: before each batch it is asked how far the
topic's partitions are, and when anything was committed or deleted since, all that was kept of the topic is forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from krappy.blocking import Client

MOST = 64 << 20  # bytes that a worker keeps of one topic
ROW = 150  # bytes that a key takes in a dictionary, about, beside its own
TOPICS = 4

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Kept:
    """Entries of one topic by their keys, null for what is absent."""

    def __init__(self, state: Hashable, kind: pa.DataType) -> None:
        self.state = state
        self.entries = pa.nulls(0, kind)
        self._rows: dict[bytes, int] = {}
        self._size = 0

    def places(self, keys: list[bytes]) -> Numbers:
        """Where in `entries` each key is; -1: it is not."""
        return np.array(list(map(self._rows.get, keys, repeat(-1))), np.int64)

    def add(self, keys: list[bytes], entries: pa.StructArray) -> None:
        """Keeps these too, while there is room."""
        size = entries.nbytes + sum(map(len, keys)) + ROW * len(keys)
        if self._size + size > MOST:
            return
        self._size += size
        self._rows.update(zip(keys, range(len(self.entries), len(self.entries) + len(keys)), strict=True))
        self.entries = pa.concat_arrays([self.entries, entries])


_kept: dict[Hashable, Kept] = {}


def kept(connected: Client, topic: str, kind: pa.DataType) -> tuple[Kept, int]:
    """What is still true of a topic's entries with these columns, and how many partitions the topic has.

    Raises UnknownTopic.
    """
    info, ends = connected.describe(topic), connected.offsets(topic)
    state = info.id, tuple((each.partition, each.start) for each in info.partitions), tuple(sorted(ends.items()))
    place = connected, topic, str(kind)
    found = _kept.pop(place, None)
    if found is None or found.state != state:
        found = Kept(state, kind)
    while len(_kept) >= TOPICS:
        del _kept[next(iter(_kept))]
    _kept[place] = found
    return found, len(info.partitions)
