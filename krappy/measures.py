"""The broker's counters, as cheap as possible: plain numbers, which the console turns into metrics.

Nothing here runs per event. A request is counted once, with the latency of the chunk of requests that it came in.
Events and bytes are added up per group commit; syncs are timed one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds of the latency buckets, in seconds. One more bucket holds all longer ones.
LATENCY_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)


class Histogram:
    """How many observations fell into each bucket. A bucket includes its upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class RequestTimes:
    """The latencies of a protocol's requests, by their type: its number, or its name for HTTP."""

    def __init__(self) -> None:
        self.by_kind: dict[int | str, Histogram] = {}

    def observe(self, kind: int | str, seconds: float, times: int = 1) -> None:
        found = self.by_kind.get(kind)
        if found is None:
            found = self.by_kind[kind] = Histogram()
        found.observe(seconds, times)

    def observe_each(self, counted: dict[int, int], seconds: float) -> None:
        """Counts requests that were answered together: how many of each type. All have the same latency, since each
        waited for all."""
        for kind, times in counted.items():
            self.observe(kind, seconds, times)


class StoreMeasures:
    """What the broker's disk side has done since it started."""

    def __init__(self, kept_limit: int = 64 << 20) -> None:
        self.kept_bytes = 0  # bytes of memory of decoded batches that wait for their views, of all partitions
        self.kept_limit = kept_limit  # how many there may be
        self.appended_events = 0
        self.appended_bytes = 0
        self.appends_failed = 0
        self.rebuilt_replicas = 0  # in a cluster: replicas that were emptied, to be copied anew
        self.scrubbed_bytes = 0  # of logs, read to find damage
        self.syncs = Histogram()  # fdatasync of logs, in seconds
        self.catalog_syncs = Histogram()  # syncs of the catalog and the groups, in seconds
