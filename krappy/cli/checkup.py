"""The checks of `krappy doctor`: every checksum and index of the logs, and that each view is the fold of its log.

A view is right if its entry of each key is the key's latest record in the log, and if every entry from the log's first
offset to the applied one is in the log. These are no faults: a view may be behind (the next start applies the rest;
open transactions wait for their end); compaction may have removed events that have newer ones in this rest; and a view
may keep a tombstone, or under compaction an entry, that the log no longer has.

The view itself is used as the map of the latest entries, so the memory needed does not grow with the data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from krappy.cli.errors import Failure
from krappy.cli.stored_partitions import StoredPartition, stored_partitions
from krappy.core.stability import without
from krappy.entries.entry import entry_offset, is_tombstone, pack_columns
from krappy.errors import KrappyError, StorageError
from krappy.records import batch as batches
from krappy.settings.topic import TopicConfig
from krappy.store import identity, loss
from krappy.store.catalog import LocalCatalog
from krappy.store.disk import OS_DISK
from krappy.store.format import PULSE, PULSE_COUNT, REACHED, SET_ASIDE, TROUBLE
from krappy.store.group_offsets import GroupOffsets
from krappy.store.groups import GroupStore
from krappy.store.hold import check_whole
from krappy.store.lock import FolderLock
from krappy.store.log import Log
from krappy.store.loss import Trouble
from krappy.store.meta import Meta
from krappy.store.reached import Reached, ReachedFile
from krappy.store.refusals import refusals
from krappy.store.transactions import TransactionStore
from krappy.store.views import Views
from krappy.types import text_id

READ = 4 << 20  # bytes of the log read at a time
SLICE = 500  # entries in one write to a view
NAMED = 5  # keys named in one problem

Tell = Callable[[str, int], None]  # (name of what is being checked, bytes checked since the last call)


@dataclass
class CheckedPartition:
    """The result for one partition. `problems`: faults; `repaired`: faults that were repaired; `notes`: remarks."""

    topic: str
    index: int
    start: int = 0
    end: int = 0
    size: int = 0
    entries: int | None = None  # in the view; None: the topic has no view
    view_lag: int = 0  # offsets that the view has not applied yet
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"


@dataclass
class Findings:
    """The results of a check. `problems` and `repaired` here concern the folder as a whole."""

    partitions: list[CheckedPartition] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems and not any(each.problems for each in self.partitions)


def data_size(data: Path) -> int:
    """Bytes of all segments. `check` reads each twice: once for its log and once for its view."""
    return sum(file.stat().st_size for file in (data / "topics").glob("*/*.log"))


def check(data: Path, repair: bool, tell: Tell) -> Findings:
    """Checks a stopped broker's folder. With `repair`, rebuilds wrong indexes and views, and checks again.

    Opening a log recovers it as a start of the broker would. Raises Failure when there is no such folder; StorageError
    when a broker runs on it, when the catalog can't be read, and when a restore of it was not finished.
    """
    check_whole(data)
    if not (data / "meta").is_dir():
        raise Failure(f"{data} is not the data folder of a broker: it has no catalog, the folder meta")
    with ExitStack() as stack:
        lock = FolderLock(data)
        stack.callback(lock.release)
        meta = Meta(data / "meta")
        stack.callback(meta.close)
        catalog = LocalCatalog(meta, change=False)
        found = Findings()
        found.problems += _closed_parts(data)
        try:
            GroupStore(meta).load_all()
            GroupOffsets(meta).load_all()
        except StorageError as error:
            found.problems.append(f"groups: {error}")
        try:
            TransactionStore(meta).load_all()
        except StorageError as error:
            found.problems.append(f"transactions: {error}")
        stored = stored_partitions(meta, catalog)
        found.problems += _strangers(data, catalog, stored)
        views = _open_views(data, repair, found)
        if views is not None:
            stack.callback(_close, views, found)
        _check_partitions(data, stored, views, repair, tell, found)
        if views is not None and views.damaged and repair:
            aside = _aside(views.folder)
            text = f"{views.folder}: {views.damaged}; it is {aside.name} now, and the views are new"
            views.set_aside(aside)
            found.repaired.append(text)
            before, found.partitions = found.partitions, []
            _check_partitions(data, stored, views, repair, tell, found)
            for earlier, partition in zip(before, found.partitions, strict=True):
                partition.repaired[:0] = earlier.repaired
        return found


def _check_partitions(
    data: Path, stored: Sequence[StoredPartition], views: Views | None, repair: bool, tell: Tell, found: Findings
) -> None:
    reached = ReachedFile(data / REACHED)
    for each in stored:
        partition = CheckedPartition(each.topic, each.index)
        found.partitions.append(partition)
        belongs = identity.owner(data / "topics" / partition.name)
        if belongs not in (None, text_id(each.topic_id)):
            partition.problems.append(f"its folder belongs to another topic or partition; the topic's id is {belongs}")
            continue
        record = reached.of(each.topic_id, each.index)
        _check_partition(data, partition, each.number, each.config, record, views, repair, tell)


def _strangers(data: Path, catalog: LocalCatalog, stored: Sequence[StoredPartition]) -> list[str]:
    """Problems: folders with events that belong to no topic. Empty ones are no problem: a broker that was killed while
    it added partitions leaves them."""
    known = {each.name for each in stored}
    known |= {f"{topic.name}-{index}" for topic in catalog.deleting() for index in range(len(topic.numbers))}
    topics = data / "topics"
    found = identity.unclaimed(topics, known) if topics.is_dir() else []
    return [f"{path}: belongs to no topic" for path in found]


def _closed_parts(data: Path) -> list[str]:
    """Problems: smaller parts of the folder that a broker could not open at its start. Nothing is changed."""
    opening: dict[str, Callable[[Path], object]] = {PULSE: _check_pulse, "staging": OS_DISK.names}
    found = []
    for name, open_part in opening.items():
        if os.path.lexists(data / name):
            try:
                with refusals(data / name):
                    open_part(data / name)
            except StorageError as error:
                found.append(str(error))
    return found


def _check_pulse(path: Path) -> None:
    """Raises OSError, StorageError."""
    OS_DISK.open(path, write=True).close()
    data = OS_DISK.read_file(path)
    if data and len(data) not in (PULSE_COUNT.size, 2 * PULSE_COUNT.size):  # a kill may leave it empty
        raise StorageError(
            f"{path}: it has {len(data):,} bytes and not {2 * PULSE_COUNT.size}, so its count is 0, and the broker's "
            "cluster takes the folder for an old copy. The broker writes it anew"
        )


def _close(views: Views, found: Findings) -> None:
    try:
        views.close()
    except StorageError as error:
        if not views.damaged or found.sound:
            found.problems.append(f"{views.folder}: {error}")


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.damaged-{time.time_ns()}")


def _open_views(data: Path, repair: bool, found: Findings) -> Views | None:
    folder = data / "views"
    if not folder.is_dir() and not repair:
        found.problems.append(f"{folder}: is missing; start the broker, or use --repair, to fold the logs again")
        return None
    try:
        return Views(folder)
    except StorageError as error:
        if not repair:
            found.problems.append(f"{folder}: {error}")
            return None
        aside = _aside(folder)
        folder.rename(aside)
        found.repaired.append(f"{folder}: could not be opened ({error}); it is {aside.name} now, and the views are new")
        return Views(folder)


def _check_partition(
    data: Path,
    found: CheckedPartition,
    number: int,
    config: TopicConfig,
    reached: Reached,
    views: Views | None,
    repair: bool,
    tell: Tell,
) -> None:
    folder = data / "topics" / found.name
    if not folder.is_dir():
        if config.view and views is not None and _never_written(views, number) and not reached.offset:
            found.notes.append("no folder yet, as after a kill while the topic was created: the next start makes it")
        else:
            found.problems.append(f"{folder}: the partition's folder is missing, and its events with it")
        return
    try:
        log = Log.open(folder, config, reached=reached)
    except KrappyError as error:
        found.problems.append(str(error))
        return
    try:
        found.start, found.end, found.size = log.start_offset, log.end_offset, log.size
        if not log.recovery.clean:
            found.notes.append(str(log.recovery))
        for kept in sorted(folder.glob("*" + SET_ASIDE)):
            found.notes.append(f"{kept}: {kept.stat().st_size:,} damaged bytes that a recovery cut from the log")
        found.problems += _scrub(log, found.name, tell)
        if found.problems and repair:
            _repair_log(log, found, tell)
        if config.view and views is not None:
            wrong = _check_view(log, views, number, found, tell)
            if wrong and repair and found.problems:
                found.notes.append("the view is left as it is: the log that it would be folded from is damaged")
            elif wrong and repair:
                wrong = _repair_view(log, views, number, found, wrong, tell)
            found.problems += wrong
        if (trouble := loss.noted(folder)) is not None:
            told = found.problems if trouble[0] is Trouble.LOST else found.notes  # damage is a problem of the log above
            told.append(f"{folder / TROUBLE}: {trouble[0]}: {trouble[1]}. In a cluster it is copied anew")
    finally:
        try:
            log.close()
        except StorageError as error:
            found.problems.append(str(error))


def _never_written(views: Views, number: int) -> bool:
    """Whether the view knows of nothing that was written to the partition."""
    try:
        return not views.applied(number)
    except KrappyError:
        return False


def _scrub(log: Log, name: str, tell: Tell) -> list[str]:
    problems: list[str] = []
    try:
        for segment, wrong in log.scrub():
            problems += wrong
            tell(name, segment.size)
    except StorageError as error:
        problems.append(str(error))
    return problems


def _repair_log(log: Log, found: CheckedPartition, tell: Tell) -> None:
    """Rebuilds the indexes and checks again. Damaged batches can't be repaired."""
    before = found.problems
    try:
        log.rebuild_indexes()
    except StorageError as error:
        found.notes.append(f"indexes could not be rebuilt: {error}")
    found.problems = _scrub(log, found.name, tell)
    if len(found.problems) < len(before):
        found.repaired.append("indexes rebuilt")


