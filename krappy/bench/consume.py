"""`krappy bench consume`: how fast a stored log is read.

Timed: from opening the consumer until its last event is decoded. The client sends the next poll while one is decoded,
as it always does. Filling the topic is not timed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from krappy.bench import load
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import fill, own_topic
from krappy.cli.errors import Failure

if TYPE_CHECKING:
    from krappy.blocking import Client


def consume(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """Fills a topic with `count` events and reads it once per round."""
    events = load.make(settings.count, settings.record_bytes, settings.keys)
    with own_topic(client, settings) as topic:
        fill(client, topic, events, settings)
        return [_round(client, topic, events) for _ in range(settings.rounds)]


def _round(client: Client, topic: str, events: load.Load) -> Round:
    """Reads columns, as programs do that read many events."""
    start = time.perf_counter()
    found = 0
    with client.consumer(topic, start="earliest", end="now") as consumer:
        for batch in consumer.batches():
            found += len(batch.values)
    seconds = time.perf_counter() - start
    if found != len(events):
        raise Failure(f"{found:,} of {len(events):,} events were read")
    return Round(found, seconds, events.size)
