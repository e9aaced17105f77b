"""How far the next micro-batch goes, and whether it waits for more. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from krappy.types import TopicPartition

Offsets = Mapping[TopicPartition, int]


def behind(begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """By partition, how many offsets lie from `begin` to `end`, if any. A partition that `begin` lacks begins at 0."""
    lags = {each: offset - begin.get(each, 0) for each, offset in end.items()}
    return {each: lag for each, lag in lags.items() if lag > 0}


def rationed(begin: Offsets, end: Offsets, most: int) -> dict[TopicPartition, int]:
    """Ends of a batch that begins at `begin`: `end`, or earlier, so that at most about `most` offsets lie between.

    The limit is shared in proportion to the offsets that each partition has. Each that has any gets at least one, so
    that large partitions do not starve a small one: if there are more of them than `most`, the batch is larger than
    that (as with Spark's Kafka source, KafkaMicroBatchStream.rateLimit).
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
    """Holds a batch back until it has enough offsets (`least`), or `delay` seconds have passed since the last one."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._last: float | None = None

    def waits(self, least: int | None, lag: int, now: float) -> bool:
        """Whether a batch of `lag` offsets should wait at the time `now` (seconds). The first one never does."""
        if least is not None and self._last is not None and lag < least and now - self._last < self._delay:
            return True
        self._last = now
        return False