def _folded(log: Log, start: int, end: int, tell: Callable[[int], None]) -> Iterator[tuple[dict[bytes, bytes], int]]:
    """Reads the log from `start` to before `end`. For each batch, gives the latest entry of each key and the offset
    after the batch. Leaves out events of aborted transactions.
    """
    offset = start
    while offset < end:
        span = log.read_span(offset, READ, limit=end)
        if not span.data:
            return
        tell(len(span.data))
        aborted = log.producers.stability.between(offset, span.next_offset)
        for header, view in batches.split(without(memoryview(span.data), aborted)):
            if header.is_control:
                continue
            columns = batches.decode(view)
            first = next((i for i, each in enumerate(columns.offsets) if each >= start), len(columns.offsets))
            stop = next((i for i, each in enumerate(columns.offsets) if each >= end), len(columns.offsets))
            yield (
                pack_columns(
                    columns.offsets, columns.timestamps, columns.keys, columns.values, columns.headers, first, stop
                ),
                header.next_offset,
            )
        offset = max(offset + 1, span.next_offset)


def view_problems(log: Log, views: Views, number: int) -> list[str]:
    """What is wrong with the view of this log, as text."""
    return _check_view(log, views, number, CheckedPartition("", 0), lambda name, count: None)


def _check_view(log: Log, views: Views, number: int, found: CheckedPartition, tell: Tell) -> list[str]:
    """The problems of a partition's view, as text."""
    try:
        return _compare(log, views, number, found, tell)
    except KrappyError as error:
        return [f"the view can't be compared with the log: {error}"]


