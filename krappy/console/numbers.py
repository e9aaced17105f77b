"""The broker's numbers in one place, for the overview and for Prometheus.

Counters grow until the broker restarts (then `started_ms` changes). A rate is the difference of two readings, divided
by the difference of their `now_ms`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from krappy.console.slices import in_slices
from krappy.core.security.operations import Op
from krappy.measures import Histogram
from krappy.ports import AccessPort, BrokerPort, GroupFacts, ServerPort, TopicPort


class Latency(msgspec.Struct):
    """How long something took, in seconds. `counts[i]` observations were at most `bounds[i]` and more than
    `bounds[i-1]`; the last count is of those above all bounds."""

    count: int
    sum: float
    bounds: list[float]
    counts: list[int]


class RequestNumbers(msgspec.Struct):
    protocol: str
    request: str
    latency: Latency


class Totals(msgspec.Struct):
    """Counters: accepted, refused, handshakes_failed, appended_…, appends_failed, scrubbed_bytes, received_…, sent_…,
    stalls, and the latencies. The other numbers are those of now."""

    now_ms: int
    started_ms: int
    topics: int
    partitions: int
    partitions_failed: Annotated[
        int, Meta(description="partitions that take no more appends, or are out of service, until a restart")
    ]
    views_failed: Annotated[int, Meta(description="partitions whose table is stopped, because their log is damaged")]
    groups: int
    connections: dict[str, int]
    accepted: int
    refused: int
    handshakes_failed: Annotated[int, Meta(description="TLS handshakes that failed")]
    certificate_expires: Annotated[
        float | None, Meta(description="when the certificate of TLS expires, in seconds since the epoch")
    ]
    oauth_keys_age: Annotated[
        float | None,
        Meta(description="seconds since the keys of the identity provider were read; null: never, or there is none"),
    ]
    appended_events: int
    appended_bytes: int
    appends_failed: int
    scrubbed_bytes: int
    received_bytes: dict[str, int]
    sent_bytes: dict[str, int]
    log_bytes: int
    segments: int
    view_lag_events: int
    views: dict[str, int]
    group_lag: int
    budget_bytes: int
    budget_used_bytes: int
    parked_bytes: int
    stalls: Annotated[int, Meta(description="how often a connection had to wait for memory or for its peer")]
    resident_bytes: int
    disk_bytes: Annotated[int, Meta(description="size of the disk that the data folder is on")]
    disk_free_bytes: int
    ballast_bytes: Annotated[int, Meta(description="reserved for operations that free space when the disk is full")]
    events_refused: Annotated[bool, Meta(description="whether events are refused because the disk is full")]
    catalog_failed: Annotated[bool, Meta(description="whether the catalog takes no changes: the disk refused one")]
    log_sync: Latency
    catalog_sync: Latency
    requests: list[RequestNumbers]


def latency(histogram: Histogram) -> Latency:
    counts = list(histogram.counts)
    return Latency(sum(counts), histogram.sum, list(histogram.bounds), counts)


class TopicNumbers(NamedTuple):
    """The sums over a topic's partitions. `events`: high watermarks; `size`: bytes; `view_lag`: events."""

    name: str
    partitions: int
    events: int
    size: int
    segments: int
    view_lag: int
    failed: int  # partitions that take no more appends
    views_failed: int


class Numbers(NamedTuple):
    """`groups`: as `AccessPort.each_group` describes them."""

    totals: Totals
    topics: list[TopicNumbers]
    groups: list[GroupFacts]


def _of_topic(topic: TopicPort) -> TopicNumbers:
    size = segments = events = lag = failed = views_failed = 0
    for partition in topic.local.values():
        failed += bool(partition.log_failed or partition.offline)
        views_failed += partition.view_failed is not None
        events += partition.high_watermark
        size += partition.size
        segments += partition.segments
        lag += max(0, partition.last_stable_offset - partition.applied)
    lag = lag if topic.config.view else 0
    return TopicNumbers(topic.name, len(topic.local), events, size, segments, lag, failed, views_failed)


async def gather(broker: BrokerPort, access: AccessPort, server: ServerPort) -> Numbers:
    """All numbers of the topics and groups that `access` may describe, read in slices."""
    topics = await in_slices(map(_of_topic, list(access.topics(Op.DESCRIBE).values())))
    groups = await in_slices(access.each_group(Op.DESCRIBE))
    told = server.measure()
    total, free, ballast = broker.machine.disk_bytes()
    totals = Totals(
        now_ms=broker.now_ms(),
        started_ms=broker.started_ms,
        topics=len(topics),
        partitions=sum(each.partitions for each in topics),
        partitions_failed=sum(each.failed for each in topics),
        views_failed=sum(each.views_failed for each in topics),
        groups=len(groups),
        connections=told.connections,
        accepted=told.accepted,
        refused=told.refused,
        handshakes_failed=told.handshakes_failed,
        certificate_expires=told.certificate_expires,
        oauth_keys_age=told.oauth_keys_age,
        appended_events=broker.measures.appended_events,
        appended_bytes=broker.measures.appended_bytes,
        appends_failed=broker.measures.appends_failed,
        scrubbed_bytes=broker.measures.scrubbed_bytes,
        received_bytes=told.received_bytes,
        sent_bytes=told.sent_bytes,
        log_bytes=sum(each.size for each in topics),
        segments=sum(each.segments for each in topics),
        view_lag_events=sum(each.view_lag for each in topics),
        views=broker.machine.view_sizes(),
        group_lag=sum(max(0, each["lag"]) for group in groups for each in group["partitions"]),
        budget_bytes=told.budget_bytes,
        budget_used_bytes=told.budget_used_bytes,
        parked_bytes=told.parked_bytes,
        stalls=told.stalls,
        resident_bytes=broker.machine.resident_bytes(),
        disk_bytes=total,
        disk_free_bytes=free,
        ballast_bytes=ballast,
        events_refused=bool(broker.machine.events_refused()),
        catalog_failed=bool(broker.machine.catalog_failed()),
        log_sync=latency(broker.measures.syncs),
        catalog_sync=latency(broker.measures.catalog_syncs),
        requests=[
            RequestNumbers(protocol, name, latency(histogram))
            for protocol, name, histogram in sorted(server.request_times(), key=lambda each: each[:2])
        ],
    )
    return Numbers(totals, topics, groups)
