"""When a segment is closed, when it is forgotten, when a log is worth cleaning. Pure: sizes and times go in.

The rules are Kafka's (`LogSegment.shouldRoll`, `UnifiedLog.deleteOldSegments`, `LogCleanerManager`, KIP-280 aside):
time counts from the events' own timestamps, and a segment goes as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from krappy.settings.topic import TopicConfig

LEAST_SWEPT = 100_000  # events
MAX_SPAN = 2**31 - 1  # offsets, and bytes, that one segment may span: its indexes have 31 bits for either


class SegmentInfo(NamedTuple):
    """One segment as the decisions see it. The last of a log is the active one."""

    base_offset: int
    next_offset: int  # behind its last event
    size: int  # bytes
    max_timestamp: int  # ms, of its events; -1 without any
    created_ms: int | None  # when its first batch was appended; None: it has none, or that is not known

    @property
    def latest_ms(self) -> int | None:
        """The time that retention counts from; None when it is not known."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.created_ms

    def age(self, now_ms: int) -> int:
        """For how long it has had events, in ms; 0 when that is not known."""
        return 0 if self.created_ms is None else now_ms - self.created_ms


def counted_from(config: TopicConfig, segment: SegmentInfo) -> int | None:
    """The time that `retention.ms` and `min.compaction.lag.ms` count from; None when it is not known.

    That is the latest of the events' timestamps, but no later than any that the topic takes can be: one event of the
    year 292278994, from before there was a limit, would keep all that came with it, and after it, for ever.
    """
    latest, created, ahead = segment.latest_ms, segment.created_ms, config.timestamp_after_ms
    if latest is None or created is None or ahead is None:
        return latest
    return min(latest, created + config.segment_ms + ahead)


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
    """Whether the active segment is to be closed for its age alone, so that a quiet log is retained and cleaned too."""
    return segment.size > 0 and segment.age(now_ms) >= config.segment_ms


def expired(config: TopicConfig, segments: Sequence[SegmentInfo], now_ms: int) -> int:
    """How many of the oldest segments `retention.ms` and `retention.bytes` let go.

    The active one is among them when all its events have expired (then it is rolled first, as in Kafka), but
    never for size alone. A segment goes by size only when what is left still has `retention.bytes`.
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
    """What retention wants of a log."""

    roll: bool  # the active segment is to be closed, for its age or because it goes
    start: int  # the offset where the log is to start


def shortening(
    config: TopicConfig, segments: Sequence[SegmentInfo], start: int, stable: int, now_ms: int
) -> ShorteningPlan:
    """`start`: of the log as it is; `stable`: the last stable offset, behind which nothing goes."""
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
    """The share of bytes below `upto` that no cleaning has seen yet; 0.0 when there are none."""
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
    last time; `left`: entries that were left then. So a sweep costs no more than what made it necessary."""
    return expired > max(LEAST_SWEPT, left)


def survives(latest: int | None, offset: int, tombstone: bool, horizon: int | None, now_ms: int) -> bool:
    """Whether the cleaner keeps a keyed event, given the `latest` offset of its key as the view knows it.

    None: the view has nothing of the key, so whatever it knew has been forgotten as a tombstone. `horizon`: until when
    (ms) a tombstone outlives the events that it deletes, so that a reader that started before it still learns of it;
    None until a cleaning has seen it, whatever its own timestamp says (KIP-534).
    """
    if latest is None:
        return not tombstone
    return offset >= latest and not (tombstone and horizon is not None and now_ms >= horizon)