def _compare(log: Log, views: Views, number: int, found: CheckedPartition, tell: Tell) -> list[str]:
    applied = views.applied(number)
    if applied > log.end_offset:
        return [f"the view has applied offset {applied - 1:,}, and the log ends at {log.end_offset:,}"]
    found.view_lag = log.end_offset - max(applied, log.start_offset)
    missing, other, confirmed = _Keys("is not in the view"), _Keys("is not in the view as it is in the log"), 0
    for latest, _ in _folded(log, log.start_offset, applied, lambda count: tell(found.name, count)):
        keys = list(latest)
        for key, held in zip(keys, views.get_many(number, keys), strict=True):
            entry = latest[key]
            if held == entry:
                confirmed += not is_tombstone(entry)
            elif held is None:
                missing.add(key, entry)
            elif entry_offset(held) <= entry_offset(entry):
                other.add(key, entry)
    found.entries = total = 0
    beyond, unreadable = _Keys("has an entry that the view can't have applied yet"), _Keys("is unreadable in the view")
    for key, entry in _entries(views, number):
        found.entries += not is_tombstone(entry)
        if len(entry) < 20 or entry[:2] != b"\x94\xcf":
            unreadable.add(key, None)
        elif entry_offset(entry) >= applied:
            beyond.add(key, entry)
        elif entry_offset(entry) >= log.start_offset:
            total += not is_tombstone(entry)
    problems = [str(keys) for keys in (missing, other, beyond, unreadable) if keys.count]
    if total > confirmed and not other.count:
        extra = total - confirmed - _overtaken(log, views, number, applied)
        if extra:
            problems.append(f"{extra:,} entries of the view are not in the log")
    return problems


