"""Judges histories: which events are lost, there twice, out of order, unseen, and whether replicas are equal.

Pure: it takes what clients noted (histories.py) and what stopped brokers have in their logs. The anomalies are those of
Jepsen's workload for Kafka (https://github.com/jepsen-io/redpanda, "lost write", "duplicate", "nonmonotonic poll",
"aborted read", "unseen"), but with the logs at hand instead of polls alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from tests.chaos.histories import Fate, History, Reading, Sent

MOST = 5  # so many violations of one kind are reported; one fault may cause thousands
Log = Mapping[int, bytes]  # one replica's values by offset, without control records
NONE: Mapping[int, tuple[int, int]] = MappingProxyType({})
# A duplicate by librdkafka. After some errors it goes on in a new producer epoch, and sends again the events that it
# had sent in the old epoch (https://github.com/confluentinc/librdkafka/issues/4953). No broker can recognize such
# duplicates.
RESENT = "resent"


class Replica(NamedTuple):
    """One broker's log of a partition. `end`: the next offset. `values`: the value at each offset from `start` on.
    `producers`: (producer id, epoch) of the event at each offset, where they are known."""

    start: int
    end: int
    values: Log
    producers: Mapping[int, tuple[int, int]] = NONE


Replicas = Mapping[int, Mapping[int, Replica]]  # by partition, then by broker


class Violation(NamedTuple):
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(history: History, logs: Replicas) -> list[Violation]:
    """Everything that is wrong with a topic that is not compacted: at most `MOST` violations of each kind, and how many
    more there are."""
    found = [*_of_replicas(logs), *_of_logs(history, logs)]
    for reading in history.readings:
        found += _of_reading(history, logs, reading)
    return shortened(found)


def check_equal(logs: Replicas) -> list[Violation]:
    """Checks that replicas have equal events at the offsets that they share. Each replica of a compacted topic removes
    superseded events by itself, so an offset may be missing in one of them."""
    found = []
    for partition, replicas in logs.items():
        if len({each.end for each in replicas.values()}) > 1:
            ends = {broker: each.end for broker, each in replicas.items()}
            found.append(Violation("differs", f"the logs of partition {partition} end at {ends}"))
        told: dict[int, dict[int, bytes]] = {}
        for broker, replica in replicas.items():
            for offset, value in replica.values.items():
                told.setdefault(offset, {})[broker] = value
        for offset, values in sorted(told.items()):
            if len(set(values.values())) > 1:
                found.append(Violation("differs", f"partition {partition}, offset {offset}: {values}"))
    return shortened(found)


def shortened(found: list[Violation]) -> list[Violation]:
    kinds: dict[str, list[Violation]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    told = []
    for kind, those in kinds.items():
        told += those[:MOST]
        if len(those) > MOST:
            told.append(Violation(kind, f"and {len(those) - MOST} more"))
    return told


def _of_replicas(logs: Replicas) -> Iterator[Violation]:
    """Checks that replicas have the same event at each offset, and the same end."""
    for partition, replicas in logs.items():
        if len({each.end for each in replicas.values()}) > 1:
            ends = {broker: each.end for broker, each in replicas.items()}
            yield Violation("differs", f"the logs of partition {partition} end at {ends}")
        start = max((each.start for each in replicas.values()), default=0)
        offsets = sorted({offset for each in replicas.values() for offset in each.values if offset >= start})
        for offset in offsets:
            told = {broker: each.values.get(offset) for broker, each in replicas.items()}
            if len(set(told.values())) > 1:
                yield Violation("differs", f"partition {partition}, offset {offset}: {told}")


def _of_logs(history: History, logs: Replicas) -> Iterator[Violation]:
    for partition, replicas in logs.items():
        for broker, replica in replicas.items():
            yield from _of_log(history, partition, replica, f"partition {partition} of broker {broker}")
    there = {at: {broker: set(each.values.values()) for broker, each in found.items()} for at, found in logs.items()}
    for event in history.sent.values():
        if event.fate is Fate.ACKED and event.offset < 0:  # it was acknowledged as a duplicate, without an offset
            for broker, values in there.get(event.partition, {}).items():
                if event.value not in values:
                    where = f"partition {event.partition} of broker {broker}"
                    yield Violation("lost", f"{where}: {event.value!r} was acknowledged and is not there")
        elif event.fate is Fate.ACKED:
            yield from _lost(event, logs)


def _of_log(history: History, partition: int, replica: Replica, where: str) -> Iterator[Violation]:
    last: dict[tuple[str, tuple[int, int]], tuple[int, int]] = {}  # by writer and epoch: the highest number, its offset
    there: dict[bytes, int] = {}
    for offset, value in sorted(replica.values.items()):
        event = history.sent.get(value)
        if event is None:
            yield Violation("foreign", f"{where} has {value!r:.60} at {offset}, which nobody sent")
            continue
        if event.partition != partition:
            yield Violation("foreign", f"{where} has {value!r} at {offset}, which was sent to {event.partition}")
        if event.writer not in history.once:
            continue
        epoch = replica.producers.get(offset, (-1, -1))
        if value in there:
            kind = "duplicate" if replica.producers.get(there[value], (-1, -1)) == epoch else RESENT
            yield Violation(kind, f"{where} has {value!r} at {there[value]} and at {offset}")
            continue
        there[value] = offset
        number, at = last.get((event.writer, epoch), (-1, -1))
        if event.number < number:
            yield Violation("reordered", f"{where} has {value!r} at {offset}, behind {number} at {at}")
        last[event.writer, epoch] = max((number, at), (event.number, offset))


def _lost(event: Sent, logs: Replicas) -> Iterator[Violation]:
    for broker, replica in logs.get(event.partition, {}).items():
        where = f"partition {event.partition} of broker {broker}"
        found = replica.values.get(event.offset)
        if event.offset >= replica.start and found != event.value:
            yield Violation("lost", f"{where}: {event.value!r} was acknowledged at {event.offset}, there is {found!r}")


def _of_reading(history: History, logs: Replicas, reading: Reading) -> Iterator[Violation]:
    for error in reading.errors:
        yield Violation("reader", f"{reading.reader}: {error}")
    for partition, seen in reading.seen.items():
        where = f"{reading.reader}, partition {partition}"
        values = next((each.values for each in logs.get(partition, {}).values()), {})
        for before, after in pairwise(seen):
            if after.offset <= before.offset:
                yield Violation("reordered", f"{where}: offset {after.offset} came behind {before.offset}")
        for offset, value in seen:
            event = history.sent.get(value)
            if event is not None and event.fate is Fate.ABORTED:
                yield Violation("aborted", f"{where} got {value!r} at {offset}, which was aborted")
            if values.get(offset) != value:
                yield Violation("vanished", f"{where} got {value!r} at {offset}, where {values.get(offset)!r} is now")
    yield from _unseen(history, reading)


def _unseen(history: History, reading: Reading) -> Iterator[Violation]:
    got = {partition: {each.offset for each in seen} for partition, seen in reading.seen.items()}
    for event in history.sent.values():
        end = reading.finished.get(event.partition, 0)
        if event.fate is Fate.ACKED and 0 <= event.offset < end and event.offset not in got.get(event.partition, ()):
            yield Violation("unseen", f"{reading.reader} did not get {event.value!r} at {event.offset}")
