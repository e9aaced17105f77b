"""When a segment rolls, when it expires, when a log is worth cleaning: Kafka's rules as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.retention import (
    MAX_SPAN,
    SegmentInfo,
    cleanable_upto,
    dirty_ratio,
    expired,
    is_old,
    must_clean,
    must_roll,
    survives,
)
from krappy.settings.topic import TopicConfig

CONFIG = TopicConfig(segment_bytes=1000, segment_ms=500)


def row(*segments: tuple[int, int]) -> list[SegmentInfo]:
    """Segments of ten offsets each, by (bytes, largest timestamp)."""
    return [
        SegmentInfo(10 * number, 10 * number + 10, size, timestamp, timestamp, timestamp)
        for number, (size, timestamp) in enumerate(segments)
    ]


@pytest.mark.parametrize(
    ("held", "size", "last_offset", "now", "rolls"),
    [
        (0, 5000, 1, 99_999, False),  # an empty segment takes any one batch, however large
        (900, 100, 1, 0, False),
        (900, 101, 1, 0, True),
        (900, 1, 1, 1499, False),
        (900, 1, 1, 1500, True),
        (1, 1, MAX_SPAN, 1000, False),
        (1, 1, MAX_SPAN + 1, 1000, True),
        (0, 1, MAX_SPAN + 1, 1000, True),
    ],
)
def test_rolling(held: int, size: int, last_offset: int, now: int, rolls: bool) -> None:
    segment = SegmentInfo(0, 1, held, 5, 1000)
    assert must_roll(CONFIG, segment, size, last_offset, now) is rolls


def test_positions_fit_an_index() -> None:
    config = TopicConfig(segment_bytes=2**31 - 1)
    assert not must_roll(config, SegmentInfo(0, 1, MAX_SPAN - 5, 5, 0), 5, 1, 0)
    assert must_roll(config, SegmentInfo(0, 1, MAX_SPAN - 5, 5, 0), 6, 1, 0)


def test_a_quiet_segment_rolls_by_age() -> None:
    assert not is_old(CONFIG, SegmentInfo(0, 1, 10, 5, 1000), 1499)
    assert is_old(CONFIG, SegmentInfo(0, 1, 10, 5, 1000), 1500)
    assert not is_old(CONFIG, SegmentInfo(0, 0, 0, -1, 1000), 10**9)


@pytest.mark.parametrize(
    ("now", "count"),
    [(1100, 0), (1101, 1), (1201, 2), (1301, 3), (10**9, 3)],
)
def test_time_retention_takes_from_the_front(now: int, count: int) -> None:
    """Also the last segment, when all of its events are old."""
    config = TopicConfig(retention_ms=100)
    assert expired(config, row((10, 1000), (10, 1100), (10, 1200)), now) == count


def test_a_young_segment_protects_what_is_behind_it() -> None:
    assert expired(TopicConfig(retention_ms=100), row((10, 1000), (10, 5000), (10, 1000)), 5050) == 1


def test_events_without_a_time_count_from_when_they_came() -> None:
    segments = [SegmentInfo(0, 10, 10, -1, 1000, 4000), SegmentInfo(10, 20, 10, -1, 4000, 4900)]
    assert expired(TopicConfig(retention_ms=500), segments, 4600) == 1


def test_an_empty_active_segment_stays() -> None:
    segments = [*row((10, 1000)), SegmentInfo(10, 10, 0, -1, 0)]
    assert expired(TopicConfig(retention_ms=1), segments, 10**9) == 1


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 3), (99, 3), (100, 3), (101, 2), (250, 1), (300, 1), (301, 0), (400, 0)]
)
def test_size_retention_keeps_at_least_its_bytes(limit: int, count: int) -> None:
    config = TopicConfig(retention_ms=None, retention_bytes=limit)
    segments = row((100, 1), (100, 1), (100, 1), (100, 1))
    assert expired(config, segments, 10**9) == count
    if count:
        assert sum(segment.size for segment in segments[count:]) >= min(limit, 400)


def test_both_retentions_together() -> None:
    config = TopicConfig(retention_ms=100, retention_bytes=150)
    segments = row((100, 1000), (100, 9000), (100, 9000), (100, 9000))
    assert expired(config, segments, 9050) == 2


def test_compaction_alone_lets_nothing_expire() -> None:
    config = TopicConfig(compact=True, delete=False, retention_ms=1, retention_bytes=1)
    assert expired(config, row((100, 1), (100, 1)), 10**9) == 0
    assert expired(replace(config, delete=True), row((100, 1), (100, 1)), 10**9) == 2


def test_what_may_be_compacted() -> None:
    segments = row((10, 1000), (10, 1100), (10, 1200))
    assert cleanable_upto(TopicConfig(compact=True), segments, 2000) == 20
    assert cleanable_upto(TopicConfig(compact=True, min_compaction_lag_ms=150), segments, 1200) == 10
    assert cleanable_upto(TopicConfig(compact=True, min_compaction_lag_ms=150), segments, 1100) == 0
    assert cleanable_upto(TopicConfig(compact=True), segments[2:], 2000) == 20


def test_dirtiness() -> None:
    segments = row((100, 1), (100, 1), (200, 1), (100, 1))
    assert dirty_ratio(segments, 0, 30) == 1.0
    assert dirty_ratio(segments, 20, 30) == 0.5
    assert dirty_ratio(segments, 30, 30) == 0.0
    assert dirty_ratio(segments, 0, 0) == 0.0


def test_when_to_clean() -> None:
    config = TopicConfig(compact=True, min_dirty_ratio=0.5)
    segments = row((100, 1000), (100, 1000), (200, 1000), (100, 1000))
    assert must_clean(config, segments, 20, 2000)
    assert not must_clean(replace(config, min_dirty_ratio=0.51), segments, 20, 2000)
    assert not must_clean(config, segments, 30, 2000)
    assert not must_clean(replace(config, compact=False), segments, 0, 2000)
    assert not must_clean(config, segments[:1], 0, 2000)
    lagging = replace(config, min_dirty_ratio=1.0, max_compaction_lag_ms=500)
    assert not must_clean(lagging, segments, 20, 1500)
    assert must_clean(lagging, segments, 20, 1501)


@pytest.mark.parametrize(
    ("latest", "offset", "tombstone", "horizon", "stays"),
    [
        (5, 5, False, None, True),
        (5, 5, False, 0, True),  # a value in a batch whose tombstones have expired
        (5, 4, False, None, False),
        (5, 6, False, None, True),  # the view is not that far: it does not know of a newer event
        (5, 5, True, None, True),  # no cleaning has seen the tombstone yet
        (5, 5, True, 1001, True),
        (5, 5, True, 1000, False),
        (5, 4, True, None, False),
        (None, 5, False, None, True),
        (None, 5, True, None, False),
    ],
)
def test_survival(latest: int | None, offset: int, tombstone: bool, horizon: int | None, stays: bool) -> None:
    assert survives(latest, offset, tombstone, horizon, 1000) is stays


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(-1, 3000)), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(0, 2000)),
    st.one_of(st.none(), st.integers(0, 3000)),
    st.integers(0, 4000),
)
def test_retention_never_takes_too_much(
    shape: list[tuple[int, int]], keep_ms: int | None, keep_bytes: int | None, now: int
) -> None:
    segments = row(*shape)
    count = expired(TopicConfig(retention_ms=keep_ms, retention_bytes=keep_bytes), segments, now)
    gone, left = segments[:count], segments[count:]
    if count == len(segments):
        assert keep_ms is not None
    for number, segment in enumerate(gone):
        old = keep_ms is not None and now - (segment.latest_ms or 0) > keep_ms and segment.size
        spare = keep_bytes is not None and sum(one.size for one in segments[number + 1 :]) >= keep_bytes
        assert old or spare
    if keep_bytes is not None and len(left) > 1:
        assert sum(segment.size for segment in left[1:]) < keep_bytes


@pytest.mark.parametrize("ahead", [3_600_000, None])
def test_an_absurd_timestamp_keeps_nothing_for_ever(ahead: int | None) -> None:
    """Where a topic has a limit, a stored event beyond the limit counts as no later than an event that came then could
    be."""
    config = replace(CONFIG, retention_ms=1000, timestamp_after_ms=ahead, compact=True)
    segments = [
        SegmentInfo(0, 10, 100, 2**63 - 1, 0, 500),
        SegmentInfo(10, 20, 100, 500, 500, 500),
        SegmentInfo(20, 20, 0, -1, None),
    ]
    end = 500 + 3_600_000 + 1000  # from when its last event came
    assert expired(config, segments, end) == 0
    assert expired(config, segments, end + 1) == (0 if ahead is None else 2)
    lagging = replace(config, min_compaction_lag_ms=1000)
    assert cleanable_upto(lagging, segments, end - 1) == 0
    assert cleanable_upto(lagging, segments, end) == (0 if ahead is None else 20)
