"""The position of a stream, as Spark keeps it in its checkpoint, and which events are lost to it. Pure.

Before Spark runs a batch, it writes down where the batch ends, but never where the first batch begins: when it replays
the first batch after a failure, it asks for the initial offset again. So the initial offset is only a mark, and the end
of the first batch says where that batch begins: at offsets, or with a snapshot. Every replay then reads the same
events, even if "latest" has moved on.

    initial        {"$start": "latest"}
    first batch    {"users": {"0": 12, "1": 7}, "$ids": {…}, "$first": {"offsets": {"users": {"0": 9, "1": 7}}}}
                   {"users": {"0": 12, "1": 7}, "$ids": {…}, "$first": {"snapshots": {"users": "0f3a…"}}}
    any later      {"users": {"0": 14, "1": 9}, "$ids": {"users": "q4cd…"}}

An offset is that of the next event; `$` can't be in a topic's name. The ids tell a topic from one that was
made under the same name after it was deleted, whatever offsets that one has. Positions of older versions have no ids.
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
    """`offsets`: by partition, the offset of the next event; None: the stream has not begun. `ids`: by topic, as far as
    they are known. The end of the first batch, and no other, also has one of these: `first`, the offsets where that
    batch begins, or `snapshots`, by topic the id of the snapshot that the batch reads."""

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
    """The mark of a stream that has not begun; `start` only tells people where it will begin."""
    return {START: start}


def encoded(position: StreamPosition) -> dict[str, Any]:
    """A position as it stands in the checkpoint; equal positions have the same text."""
    found: dict[str, Any] = _nested(position.at)
    if position.ids:
        found[IDS] = dict(sorted(position.ids.items()))
    if position.snapshots is not None:
        found[FIRST] = {"snapshots": dict(sorted(position.snapshots.items()))}
    elif position.first is not None:
        found[FIRST] = {"offsets": _nested(position.first)}
    return found


def decoded(given: Mapping[str, Any]) -> StreamPosition:
    """The position that `encoded` or `initial` wrote. Raises ValueError for anything else, such as another source's
    checkpoint."""
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
    """Where the events between two positions begin, by partition: at offset 0 for partitions that were added since,
    and for a topic that was made anew."""
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
    """Why a stream at the position `at` can't go on, a sentence for each such partition. `now`: the logs' ends.
    `meant`: whether the query's options choose a partition."""
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
    """How many offsets a streaming query is behind in each topic that it reads from Krappy: by topic and partition.

    `progress`: `query.lastProgress`, or one of its `sources`. Empty if Spark reports no latest offset: before PySpark
    4.2 (where the field of that name is the end of the batch), and before the first batch.
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
