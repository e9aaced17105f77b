"""When a segment is closed, when it is deleted, when a log is compacted. Pure functions of sizes and times.

The rules are Kafka's (`LogSegment.shouldRoll`, `UnifiedLog.deleteOldSegments`, `LogCleanerManager`, without KIP-280):
time counts from the events' own timestamps, and a segment is deleted as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from krappy.settings.topic import TopicConfig

LEAST_SWEPT = 100_000  # events
MAX_SPAN = 2**31 - 1  # offsets, and bytes, that one segment may span: its indexes have 31 bits for either


class SegmentInfo(NamedTuple):
    """One segment, with what the decisions need. The last of a log is the active one."""

    base_offset: int
    next_offset: int  # behind its last event
    size: int  # bytes
    max_timestamp: int  # ms, of its events; -1 without any
    created_ms: int | None  # when its first batch was appended; None: it has none, or that is not known
    appended_ms: int | None = None  # when its last batch was appended; None: likewise

    @property
    def latest_ms(self) -> int | None:
        """The time that retention counts from; None when it is not known."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.appended_ms

    def age(self, now_ms: int) -> int:
        """How long ago it got its first batch, in ms; 0 when that is not known."""
        return 0 if self.created_ms is None else now_ms - self.created_ms


def counted_from(config: TopicConfig, segment: SegmentInfo) -> int | None:
    """The time that `retention.ms` and `min.compaction.lag.ms` count from; None when it is not known.

    That is the latest of the events' timestamps, but not later than the topic's limit allowed when the last event came:
    else one event of the year 292278994, from before there was a limit, would keep its segment and all later ones for
    ever. The limit does not count from when the first event came: `segment.ms` may have been longer then.
    """
    latest, appended, ahead = segment.latest_ms, segment.appended_ms, config.timestamp_after_ms
    if latest is None or appended is None or ahead is None:
        return latest
    return min(latest, appended + ahead)


def must_roll(config: TopicConfig, segment: SegmentInfo, size: int, last_offset: int, now_ms: int) -> bool:
    """Whether a batch of `size` bytes that ends at `last_offset` has to go to a new segment."""
    if not segment.size:
        return last_offset - segment.base_offset > MAX_SPAN
    return (
        segment.size + size > config.segment_bytes
        or segment.size + size > MAX_SPAN
        or last_offset - segment.base_offset > MAX_SPAN
        or segment.age(now_ms) >= config.segment_ms
    )


def is_old(config: TopicConfig, segment: SegmentInfo, now_ms: int) -> bool:
    """Whether to close the active segment because of its age, so that retention and compaction reach a quiet log
    too."""
    return segment.size > 0 and segment.age(now_ms) >= config.segment_ms


def expired(config: TopicConfig, segments: Sequence[SegmentInfo], now_ms: int) -> int:
    """How many of the oldest segments to delete, by `retention.ms` and `retention.bytes`.

    The active one is among them when all its events have expired (then it is rolled first, as in Kafka), but never
    because of size. A segment is deleted because of size only if the rest still has `retention.bytes`.
    """
    if not config.delete:
        return 0
    count = 0
    if config.retention_ms is not None:
        while count < len(segments) and _out_of_time(config, segments[count], config.retention_ms, now_ms):
            count += 1
    if config.retention_bytes is not None:
        left = sum(segment.size for segment in segments[count:])
        while count < len(segments) - 1 and left - segments[count].size >= config.retention_bytes:
            left -= segments[count].size
            count += 1
    return count


class ShorteningPlan(NamedTuple):
    """How retention shortens a log."""

    roll: bool  # whether to close the active segment, because it is old or will be deleted
    start: int  # the log's new first offset


def shortening(
    config: TopicConfig, segments: Sequence[SegmentInfo], start: int, stable: int, now_ms: int
) -> ShorteningPlan:
    """How to shorten the log. `start`: its first offset now; `stable`: the last stable offset; no event from there on
    is deleted."""
    count = min(expired(config, segments, now_ms), sum(segment.next_offset <= stable for segment in segments))
    roll = is_old(config, segments[-1], now_ms) or count == len(segments)
    return ShorteningPlan(roll, max(start, segments[count - 1].next_offset) if count else start)


def _out_of_time(config: TopicConfig, segment: SegmentInfo, retention_ms: int, now_ms: int) -> bool:
    latest = counted_from(config, segment)
    return segment.size > 0 and latest is not None and now_ms - latest > retention_ms


def cleanable_upto(config: TopicConfig, segments: Sequence[SegmentInfo], now_ms: int) -> int:
    """The offset up to which the log may be compacted: closed segments whose events are `min.compaction.lag.ms` old."""
    upto = segments[0].base_offset
    for segment in segments[:-1]:
        latest = counted_from(config, segment)
        if segment.size and (latest is None or now_ms - latest < config.min_compaction_lag_ms):
            break
        upto = segment.next_offset
    return upto


def dirty_ratio(segments: Sequence[SegmentInfo], clean_upto: int, upto: int) -> float:
    """The share of bytes below `upto` that were not compacted yet; 0.0 when there are none."""
    clean = sum(segment.size for segment in segments if segment.next_offset <= clean_upto)
    dirty = sum(segment.size for segment in segments if clean_upto < segment.next_offset <= upto)
    return dirty / (clean + dirty) if dirty else 0.0


def must_clean(config: TopicConfig, segments: Sequence[SegmentInfo], clean_upto: int, now_ms: int) -> bool:
    """Whether the log is dirty enough, or an uncleaned event is older than `max.compaction.lag.ms` (KIP-354)."""
    if not config.compact or len(segments) < 2:
        return False
    upto = cleanable_upto(config, segments, now_ms)
    dirty = [segment for segment in segments if clean_upto < segment.next_offset <= upto and segment.size]
    if not dirty:
        return False
    lag = config.max_compaction_lag_ms
    if lag is not None and max(segment.age(now_ms) for segment in dirty) > lag:
        return True
    return dirty_ratio(segments, clean_upto, upto) >= config.min_dirty_ratio


def must_sweep(expired: int, left: int) -> bool:
    """Whether to look through a view for entries of expired events. `expired`: how many events have expired since the
    last sweep; `left`: entries that were left then. So a sweep looks at few entries per expired event."""
    return expired > max(LEAST_SWEPT, left)


def survives(latest: int | None, offset: int, tombstone: bool, horizon: int | None, now_ms: int) -> bool:
    """Whether the cleaner keeps a keyed event, given the `latest` offset of its key as the view knows it.

    `latest` None: the view has no entry for the key, so its last event was a tombstone that is gone. `horizon`: until
    when (ms) a tombstone stays, so that readers of the deleted events still get it; None until a cleaning has seen it,
    whatever its own timestamp says (KIP-534).
    """
    if latest is None:
        return not tombstone
    return offset >= latest and not (tombstone and horizon is not None and now_ms >= horizon)
