"""Where a stream stands, as Spark keeps it in its checkpoint, and how far the next micro-batch goes. Pure.

Spark writes down where each batch ends, before it runs it; never where the first one began: it asks for the initial
offset again when it replays the first batch after a failure. So the initial offset is a mark that stands for no
offsets yet, and the end of the first batch says where that batch begins, be it at offsets or with a snapshot. Every
replay then reads the same events, whatever has happened to "latest" in the meantime.

    initial        {"$start": "latest"}
    first batch    {"users": {"0": 12, "1": 7}, "$first": {"offsets": {"users": {"0": 9, "1": 7}}}}
                   {"users": {"0": 12, "1": 7}, "$first": {"snapshots": {"users": "0f3a…"}}}
    any later      {"users": {"0": 14, "1": 9}}

An offset is that of the next event, as everywhere; `$` can't be in a topic's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from krappy.spark.versions import features
from krappy.types import TopicPartition

START, FIRST = "$start", "$first"
Offsets = Mapping[TopicPartition, int]


class Position(NamedTuple):
    """`offsets`: by partition, of the next event; None: the stream has not begun. `first` and `snapshots` belong to the
    end of the first batch: where it begins, or the id of each topic's snapshot that it consists of."""

    offsets: Offsets | None
    first: Offsets | None = None
    snapshots: Mapping[str, str] | None = None

    @property
    def begun(self) -> bool:
        return self.offsets is not None

    @property
    def at(self) -> Offsets:
        return self.offsets or {}


def initial(start: str) -> dict[str, Any]:
    """The mark of a stream that has not begun; `start` only tells people where it will."""
    return {START: start}


def encoded(position: Position) -> dict[str, Any]:
    """As it stands in the checkpoint: a position has one text."""
    found: dict[str, Any] = _nested(position.at)
    if position.snapshots is not None:
        found[FIRST] = {"snapshots": dict(sorted(position.snapshots.items()))}
    elif position.first is not None:
        found[FIRST] = {"offsets": _nested(position.first)}
    return found


def decoded(given: Mapping[str, Any]) -> Position:
    """Raises ValueError for what `encoded` and `initial` never gave: another source's checkpoint, say."""
    if START in given:
        return Position(None)
    try:
        first = given.get(FIRST, {})
        begins = first.get("offsets")
        snapshots = first.get("snapshots")
        return Position(
            _flat((topic, some) for topic, some in given.items() if topic != FIRST),
            None if begins is None else _flat(begins.items()),
            None if snapshots is None else {str(topic): str(each) for topic, each in snapshots.items()},
        )
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"{str(given)[:200]} in the checkpoint is no offset of format('krappy'): "
            "is this the checkpointLocation of another query?"
        ) from None


def _nested(offsets: Offsets) -> dict[str, Any]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _flat(topics: Iterable[tuple[str, Any]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, some in topics
        for partition, offset in some.items()
    }


def behind(begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """By partition, how many offsets lie from `begin` to `end`, where there are any. What `begin` lacks is at 0."""
    lags = {each: offset - begin.get(each, 0) for each, offset in end.items()}
    return {each: lag for each, lag in lags.items() if lag > 0}


def limited(begin: Offsets, end: Offsets, most: int) -> dict[TopicPartition, int]:
    """`end`, or closer to `begin` so that about `most` offsets lie between.

    The limit is shared in proportion to what each partition has, and each that has something gets one at least, so that
    a small partition is not starved by large ones: with more such partitions than `most`, it is exceeded by as much
    (Spark's Kafka source, KafkaMicroBatchStream.rateLimit, does so too).
    """
    lags = behind(begin, end)
    total = sum(lags.values())
    if total <= most:
        return dict(end)
    ends = dict(end)
    spare = max(0, most - len(lags))  # beyond the one for each
    rest = total - len(lags)
    given = {each: 1 + ((lag - 1) * spare // rest if rest else 0) for each, lag in lags.items()}
    left = max(0, most - sum(given.values()))
    for each in sorted(lags, key=lambda each: given[each] - lags[each])[:left]:  # the furthest behind first
        given[each] += 1
    for each, count in given.items():
        ends[each] = begin.get(each, 0) + min(count, lags[each])
    return ends


class Patience:
    """Holds a batch back until it is worth it: `least` offsets are there, or `delay` seconds have passed."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._last: float | None = None

    def waits(self, least: int | None, lag: int, now: float) -> bool:
        """Whether a batch of `lag` offsets should wait at the time `now` (seconds). The first one never does."""
        if least is not None and self._last is not None and lag < least and now - self._last < self._delay:
            return True
        self._last = now
        return False


def lag(progress: Mapping[str, Any] | None) -> dict[str, dict[str, int]]:
    """How far a streaming query is behind each topic that it reads from Krappy: topic to partition to offsets.

    `progress`: `query.lastProgress`, or one of its `sources`. Empty where Spark reports no latest offset: before
    PySpark 4.2 (what has the name there is the end of the batch), and before the first batch.
    """
    found: dict[str, dict[str, int]] = {}
    if progress is None or not features().admission_control:
        return found
    for source in progress.get("sources", [progress]):
        latest, end = (_reported(source.get(name)) for name in ("latestOffset", "endOffset"))
        if latest is None or end is None:
            continue
        for each, offset in latest.at.items():
            found.setdefault(each.topic, {})[str(each.partition)] = max(0, offset - end.at.get(each, 0))
    return found


def _reported(given: Any) -> Position | None:
    try:
        value = json.loads(given) if isinstance(given, str) else given
        return decoded(value) if isinstance(value, Mapping) else None
    except ValueError:
        return None
