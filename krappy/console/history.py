"""The last hour of the broker's figures, so that the charts of a page are whole when it opens.

The broker reads its own figures every EVERY_SECONDS, from its start on, whether or not somebody looks. Memory is
bounded: KEPT points of a dozen numbers, and for the MOST_GROUPS groups that lag most, a number of 8 bytes for each
point, and the names of its topics. A group that falls out of them, or is deleted, loses its history.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from krappy.console.numbers import Latency, Numbers, Totals, gather
from krappy.errors import KrappyError
from krappy.ports import BrokerPort, ServerPort

EVERY_SECONDS = 10.0
KEPT = 360  # points: an hour of them
MOST_GROUPS = 100
UNKNOWN = -1  # the lag of a group at a time when it was not kept
WRITES = frozenset(("Batch", "Message", "Produce"))

Rate = Annotated[float, Meta(description="per second, since the point before")]
Seconds = Annotated[float | None, Meta(description="of the observations since the point before; null: there were none")]

Lag = Annotated[int | None, Meta(description="events, of all topics; null: some may not be described")]


class HistoryPoint(msgspec.Struct):
    """The broker's figures at one time."""

    at: Annotated[int, Meta(description="ms since the epoch")]
    events: Rate
    received: Rate
    sent: Rate
    write50: Seconds
    write99: Seconds
    sync99: Seconds
    group_lag: Lag
    view_lag: Lag
    resident: int
    budget: int


class FigureHistory:
    """Takes readings, and keeps what changed between them. `told`: when the last one was, in ms."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=KEPT)
        self._before: Totals | None = None
        self._lags: dict[str, array[int]] = {}  # by group, a lag for each point; the furthest behind first
        self._topics: dict[str, frozenset[str]] = {}  # by group, the topics that it reads

    def take(self, now: Numbers) -> None:
        """Adds a point. The first reading makes none: there is nothing to compare it with."""
        before, self._before = self._before, now.totals
        if before is None or now.totals.now_ms <= before.now_ms:  # the clock was set back
            return
        self.points.append(_point(before, now.totals))
        self._take_lags({each["group"]: sum(max(0, part["lag"]) for part in each["partitions"]) for each in now.groups})
        read = {each["group"]: {part["topic"] for part in each["partitions"]} for each in now.groups}
        self._topics = {group: self._topics.get(group, frozenset()) | read[group] for group in self._lags}

    def topics(self, group: str) -> Collection[str]:
        """The topics whose lags are summed up in the group's, or were within the hour."""
        return self._topics.get(group, ())

    def _take_lags(self, lags: Mapping[str, int]) -> None:
        kept = sorted(lags, key=lambda group: (-lags[group], group))[:MOST_GROUPS]
        held: dict[str, array[int]] = {}
        for group in kept:
            series = self._lags.get(group)
            if series is None:
                series = array("q", [UNKNOWN]) * (len(self.points) - 1)
            elif len(series) == KEPT:
                del series[0]
            series.append(lags[group])
            held[group] = series
        self._lags = held

    def lags(self, groups: Iterable[str]) -> dict[str, Sequence[int | None]]:
        """The lags of those of these groups that are kept. The group that is furthest behind comes first."""
        wanted = set(groups)
        return {
            group: [None if lag == UNKNOWN else lag for lag in series]
            for group, series in self._lags.items()
            if group in wanted
        }

    async def record(self, broker: BrokerPort, server: ServerPort) -> None:
        """Takes a reading every EVERY_SECONDS until it is cancelled. One that fails is left out: the broker is about to
        end, or its tables are opened anew."""
        while True:
            with suppress(KrappyError):
                self.take(await gather(broker, broker.access(), server))
            await trio.sleep(EVERY_SECONDS)


def quantile(now: Latency, before: Latency | None, part: float) -> float | None:
    """The quantile (`part`: 0.5, 0.99) of the observations between two readings, linear within a bucket. None: there
    were none."""
    old = before.counts if before is not None else [0] * len(now.counts)
    counts = [count - was for count, was in zip(now.counts, old, strict=True)]
    wanted = part * sum(counts)
    if wanted <= 0:
        return None
    seen = 0
    for at, count in enumerate(counts):
        if count and seen + count >= wanted:
            low = now.bounds[at - 1] if at else 0.0
            high = now.bounds[at] if at < len(now.bounds) else low
            return low + (high - low) * (wanted - seen) / count
        seen += count
    return None


def _writes(totals: Totals) -> Latency | None:
    """The latencies of all requests that write events, together."""
    found = [each.latency for each in totals.requests if each.request in WRITES]
    if not found:
        return None
    counts = [sum(column) for column in zip(*(each.counts for each in found), strict=True)]
    return Latency(sum(counts), sum(each.sum for each in found), found[0].bounds, counts)


def _point(before: Totals, now: Totals) -> HistoryPoint:
    seconds = (now.now_ms - before.now_ms) / 1000

    def rate(old: int, new: int) -> float:
        return round(max(0, new - old) / seconds, 3)

    wrote, had = _writes(now), _writes(before)
    return HistoryPoint(
        at=now.now_ms,
        events=rate(before.appended_events, now.appended_events),
        received=rate(sum(before.received_bytes.values()), sum(now.received_bytes.values())),
        sent=rate(sum(before.sent_bytes.values()), sum(now.sent_bytes.values())),
        write50=quantile(wrote, had, 0.5) if wrote else None,
        write99=quantile(wrote, had, 0.99) if wrote else None,
        sync99=quantile(now.log_sync, before.log_sync, 0.99),
        group_lag=now.group_lag,
        view_lag=now.view_lag_events,
        resident=now.resident_bytes,
        budget=now.budget_used_bytes,
    )
