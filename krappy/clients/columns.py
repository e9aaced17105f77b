"""Sends of many records as columns: checks them, spreads them over partitions, and orders their receipts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, cast

from krappy.clients import values as given
from krappy.clients.accumulator import Accumulator
from krappy.clients.receipts import Stored
from krappy.clients.values import HeadersIn, Text
from krappy.partitioner import partition_for
from krappy.types import Receipt, Record

_BYTES: frozenset[type] = frozenset([bytes, type(None)])
LEAST_RUN = 500  # at least so many rows without a key go to one partition together


def as_bytes(column: Sequence[Text | None], what: str) -> Sequence[bytes | None]:
    """The column with each str as UTF-8; the column itself when there is nothing to convert. Raises InvalidRecord."""
    if _BYTES.issuperset(map(type, column)):
        return cast(Sequence[bytes | None], column)
    return [given.encoded(each, what) for each in column]


def pick(column: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    """The given rows (their numbers) of a column."""
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    return itemgetter(*rows)(column) if len(rows) > 1 else [column[rows[0]]]


def spread(
    keys: Sequence[bytes | None] | None, count: int, accumulator: Accumulator, partition: int | None
) -> Iterable[tuple[int, Sequence[int]]]:
    """Pairs of a partition and the numbers of the rows that go to it.

    Rows with a key go to the partition of its murmur2. If no row has a key, they are split into runs, round-robin."""
    partitions = accumulator.partitions
    if partition is not None:
        return [(partition, range(count))]
    if partitions == 1:
        return [(0, range(count))]
    if keys is None:
        step = max(-(-count // partitions), LEAST_RUN)
        runs = [range(first, min(count, first + step)) for first in range(0, count, step)]
        return [(accumulator.next_partition(), rows) for rows in runs]
    try:
        chosen = list(map(partition_for, cast(Sequence[bytes], keys), repeat(partitions)))
    except TypeError:  # a None among them
        nowhere = accumulator.next_partition()
        chosen = [nowhere if key is None else partition_for(key, partitions) for key in keys]
    return [(index, list(compress(range(count), map(index.__eq__, chosen)))) for index in sorted(set(chosen))]


class Columned:
    """Turns Records and (key, value) pairs into columns."""

    def __init__(self, records: Iterable[Record | tuple[Text | None, Text | None]]) -> None:
        self.keys: list[Text | None] = []
        self.values: list[Text | None] = []
        self.headers: list[HeadersIn | None] | None = None
        headers: list[HeadersIn | None] = []
        timestamps: list[int | None] = []
        for record in records:
            if isinstance(record, Record):
                self.keys.append(record.key)
                self.values.append(record.value)
                headers.append(record.headers or None)
                timestamps.append(record.timestamp)
            else:
                key, value = record
                self.keys.append(key)
                self.values.append(value)
                headers.append(None)
                timestamps.append(None)
        if any(headers):
            self.headers = headers
        self._timestamps = timestamps

    def times(self, now: int) -> list[int]:
        """Each record's timestamp in ms; `now` for a record without one."""
        return [now if time is None else time for time in self._timestamps]


def receipts(runs: Iterable[Stored], times: Sequence[int]) -> list[Receipt]:
    """A receipt for each row, in the order of the rows. `times`: the timestamps (ms) that were sent, by row."""
    found: dict[int, Receipt] = {}
    for run in runs:
        for offset, row in enumerate(run.rows, run.offset):
            time = times[row] if run.append_time is None else run.append_time
            found[row] = Receipt(run.topic, run.partition, offset, time)
    return [found[row] for row in range(len(times))]
