"""Turns the options of a log read into ranges of offsets, by what the broker has, and splits them into tasks.

The rules are those of Spark's Kafka source: explicit offsets name every partition that is read, -2 and -1 stand for
earliest and latest, and a time stands for the first event at or after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from krappy.blocking import Client
from krappy.errors import ConfigError, OffsetOutOfRange
from krappy.spark.logs import Logs, Offsets, logs
from krappy.spark.options import Options
from krappy.spark.places import StartPlace
from krappy.types import EARLIEST, LATEST, TopicPartition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetRange(NamedTuple):
    """Events of one partition, from offset `start` to before `end`. `topic_id`: a topic that was made anew under the
    same name has another. `leader`: the broker that led the partition when the read was planned."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str
    leader: int

    @property
    def size(self) -> int:
        """The number of offsets. There may be fewer events: compaction leaves holes."""
        return self.end - self.start


def resolve(client: Client, options: Options) -> list[OffsetRange]:
    """The range that a batch reads of each partition, without empty ones.

    Raises UnknownTopic, UnknownPartition, OffsetOutOfRange if offsets are gone or do not exist yet and failOnDataLoss
    is true, ConfigError if the options do not fit the partitions.
    """
    assert options.topics is not None
    now = logs(client, options.topics, sure=options.end.kind != "offsets")
    starts = offsets(client, options.start, now, options.timestamp_strategy)
    ends = offsets(client, options.end, now, "latest")
    ranges = []
    for each in now.ends:
        start, end = starts[each], ends[each]
        _not_lost(each, (start, end), (now.starts[each], now.ends[each]), options)
        start, end = max(start, now.starts[each]), min(end, now.ends[each])
        if start < end:
            ranges.append(OffsetRange(*each, start, end, now.ids[each.topic], now.leaders[each]))
    return ranges


def offsets(client: Client, place: StartPlace, now: Logs, strategy: str) -> Offsets:
    """The offset that `place` stands for in each partition.

    Args:
        strategy: for a partition without an event at or after the time: "error" raises ConfigError, "latest" takes its
            end.

    Raises ConfigError, too, if the offsets or times name other partitions than those that are read.
    """
    some = list(now.ends)
    if place.kind == "earliest":
        return now.starts
    if place.kind == "offsets":
        ends = {EARLIEST: now.starts, LATEST: now.ends}
        given = _complete(place, some)
        return {each: ends[at][each] if at in ends else at for each, at in given.items()}
    if place.kind == "timestamp":
        return _at_times(client, dict.fromkeys(some, place.timestamp), now.ends, strategy)
    if place.kind == "timestamps":
        return _at_times(client, _complete(place, some), now.ends, strategy)
    return now.ends


def split(ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """The same offsets in more, smaller ranges, one for each task; the parts of a range are of about equal size.

    Args:
        min_partitions: at least so many ranges, unless there are fewer offsets.
        max_records: offsets of a range at most.
    """
    if max_records is not None:
        ranges = [part for each in ranges for part in _parts(each, -(-each.size // max_records))]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(each.size for each in ranges)
    return [part for each in ranges for part in _parts(each, -(-each.size * min_partitions // total))]


def _parts(whole: OffsetRange, count: int) -> Iterable[OffsetRange]:
    count = min(count, whole.size)
    bounds = [whole.start + whole.size * part // count for part in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(bounds)]


def _complete(place: StartPlace, some: list[TopicPartition]) -> Offsets:
    given = {TopicPartition(topic, at): value for topic, found in place.by_topic.items() for at, value in found.items()}
    empty = sorted(set(place.by_topic) - {each.topic for each in [*some, *given]})
    if empty:
        raise ConfigError(f"offsets or times for '{empty[0]:.249}', and only {_listed(some)} {_is(some)} read")
    missing, beyond = sorted(set(some) - set(given)), sorted(set(given) - set(some))
    if missing:
        raise ConfigError(
            f"offsets or times are needed for all partitions that are read, and {_listed(missing)} {_is(missing)} "
            "missing (-2 stands for earliest, -1 for latest)"
        )
    if beyond:
        raise ConfigError(f"offsets or times for {_listed(beyond)}, and only {_listed(some)} {_is(some)} read")
    return given


def _listed(some: list[TopicPartition]) -> str:
    return ", ".join(map(str, some[:5])) + (f" and {len(some) - 5} more" if len(some) > 5 else "")


def _is(some: list[TopicPartition]) -> str:
    return "is" if len(some) == 1 else "are"


def _at_times(client: Client, times: Offsets, latest: Offsets, strategy: str) -> Offsets:
    asked = {(each.topic, time) for each, time in times.items()}
    answers = {(topic, time): client.offsets(topic, _moment(time)) for topic, time in asked}
    found = {each: answers[each.topic, time][each.partition] for each, time in times.items()}
    if strategy == "error":
        for each, time in times.items():
            if found[each] >= latest[each]:
                raise ConfigError(
                    f"{each} has no event at or after {time} ms ({_moment(time):%Y-%m-%d %H:%M:%S} UTC), where it was "
                    "to start; startingOffsetsByTimestampStrategy=latest reads nothing of such a partition"
                )
    return {each: min(found[each], latest[each]) for each in times}


def _moment(time: int) -> datetime:
    try:
        return EPOCH + timedelta(milliseconds=time)
    except OverflowError:
        raise ConfigError(f"{time} is no time in ms since the epoch: it is after the year 9999") from None


def _not_lost(each: TopicPartition, asked: tuple[int, int], there: tuple[int, int], options: Options) -> None:
    explicit = [at for place, at in zip((options.start, options.end), asked, strict=True) if place.kind == "offsets"]
    if options.fail_on_data_loss and any(not there[0] <= at <= there[1] for at in explicit):
        raise OffsetOutOfRange(
            f"{each}: offsets {asked[0]} to {asked[1]} were asked for, and there are {there[0]} to {there[1]}; "
            "failOnDataLoss=false reads what is there",
            start=there[0],
            end=there[1],
        )
    if len(explicit) == 2 and asked[0] > asked[1]:
        raise ConfigError(f"{each}: it was to start at offset {asked[0]} and to end before that, at {asked[1]}")
