"""Reads many events, entries or keys by columns, as the Spark data source does.

Timed: from the first request to the last block, with its columns in Arrow's layout. Of a table: a snapshot and its
ranges, which are read one after the other. Of lookups: random keys, given as a column.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from krappy.arrow_layout import binary
from krappy.bench import load
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import fill, own_topic
from krappy.cli.errors import Failure

if TYPE_CHECKING:
    from krappy.blocking import Client

LOOKED_UP = 10_000  # keys of one lookup


def blocks(client: Client, settings: BenchSettings, of: str) -> list[Round]:
    stored = load.every_key(settings.count, settings.record_bytes)
    with own_topic(client, settings) as topic:
        fill(client, topic, stored, settings)
        client.table(topic).get(stored.keys[-1])  # waits until the view has all events
        return [_round(client, topic, stored, READS[of]) for _ in range(settings.rounds)]


def _round(client: Client, topic: str, stored: load.Load, read: Callable[[Client, str, load.Load], int]) -> Round:
    start = time.perf_counter()
    found = read(client, topic, stored)
    seconds = time.perf_counter() - start
    if found != len(stored):
        raise Failure(f"{found:,} of {len(stored):,} rows were read")
    return Round(found, seconds, stored.size)


def _table(client: Client, topic: str, stored: load.Load) -> int:
    snapshot = client.snapshot(topic)
    found = sum(block.rows for key_range in snapshot.ranges for block in client.read_snapshot(snapshot.id, key_range))
    client.close_snapshot(snapshot.id)
    return found


def _log(client: Client, topic: str, stored: load.Load) -> int:
    ends = client.offsets(topic).items()
    return sum(block.rows for partition, end in ends for block in client.read_log(topic, partition, 0, end))


def _lookup(client: Client, topic: str, stored: load.Load) -> int:
    keys = random.Random(1).choices(stored.keys, k=len(stored))
    table = client.table(topic)
    found = 0
    for first in range(0, len(keys), LOOKED_UP):
        block = table.get_columns(binary(keys[first : first + LOOKED_UP]))
        found += block.rows if block.found is None else 0
    return found


READS = {"table": _table, "log": _log, "lookup": _lookup}
