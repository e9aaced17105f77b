"""How fast writes under a condition are, beside plain ones: `producer.send(…, expect="absent")` of distinct keys.

The two take turns, each round on a new topic, so that a machine that becomes slower slows down both. Compared are the
two rounds of each turn; who goes first alternates.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from krappy.bench.settings import BenchSettings
from krappy.bench.topics import own_topic

if TYPE_CHECKING:
    from krappy.blocking import Client


def expect(client: Client, settings: BenchSettings) -> dict[str, Any]:
    """The medians of both rates, and of the ratios of the turns."""
    keys = [b"%012d" % number for number in range(settings.count)]
    value = b"v" * (settings.record_bytes - 12)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(settings.rounds):
        for conditional in (turn % 2 == 1, turn % 2 == 0):
            rates[conditional].append(_rate(client, settings, keys, value, conditional))
    ratios = [under / plain for under, plain in zip(rates[True], rates[False], strict=True)]
    return {
        "bench": "expect",
        "unit": "events/s",
        "count": settings.count,
        "rounds": settings.rounds,
        "per_second_plain": round(statistics.median(rates[False])),
        "per_second": round(statistics.median(rates[True])),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }


def _rate(client: Client, settings: BenchSettings, keys: list[bytes], value: bytes, conditional: bool) -> float:
    """Events a second, from the first send until the last is acknowledged."""
    condition: dict[str, Any] = {"expect": "absent"} if conditional else {}
    with own_topic(client, settings) as topic, client.producer(topic) as producer:
        started = time.perf_counter()
        sent = [producer.send(value, key=key, **condition) for key in keys]
        for each in sent:
            each.result()
        return len(sent) / (time.perf_counter() - started)
