"""What stopped brokers have on their disks: their logs, and whether each view is the fold of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from krappy.cli.checkup import view_problems
from krappy.records import batch as batches
from krappy.records.batch import BatchHeader, Columns
from krappy.settings.topic import TopicConfig
from krappy.store.identity import owner
from krappy.store.log import Log
from krappy.store.meta import Meta
from krappy.store.view_numbers import ViewNumbers
from krappy.store.views import Views
from krappy.types import id_of
from tests.chaos.checker import Replica, Replicas, Violation, shortened

READ = 1 << 20
COMMITS = b"\0\0\0\1"  # the key of a marker that commits its transaction


class TransactionSpan(NamedTuple):
    """What one transaction has in a log: its first offset, the offset of its marker (`end`), and its values by
    offset."""

    first: int
    end: int
    is_committed: bool
    values: Mapping[int, bytes]


def replica(data: Path, topic: str, partition: int) -> Replica | None:
    """The log of a partition in a data folder; None: the broker has no such log."""
    folder = data / "topics" / f"{topic}-{partition}"
    if not folder.exists():
        return None
    with closing(Log.open(folder, TopicConfig())) as log:
        values: dict[int, bytes] = {}
        producers: dict[int, tuple[int, int]] = {}
        for header, columns in _batches(log):
            if not header.is_control:
                values |= _values(columns)
                producers.update(dict.fromkeys(columns.offsets, (header.producer_id, header.producer_epoch)))
        return Replica(log.start_offset, log.end_offset, values, producers)


def transactions(data: Path, topic: str, partition: int) -> list[TransactionSpan]:
    """The transactions of a partition that have ended."""
    found: list[TransactionSpan] = []
    under_way: dict[int, dict[int, bytes]] = {}  # by producer id
    with closing(Log.open(data / "topics" / f"{topic}-{partition}", TopicConfig())) as log:
        for header, columns in _batches(log):
            if header.is_control:
                values = under_way.pop(header.producer_id, {})
                if values:
                    found.append(TransactionSpan(min(values), header.base_offset, columns.keys[0] == COMMITS, values))
            elif header.is_transactional:
                under_way.setdefault(header.producer_id, {}).update(_values(columns))
    return found


def _batches(log: Log) -> Iterator[tuple[BatchHeader, Columns]]:
    offset = log.start_offset
    while offset < log.end_offset:
        span = log.read_span(offset, READ)
        for header, view in batches.split(span.data):
            yield header, batches.decode(view)
        offset = span.next_offset


def _values(columns: Columns) -> dict[int, bytes]:
    return dict(zip(columns.offsets, (each or b"" for each in columns.values), strict=True))


def replicas(folders: Mapping[int, Path], topic: str, partitions: int) -> tuple[Replicas, list[Violation]]:
    """The logs of a topic, and a violation for each that is missing. `folders`: by broker."""
    found: dict[int, dict[int, Replica]] = {}
    missing = []
    for partition in range(partitions):
        of = found.setdefault(partition, {})
        for broker, data in folders.items():
            log = replica(data, topic, partition)
            if log is None:
                missing.append(Violation("lost", f"broker {broker} has no log of {topic}-{partition}"))
            else:
                of[broker] = log
    return found, missing


def check_views(folders: Mapping[int, Path], topics: Mapping[str, int]) -> list[Violation]:
    """Checks that each replica's table is the fold of its log, up to the log's end. `topics`: how many partitions each
    topic has."""
    found = []
    for broker, data in folders.items():
        with ExitStack() as stack:
            meta = Meta(data / "meta")
            stack.callback(meta.close)
            numbers = ViewNumbers(meta)
            views = Views(data / "views")
            stack.callback(views.close)
            for name in (f"{topic}-{index}" for topic, count in topics.items() for index in range(count)):
                folder = data / "topics" / name
                number = numbers.of(id_of(owner(folder) or ""))[int(name.rpartition("-")[2])]
                log = Log.open(folder, TopicConfig())
                stack.callback(log.close)
                problems = view_problems(log, views, number)
                if (applied := views.applied(number)) != log.end_offset:
                    problems.append(f"the view has applied all before {applied}, and the log ends at {log.end_offset}")
                found += [Violation("view", f"broker {broker}, {name}: {text}") for text in problems]
    return shortened(found)
