"""The broker's numbers for Prometheus, by its own client library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from krappy.console.numbers import Latency, Numbers, gather
from krappy.console.problems import Refusal

P = "krappy_"


class Metrics:
    """GET /metrics (ASGI). The text is made in a thread: with ten thousand topics it takes its time."""

    def __init__(self, console: Any) -> None:
        self._console = console

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refusal(405, "METHOD_NOT_ALLOWED", "metrics can only be read", Allow="GET")
        if not self._console.broker.opened:
            raise Refusal(503, "NOT_READY", "the store is being recovered", Retry_After="1")
        accept = Request(scope).headers.get("accept", "")
        async with self._console.turns:
            numbers = await gather(self._console.broker, self._console.server)
            registry = CollectorRegistry(auto_describe=False)
            registry.register(Snapshot(numbers, self._console.broker.version, self._console.live))
            make, kind = exposition.choose_encoder(accept)
            text = await trio.to_thread.run_sync(make, registry)
        await Response(text, headers={"content-type": kind})(scope, receive, send)


class Snapshot(Collector):
    def __init__(self, numbers: Numbers, version: str, live: int) -> None:
        self._totals, self._topics, self._groups = numbers
        self._version = version
        self._live = live

    def collect(self) -> Iterator[Metric]:
        yield from self._plain()
        yield from self._by_protocol()
        yield from self._latencies()
        yield from self._by_topic()
        lag = GaugeMetricFamily(
            P + "group_lag_events", "Events that a group has not settled", labels=["group", "topic"]
        )
        for group in self._groups:
            by_topic: dict[str, int] = {}
            for each in group["partitions"]:
                by_topic[each["topic"]] = by_topic.get(each["topic"], 0) + each["lag"]
            for topic, events in by_topic.items():
                lag.add_metric([group["group"], topic], events)
        yield lag

    def _plain(self) -> Iterator[Metric]:
        t = self._totals
        info = GaugeMetricFamily(P + "build_info", "1, with the version as a label", labels=["version"])
        info.add_metric([self._version], 1)
        yield info
        for name, about, value in (
            ("start_time_seconds", "When the broker was started", t.started_ms / 1000),
            ("resident_memory_bytes", "Memory of the process that is in RAM", t.resident_bytes),
            ("topics", "Topics", t.topics),
            ("partitions", "Partitions", t.partitions),
            ("groups", "Consumer groups, native and Kafka's", t.groups),
            ("log_bytes", "Size of all logs", t.log_bytes),
            ("log_segments", "Segments of all logs", t.segments),
            ("view_lag_events", "Events that tables do not include yet", t.view_lag_events),
            ("memory_budget_bytes", "Bytes that requests and answers may take together", t.budget_bytes),
            ("memory_budget_used_bytes", "Bytes of requests in progress and of answers not taken", t.budget_used_bytes),
            ("memory_parked_bytes", "Bytes of requests that wait for events", t.parked_bytes),
            ("console_live_views", "Tails and watches that are open in the console", self._live),
        ):
            yield GaugeMetricFamily(P + name, about, value)
        views = GaugeMetricFamily(P + "views", "RocksDB's numbers of the tables", labels=["property"])
        for name, value in t.views.items():
            views.add_metric([name], value)
        yield views
        for name, about, value in (
            ("appended_events", "Events appended to logs", t.appended_events),
            ("appended_bytes", "Bytes appended to logs", t.appended_bytes),
            ("connections_accepted", "Connections accepted", t.accepted),
            ("connections_refused", "Connections refused because there were too many", t.refused),
            ("back_pressure_stalls", "Times that a connection had to wait for memory or for its peer", t.stalls),
        ):
            yield CounterMetricFamily(P + name, about, value)

    def _by_protocol(self) -> Iterator[Metric]:
        t = self._totals
        connections = GaugeMetricFamily(P + "connections", "Connections that are open", labels=["protocol"])
        for protocol in ("native", "kafka", "http"):
            connections.add_metric([protocol], t.connections.get(protocol, 0))
        yield connections
        for name, about, values in (
            ("received_bytes", "Bytes received", t.received_bytes),
            ("sent_bytes", "Bytes sent", t.sent_bytes),
        ):
            family = CounterMetricFamily(P + name, about, labels=["protocol"])
            for protocol, value in values.items():
                family.add_metric([protocol], value)
            yield family

    def _latencies(self) -> Iterator[Metric]:
        t = self._totals
        requests = HistogramMetricFamily(
            P + "request_seconds", "From a request's arrival to its answer", labels=["protocol", "request"]
        )
        for each in t.requests:
            _add(requests, [each.protocol, each.request], each.latency)
        yield requests
        for name, about, latency in (
            ("log_sync_seconds", "fdatasync of a log", t.log_sync),
            ("catalog_sync_seconds", "Sync of the catalog and the groups", t.catalog_sync),
        ):
            family = HistogramMetricFamily(P + name, about, labels=[])
            _add(family, [], latency)
            yield family

    def _by_topic(self) -> Iterator[Metric]:
        events = CounterMetricFamily(P + "topic_events", "Offsets given to a topic's events", labels=["topic"])
        size = GaugeMetricFamily(P + "topic_log_bytes", "Size of a topic's logs", labels=["topic"])
        segments = GaugeMetricFamily(P + "topic_log_segments", "Segments of a topic's logs", labels=["topic"])
        lag = GaugeMetricFamily(
            P + "topic_view_lag_events", "Events that a topic's table does not include", labels=["topic"]
        )
        for each in self._topics:
            events.add_metric([each.name], each.events)
            size.add_metric([each.name], each.size)
            segments.add_metric([each.name], each.segments)
            lag.add_metric([each.name], each.view_lag)
        yield from (events, size, segments, lag)


def _add(family: HistogramMetricFamily, labels: list[str], latency: Latency) -> None:
    """Prometheus wants how many were at most each bound; here stands how many fell between two."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, latency.bounds), "+Inf"), latency.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, latency.sum)