def _overtaken(log: Log, views: Views, number: int, applied: int) -> int:
    """How many entries of the view are no longer in the log because compaction removed them for a newer event of their
    key, which the view still has to apply. The view had applied that event in memory when the log was compacted, and
    lost it when the broker was killed."""
    found: set[bytes] = set()

    def gone(held: bytes | None) -> bool:
        if held is None or is_tombstone(held) or not log.start_offset <= (at := entry_offset(held)) < applied:
            return False
        return not any(latest for latest, _ in _folded(log, at, at + 1, _quietly))

    for latest, _ in _folded(log, max(applied, log.start_offset), log.end_offset, _quietly):
        keys = [key for key in latest if key not in found]
        found |= {key for key, held in zip(keys, views.get_many(number, keys), strict=True) if gone(held)}
    return len(found)


def _quietly(count: int) -> None:
    """Reports nothing: these bytes were counted before."""


class _Keys:
    """The keys with one problem: their number, and the names of the first few."""

    def __init__(self, complaint: str) -> None:
        self.count = 0
        self._complaint = complaint
        self._named: list[str] = []

    def add(self, key: bytes, entry: bytes | None) -> None:
        self.count += 1
        if len(self._named) < NAMED:
            at = "" if entry is None else f" (offset {entry_offset(entry):,})"
            self._named.append(f"{key[:60]!r}{at}")

    def __str__(self) -> str:
        more = ", …" if self.count > len(self._named) else ""
        return f"{self.count:,} of its keys, each {self._complaint}: {', '.join(self._named)}{more}"


def _entries(views: Views, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Every key of a view with its entry, tombstones too."""
    snapshot = views.snapshot()
    try:
        following: bytes | None = b""
        while following is not None:
            rows = snapshot.rows(number, start=following, tombstones=True)
            yield from zip(rows.keys, rows.entries, strict=True)
            following = rows.following
    finally:
        snapshot.close()


def _repair_view(
    log: Log, views: Views, number: int, found: CheckedPartition, wrong: list[str], tell: Tell
) -> list[str]:
    """Folds the log anew and returns the problems that are left. Entries from before the log's first offset stay: only
    the view has them.

    After a crash in between, the applied offset says how far it came, so a start of the broker goes on from there.
    """
    try:
        doomed = (key for key, entry in _entries(views, number) if entry_offset(entry) >= log.start_offset)
        views.note_begun(number, log.clean_upto)  # so that a start of the broker goes on with it after a crash
        views.apply(number, {}, log.start_offset)
        while some := list(islice(doomed, SLICE)):
            views.apply(number, {}, log.start_offset, some)
        decided = log.producers.stability.first_open(log.end_offset)
        for latest, following in _folded(log, log.start_offset, decided, lambda count: tell(found.name, count)):
            rows = iter(latest.items())
            while part := dict(islice(rows, SLICE)):
                views.apply(number, part, log.start_offset)
            views.apply(number, {}, following)
        views.flush()
    except KrappyError as error:
        return [*wrong, f"the view could not be rebuilt: {error}"]
    left = _check_view(log, views, number, found, tell)
    if not left:
        found.repaired.append("view folded anew: " + "; ".join(wrong))
    return left
