"""The broker's numbers for Prometheus, by its own client library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from krappy.console.api import principal_of, room, who_of
from krappy.console.cluster_metrics import cluster_families, gather_cluster
from krappy.console.numbers import Latency, Numbers, gather
from krappy.console.problems import HttpError
from krappy.console.slices import in_slices
from krappy.core.security.operations import Op
from krappy.core.security.quota_entities import QuotaKey

P = "krappy_"
TOPICS = 2000  # topics, and pairs of a group and a topic, that have lines of their own by default
PART = 200  # lines made in one slice


class Metrics:
    """GET /metrics (ASGI), made in slices. `?topics=N`: N topics, and N pairs of a group and a topic, have lines."""

    def __init__(self, console: Any) -> None:
        self._console = console

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise HttpError(405, "METHOD_NOT_ALLOWED", "metrics can only be read", Allow="GET")
        if not self._console.broker.opened:
            raise HttpError(503, "NOT_READY", "the store is being recovered", Retry_After="1")
        request = Request(scope)
        most = _most(request.query_params)
        make, kind = exposition.choose_encoder(request.headers.get("accept", ""))
        await room(scope)
        async with self._console.turns.one(who_of(scope)):
            access = self._console.broker.access(principal_of(scope))
            access.cluster(Op.DESCRIBE)
            numbers = await gather(self._console.broker, access, self._console.server)
            throttled = self._console.broker.client_quotas.throttled()
            told = MetricsSnapshot(numbers, throttled, self._console.broker.version, self._console.live, most)
            audit = self._console.broker.audit
            audited = _audited(audit.failing, audit.lost)
            cluster = await gather_cluster(self._console.broker, access, self._console.lookout)
            parts = await in_slices(_written(chain(told.collect(), audited, cluster_families(cluster)), make))
        end = b"# EOF\n" if kind.startswith("application/openmetrics") else b""
        await Response(b"".join(parts) + end, headers={"content-type": kind})(scope, receive, send)


def _most(parameters: Mapping[str, str]) -> int:
    given = parameters.get("topics", str(TOPICS))
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise HttpError(400, "INVALID_REQUEST", f"'topics' is the number of topics with lines, not '{given:.40}'")
    return int(given)


def _audited(failing: bool, lost: int) -> Iterator[Metric]:
    yield GaugeMetricFamily(P + "audit_failed", "1 while the audit log can't be written", value=failing)
    about = "Lines of the audit log that were lost: it could not be written, and there was no room to keep them"
    yield CounterMetricFamily(P + "audit_lines_lost", about, value=lost)


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _written(metrics: Iterator[Metric], make: Callable[[Any], bytes]) -> Iterator[bytes]:
    """The text of each metric. A family may come in several parts, one after the other: its head is written once."""
    before = ""
    for metric in metrics:
        text = make(_One(metric)).removesuffix(b"# EOF\n")
        while metric.name == before and text.startswith(b"#"):
            text = text.partition(b"\n")[2]
        before = metric.name
        yield text


def _parts(family: Callable[[], Any], rows: Iterable[tuple[list[str], float]]) -> Iterator[Metric]:
    """A family of many lines, in parts of PART lines each."""
    part = family()
    for labels, value in rows:
        part.add_metric(labels, value)
        if len(part.samples) >= PART:
            yield part
            part = family()
    if part.samples:
        yield part


class MetricsSnapshot:
    """All families at one moment, large ones in parts."""

    def __init__(
        self, numbers: Numbers, throttled: Mapping[QuotaKey, tuple[int, float]], version: str, live: int, most: int
    ) -> None:
        self._throttled = throttled
        self._totals, topics, self._groups = numbers
        self._topics = sorted(topics)[:most]  # by name, so that the same topics are listed each time
        self._left_out = len(topics) - len(self._topics)
        self._version = version
        self._live = live
        self._most = most

    def collect(self) -> Iterator[Metric]:
        yield from self._plain()
        yield from self._by_protocol()
        yield from self._by_quota()
        yield from self._latencies()
        yield from self._by_topic()
        lags = sorted(self._lags())
        about = "Events that a group has not settled"
        told = (([group, topic], events) for group, topic, events in lags[: self._most])
        yield from _parts(lambda: GaugeMetricFamily(P + "group_lag_events", about, labels=["group", "topic"]), told)
        left = GaugeMetricFamily(
            P + "metrics_left_out", "Topics, and groups' topics, without lines of their own", labels=["kind"]
        )
        left.add_metric(["topic"], self._left_out)
        left.add_metric(["group"], max(0, len(lags) - self._most))
        yield left

    def _lags(self) -> Iterator[tuple[str, str, int]]:
        for group in self._groups:
            by_topic: dict[str, int] = {}
            for each in group["partitions"]:
                by_topic[each["topic"]] = by_topic.get(each["topic"], 0) + max(0, each["lag"])
            for topic, events in by_topic.items():
                yield group["group"], topic, events

    def _plain(self) -> Iterator[Metric]:
        t = self._totals
        info = GaugeMetricFamily(P + "build_info", "1, with the version as a label", labels=["version"])
        info.add_metric([self._version], 1)
        yield info
        for name, about, value in (
            ("start_time_seconds", "When the broker was started", t.started_ms / 1000),
            ("resident_memory_bytes", "Memory of the process that is in RAM", t.resident_bytes),
            ("disk_bytes", "Size of the disk that the data folder is on", t.disk_bytes),
            ("disk_free_bytes", "Bytes that are free on it, without the ballast", t.disk_free_bytes),
            ("ballast_bytes", "Bytes reserved on it for freeing space when it is full", t.ballast_bytes),
            ("events_refused", "1 while events are refused because the disk is full", t.events_refused),
            ("catalog_failed", "1 while the catalog takes no changes, because the disk refused one", t.catalog_failed),
            ("topics", "Topics", t.topics),
            ("partitions", "Partitions", t.partitions),
            (
                "partitions_failed",
                "Partitions that take no more events, or are out of service, until the broker is started again",
                t.partitions_failed,
            ),
            ("views_failed", "Partitions whose table is stopped, because their log is damaged", t.views_failed),
            ("groups", "Consumer groups, native and Kafka's", t.groups),
            ("log_bytes", "Size of all logs", t.log_bytes),
            ("log_segments", "Segments of all logs", t.segments),
            ("view_lag_events", "Events that tables do not include yet", t.view_lag_events),
            ("memory_budget_bytes", "Bytes that requests and answers may take together", t.budget_bytes),
            ("memory_budget_used_bytes", "Bytes of requests in progress and of answers not taken", t.budget_used_bytes),
            ("memory_parked_bytes", "Bytes of requests that wait for events", t.parked_bytes),
            ("console_live_views", "Tails and watches that are open in the console", self._live),
            (
                "tls_certificate_expiry_seconds",
                "When the certificate of TLS expires, in seconds since the epoch; 0: no listener has TLS",
                t.certificate_expires or 0,
            ),
            (
                "oauth_keys_age_seconds",
                "Seconds since the keys of the identity provider were read; +Inf: never; 0: there is no provider",
                t.oauth_keys_age or 0,
            ),
        ):
            yield GaugeMetricFamily(P + name, about, value)
        views = GaugeMetricFamily(P + "views", "RocksDB's numbers of the tables", labels=["property"])
        for name, value in t.views.items():
            views.add_metric([name], value)
        yield views
        for name, about, value in (
            ("appended_events", "Events appended to logs", t.appended_events),
            ("appended_bytes", "Bytes appended to logs", t.appended_bytes),
            ("appends_failed", "Writes to logs that the disk refused; their producers try again", t.appends_failed),
            ("scrubbed_bytes", "Bytes of logs read to find damage that no reader has met", t.scrubbed_bytes),
            ("connections_accepted", "Connections accepted", t.accepted),
            ("connections_refused", "Connections refused because there were too many", t.refused),
            ("tls_handshakes_failed", "TLS handshakes that failed", t.handshakes_failed),
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

    def _by_quota(self) -> Iterator[Metric]:
        times = CounterMetricFamily(P + "throttled", "Times that a client was over a quota", labels=["quota"])
        about = "Seconds for which clients were silenced because of quotas"
        seconds = CounterMetricFamily(P + "throttled_seconds", about, labels=["quota"])
        for key, (count, waited) in self._throttled.items():
            times.add_metric([key], count)
            seconds.add_metric([key], waited)
        yield from (times, seconds)

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
        label = ["topic"]
        for kind, name, about, field in (
            (CounterMetricFamily, "topic_events", "High watermarks of a topic's partitions, added up", "events"),
            (GaugeMetricFamily, "topic_log_bytes", "Size of a topic's logs", "size"),
            (GaugeMetricFamily, "topic_log_segments", "Segments of a topic's logs", "segments"),
            (GaugeMetricFamily, "topic_view_lag_events", "Events that a topic's table does not include", "view_lag"),
        ):
            family = partial(kind, P + name, about, labels=label)
            yield from _parts(family, (([each.name], getattr(each, field)) for each in self._topics))


def _add(family: HistogramMetricFamily, labels: list[str], latency: Latency) -> None:
    """Adds a latency. Prometheus counts all observations up to a bound, `latency.counts` those between two bounds."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, latency.bounds), "+Inf"), latency.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, latency.sum)
