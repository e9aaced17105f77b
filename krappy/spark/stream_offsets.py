"""Where a stream stands, as Spark keeps it in its checkpoint, and what is lost when the logs have moved on. Pure.

Spark writes down where each batch ends, before it runs it; never where the first one began: it asks for the initial
offset again when it replays the first batch after a failure. So the initial offset is a mark that stands for no
offsets yet, and the end of the first batch says where that batch begins, be it at offsets or with a snapshot. Every
replay then reads the same events, whatever has happened to "latest" in the meantime.

    initial        {"$start": "latest"}
    first batch    {"users": {"0": 12, "1": 7}, "$ids": {…}, "$first": {"offsets": {"users": {"0": 9, "1": 7}}}}
                   {"users": {"0": 12, "1": 7}, "$ids": {…}, "$first": {"snapshots": {"users": "0f3a…"}}}
    any later      {"users": {"0": 14, "1": 9}, "$ids": {"users": "q4cd…"}}

An offset is that of the next event, as everywhere; `$` can't be in a topic's name. The ids tell a topic from one of the
same name that was made after it was deleted, whatever offsets that has. Positions of before they were kept have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from krappy.spark.places import MARKS
from krappy.spark.versions import features
from krappy.types import TopicPartition

START, FIRST, IDS = MARKS
Offsets = Mapping[TopicPartition, int]


class StreamPosition(NamedTuple):
    """`offsets`: by partition, of the next event; None: the stream has not begun. `ids`: of the topics that these are
    of, as far as they are known. `first` and `snapshots` belong to the end of the first batch: where it begins, or the
    id of each topic's snapshot that it consists of."""

    offsets: Offsets | None
    ids: Mapping[str, str] = {}
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


def encoded(position: StreamPosition) -> dict[str, Any]:
    """As it stands in the checkpoint: a position has one text."""
    found: dict[str, Any] = _nested(position.at)
    if position.ids:
        found[IDS] = dict(sorted(position.ids.items()))
    if position.snapshots is not None:
        found[FIRST] = {"snapshots": dict(sorted(position.snapshots.items()))}
    elif position.first is not None:
        found[FIRST] = {"offsets": _nested(position.first)}
    return found


def decoded(given: Mapping[str, Any]) -> StreamPosition:
    """Raises ValueError for what `encoded` and `initial` never gave: another source's checkpoint, say."""
    if START in given:
        return StreamPosition(None)
    try:
        first = given.get(FIRST, {})
        begins = first.get("offsets")
        snapshots = first.get("snapshots")
        return StreamPosition(
            _flat((topic, some) for topic, some in given.items() if topic not in MARKS),
            {str(topic): str(id) for topic, id in given.get(IDS, {}).items()},
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


def begins(start: StreamPosition, end: StreamPosition) -> dict[TopicPartition, int]:
    """Where the events between two positions begin, by partition: at the first event of what came since, which includes
    a topic that was made anew."""
    return {each: _begin(each, start, end) for each in end.at}


def _begin(each: TopicPartition, start: StreamPosition, end: StreamPosition) -> int:
    before, same = start.at.get(each, 0), _same(each.topic, start, end)
    if same is None:
        return before if before <= end.at[each] else 0
    return min(before, end.at[each]) if same else 0


def _same(topic: str, one: StreamPosition, other: StreamPosition) -> bool | None:
    """Whether both are of the same topic of that name; None: that is not known."""
    ids = one.ids.get(topic), other.ids.get(topic)
    return None if None in ids else ids[0] == ids[1]


def losses(at: StreamPosition, now: StreamPosition, meant: Callable[[TopicPartition], bool]) -> Iterator[str]:
    """What a stream that stands somewhere can't go on with, each in a sentence. `meant`: whether a partition is one of
    the query's, by its options."""
    for each, offset in at.at.items():
        end, same = now.at.get(each), _same(each.topic, at, now)
        read = f"{each} was read up to offset {offset}"
        if not meant(each):
            yield f"{read}, and is no topic of this query's"
        elif same is False:
            yield f"{read}, and its topic was deleted and made anew since: its events are others, from the first one on"
        elif end is None:
            yield f"{read}, and is gone"
        elif end < offset and same is None:
            yield f"{read}, and ends at {end} now: its topic was deleted and made anew since"
        elif end < offset:
            yield f"{read}, and ends at {end} now: the broker has lost events of it"


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


def _reported(given: Any) -> StreamPosition | None:
    try:
        value = json.loads(given) if isinstance(given, str) else given
        return decoded(value) if isinstance(value, Mapping) else None
    except ValueError:
        return None
