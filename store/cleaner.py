"""Compaction: rewrites closed segments without records whose keys have newer ones, and swaps the new segments in.

Several small neighbours become one segment. A batch keeps its base offset, last offset, timestamps and producer fields.
A batch that loses all its records is removed. Two kinds stay as a header, as in Kafka's cleaner: the last batch of a
segment (so that no offset is missing between segments), and a producer's last batch (so that its sequence is not
forgotten).

A tombstone stays until the delete horizon of its batch, so that readers who have seen the deleted events learn of it.
The first cleaning that finds the tombstone sets the horizon (KIP-534). The tombstone's own timestamp does not count:
the producer chose it.

Events of open transactions are not cleaned. The events of aborted transactions are removed. A marker is removed like a
tombstone: the first cleaning that finds no batch of its transaction in the log sets its delete horizon, and a cleaning
after that horizon removes it. So the marker stays as long as a reader may still hold batches of its transaction.

An error, a kill or a loss of power may stop the swap between any two of its steps, and reads run at the same time.
Kafka's consumers are told which transactions were aborted, and skip a producer's events until they meet the marker. So
before a marker is removed, the log must have forgotten, durably, that its transaction was aborted; and it may forget
that only once an earlier cleaning saw that no event of the transaction is left. The steps, in this order:

1. `.cleaned` is written and synced. On open it is deleted.
2. Readers are no longer told of the aborted transactions whose markers are not in it (`CleaningPace.swapping`). Until
   the swap such a marker ends nothing that consumers were told of, and they skip it.
3. The log forgets these transactions too. A checkpoint without them, and without the old segments, is durable.
4. `.cleaned` is renamed `.swap`, durably: the decision. On open the swap is finished, as FORMAT.md describes.
5. The old files are removed, durably. `.swap` gets its final name, its indexes and its checksums, and readers get the
   new segment. The next checkpoint has the proof of its checksums; without a proof they are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from krappy.core.retention import MAX_SPAN
from krappy.core.stability import Aborted, Hidden, Stability, commits
from krappy.errors import CorruptBatch, StorageError
from krappy.records import batch
from krappy.records.batch import BatchHeader
from krappy.store.disk import NO_DESCRIPTOR, Buffer, Disk, File
from krappy.store.format import CLEANED, LOG, SUFFIXES, SWAP
from krappy.store.index import Indexer
from krappy.store.producers import ProducerStates
from krappy.store.segment import Segment
from krappy.store.segments import Segments
from krappy.store.sums import Summing, Sums
from krappy.store.walk import Damage, batches

Candidate = tuple[bytes | None, int, bool, int | None]  # key, offset, whether a tombstone, its batch's delete horizon
Survives = Callable[[list[Candidate]], list[bool]]

ROUND = 1000  # records that are asked about at once, at least
ROUND_BYTES = 4 << 20  # or bytes of batches, whichever comes first
WRITE = 1 << 20  # bytes gathered before a write
PATIENCE_S = 60.0  # how long a swap waits for a file descriptor


class CleanResult(NamedTuple):
    bytes_before: int  # of the segments that were looked at
    bytes_after: int
    records_removed: int
    clean_upto: int  # everything before this offset has been compacted
    markers: Sequence[int] = ()  # offsets of abort markers that are no longer in the log


class Fate(NamedTuple):
    """What becomes of one batch."""

    offsets: frozenset[int] | None  # of the records that stay; None: it stays as it is
    deletes: bool = False  # whether a tombstone stays


class Rewritten(NamedTuple):
    """A cleaned segment that is not swapped in yet."""

    segment: Segment  # not in the log yet; its file is `.cleaned`
    file: File
    indexer: Indexer
    sums: Sums
    removed: int  # records
    markers: Sequence[int]  # offsets of the markers that were removed


def groups(segments: Sequence[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Groups of neighbours that fit into one segment, by `segment_bytes` and by the offsets that an index can hold."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and (size + segment.size > segment_bytes or segment.next_offset - group[0].base_offset > MAX_SPAN):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


class Transactions:
    """What one cleaning knows of transactions. It meets each batch in order, from the start of the log on."""

    def __init__(self, aborted: Iterable[Aborted] = ()) -> None:
        self._aborted = list(aborted)
        self._hidden = Hidden(self._aborted)
        self._begun: set[int] = set()  # producers with a batch since their last marker, even an empty one
        self._markers: set[int] = set()  # offsets of the markers that stay

    def aborted(self, header: BatchHeader) -> bool:
        return self._hidden.holds(header)

    def meets(self, header: BatchHeader, data: Buffer) -> bool:
        """To be called for each batch found. Returns True for a marker whose transaction has no batch left."""
        if not header.is_transactional:
            return False
        if not header.is_control:
            self._begun.add(header.producer_id)
            return False
        empty = header.producer_id not in self._begun and commits(data) is not None
        self._begun.discard(header.producer_id)
        return empty

    def keeps(self, header: BatchHeader) -> None:
        """To be called for each batch that stays."""
        if header.is_transactional and header.is_control:
            self._markers.add(header.base_offset)

    def gone(self, upto: int) -> list[int]:
        """The offsets below `upto` of abort markers that are no longer in the log. To be asked once all of it was
        cleaned."""
        return [each.last for each in self._aborted if each.last < upto and each.last not in self._markers]


def decided(stability: Stability, upto: int) -> tuple[int, Transactions]:
    """(the offset up to which the log may be cleaned, at most `upto`; the transactions below it). No open transaction
    has an event below that offset."""
    upto = min(upto, stability.first_open(upto))
    return upto, Transactions(stability.between(0, upto))


class CleaningPace:
    """How a cleaning makes way for others: hooks that it calls. This one does nothing."""

    def spend(self, size: int) -> None:
        """Called with the number of bytes read or written, at most some MiB at a time. May wait, or raise to end the
        cleaning."""

    def swapping(self, markers: Sequence[int]) -> AbstractContextManager[None]:
        """Held around each swap of segments. `markers`: offsets of the abort markers that it removes. On entry, all
        that tells readers of aborted transactions, except the log, must forget those that ended with these markers."""
        return nullcontext()


FREELY = CleaningPace()


# Held while a file is created or removed by its name. Raises StorageError once the log is deleted: then the folder may
# be another log's.
Owned = Callable[[], AbstractContextManager[None]]


class Cleaning(NamedTuple):
    """The parameters of one cleaning."""

    survives: Survives
    producers: ProducerStates
    transactions: Transactions
    now: int  # ms
    horizon: int  # the delete horizon (ms) for tombstones and markers that no cleaning has seen before
    pace: CleaningPace
    owned: Owned
    markers_upto: int | None = None  # markers from this offset on stay


def rewrite(disk: Disk, group: Sequence[Segment], cleaning: Cleaning) -> Rewritten | None:
    """Writes the batches of the group that stay to one durable `.cleaned` file. None when that would change nothing.

    Raises CorruptBatch that names file and position; OSError.
    """
    survives, producers, transactions, now, horizon, pace, owned, markers_upto = cleaning
    first, last = group[0], group[-1]
    writer = _Writer(disk, first, cleaning, lazy=len(group) == 1)
    removed = 0
    markers: list[int] = []
    room = MAX_SPAN - sum(segment.size for segment in group)  # bytes that delete horizons may add
    try:
        for segment in group:
            for some in _rounds(segment):
                pace.spend(sum(len(data) for _, _, data in some))
                for (at, header, data), fate in zip(some, _fates(segment, some, survives, transactions), strict=True):
                    kept: Buffer = data
                    over = transactions.meets(header, data)
                    ends = header.next_offset == last.next_offset
                    if fate.offsets is not None:
                        needed = fate.offsets or ends or _is_latest(header, producers)
                        if header.count or not needed:
                            writer.change()
                        removed += header.count - len(fate.offsets)
                        if not needed:
                            continue
                        kept = _kept(segment, at, data, fate.offsets)
                    late = over and header.delete_horizon is not None and now >= header.delete_horizon
                    if late and not ends and (markers_upto is None or header.base_offset < markers_upto):
                        writer.change()
                        markers.append(header.base_offset)
                        continue
                    if (fate.deletes or over) and header.delete_horizon is None:
                        stamped = _with_horizon(kept, horizon)
                        if len(stamped) - len(kept) <= room:
                            room -= len(stamped) - len(kept)
                            kept = stamped
                            writer.change()
                    transactions.keeps(header)
                    writer.add(header, kept)
        file = writer.finish()
    except BaseException:
        with suppress(StorageError), owned():
            disk.unlink(first.path(LOG + CLEANED))
        raise
    if file is None:
        return None
    segment = Segment(
        disk,
        first.folder,
        first.base_offset,
        next_offset=last.next_offset,
        size=writer.size,
        max_timestamp=writer.indexer.max_timestamp,
        created_ms=last.created_ms,
        appended_ms=max((each.appended_ms for each in group if each.appended_ms is not None), default=None),
        dense=False,
        interval=first.interval,
    )
    return Rewritten(segment, file, writer.indexer, writer.summing.sums(), removed, markers)


@contextmanager
def discarded(disk: Disk, rewritten: Rewritten, owned: Owned) -> Iterator[None]:
    """On exit deletes the `.cleaned` file, if it was not swapped in."""
    try:
        yield
    finally:
        with suppress(OSError, StorageError), owned():
            disk.unlink(rewritten.segment.path(LOG + CLEANED))


def rewrites(
    disk: Disk,
    groups: Iterable[Sequence[Segment]],
    cleaning: Cleaning,
    now: Callable[[], Segments],
) -> Iterator[tuple[Sequence[Segment], Rewritten | None]]:
    """(group, its `rewrite`) for each group, in order. If retention removes segments of a group before it was swapped
    in, the rest of the group is rewritten again: the result of a cleaning covers every batch that the log still has."""
    for group in groups:
        while group:
            try:
                rewritten = rewrite(disk, group, cleaning)
            except FileNotFoundError:
                left = _left(group, now())
                if len(left) == len(group):
                    raise
            else:
                yield group, rewritten
                left = [] if rewritten is None else _left(group, now())
            group = left


def _left(group: Sequence[Segment], known: Segments) -> list[Segment]:
    """The segments of the group that are still in the log: none once they were replaced."""
    return [segment for segment in group if segment in known]


def _rounds(segment: Segment) -> Iterator[list[tuple[int, BatchHeader, memoryview]]]:
    """The segment's batches, checked, in lists of about ROUND records or ROUND_BYTES."""
    some: list[tuple[int, BatchHeader, memoryview]] = []
    records = size = 0
    end = segment.base_offset
    try:
        walk = batches(segment.handle().file, 0, segment.size, segment.base_offset, dense=segment.dense)
        for at, header, data in walk:
            some.append((at, header, data))
            records += header.count
            size += header.size
            end = header.next_offset
            if records >= ROUND or size >= ROUND_BYTES:
                yield some
                some, records, size = [], 0, 0
    except Damage as damage:
        raise segment.corrupt(damage.position, damage.text) from None
    if end != segment.next_offset:
        raise segment.corrupt(segment.size, f"the segment ends with offset {end - 1}, not {segment.next_offset - 1}")
    if some:
        yield some


def _fates(
    segment: Segment,
    some: Sequence[tuple[int, BatchHeader, memoryview]],
    survives: Survives,
    transactions: Transactions,
) -> list[Fate]:
    candidates: list[Candidate] = []
    counts = []
    events: list[tuple[int, bool]] = []  # offset, and whether it deletes
    verdicts: list[bool] = []
    size = 0  # bytes of keys
    for at, header, data in some:
        if header.is_control or not header.count or transactions.aborted(header):
            counts.append(0)
            continue
        try:
            columns = batch.decode(data)
        except CorruptBatch as error:
            raise segment.corrupt(at, error.text) from None
        horizon = header.delete_horizon
        candidates += [
            (key, offset, value is None, horizon)
            for key, value, offset in zip(columns.keys, columns.values, columns.offsets, strict=True)
        ]
        counts.append(len(columns))
        size += sum(map(len, filter(None, columns.keys)))
        if size >= ROUND_BYTES:
            verdicts += survives(candidates)
            events += [(offset, deletes) for _, offset, deletes, _ in candidates]
            candidates, size = [], 0
    verdicts += survives(candidates) if candidates else []
    events += [(offset, deletes) for _, offset, deletes, _ in candidates]
    if len(verdicts) != len(events):
        raise ValueError(f"{len(verdicts)} verdicts on {len(events)} records")
    fates: list[Fate] = []
    at = 0
    for (_, header, _), count in zip(some, counts, strict=True):
        if count:
            kept = list(compress(events[at : at + count], verdicts[at : at + count]))
            offsets = None if len(kept) == count else frozenset(offset for offset, _ in kept)
            fates.append(Fate(offsets, any(deletes for _, deletes in kept)))
            at += count
        else:
            fates.append(Fate(None if header.is_control else frozenset()))
    return fates


def _kept(segment: Segment, position: int, data: Buffer, offsets: frozenset[int]) -> bytes:
    try:
        return batch.keep(data, offsets)
    except CorruptBatch as error:
        raise segment.corrupt(position, error.text) from None


def _with_horizon(data: Buffer, horizon: int) -> Buffer:
    """The batch with this delete horizon. It stays unchanged if its timestamps are too far from that; then its
    tombstones stay."""
    try:
        return batch.with_delete_horizon(data, min(horizon, batch.MAX_I64))
    except ValueError:
        return data


def _is_latest(header: BatchHeader, producers: ProducerStates) -> bool:
    """Whether this is the last batch that its producer has sent."""
    if header.producer_id < 0:
        return False
    state = producers.get(header.producer_id)
    return state is not None and state.sent[-1].base_offset == header.base_offset


def swap(disk: Disk, folder: Path, group: Sequence[Segment], rewritten: Rewritten) -> None:
    """Replaces the group's files by the cleaned segment. Readers of the group go on with the files they hold.

    Raises OSError. Once the first rename is durable, the swap can't be undone, only finished.
    """
    new = rewritten.segment
    for segment in group:
        segment.pin()
    disk.rename(new.path(LOG + CLEANED), new.path(LOG + SWAP))
    _fsync_dir(disk, folder)
    for segment in group:
        for suffix in SUFFIXES:
            if segment is not group[0] or suffix != LOG:
                disk.unlink(segment.path(suffix))
    _fsync_dir(disk, folder)
    disk.rename(new.path(LOG + SWAP), new.path(LOG))
    _fsync_dir(disk, folder)


def prove(segments: Iterable[Segment], pace: CleaningPace, shaping: AbstractContextManager[object]) -> None:
    """Writes checksums for segments that a cleaning left unchanged, for after a start these segments count as not
    dense."""
    for segment in segments:
        if segment.proof is None:
            with suppress(OSError):  # retention was faster, or the disk is full
                sums = Sums.of(segment.handle().file, segment.size, pace.spend)
                with shaping:
                    if not segment.retired:
                        segment.prove(sums)


def _fsync_dir(disk: Disk, folder: Path) -> None:
    """Syncs the folder. Without a free file descriptor it waits, for a swap must not stop halfway. Raises OSError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return disk.fsync_dir(folder)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


class _Writer:
    """Gathers batches into large writes, and indexes them.

    A `lazy` writer writes no file until its output differs from its one source segment.
    """

    def __init__(self, disk: Disk, first: Segment, cleaning: Cleaning, *, lazy: bool) -> None:
        self.indexer = Indexer(first.interval)
        self.summing = Summing()
        self.size = 0
        self._disk = disk
        self._first = first
        self._pace = cleaning.pace
        self._owned = cleaning.owned
        self._file: File | None = None
        self._waiting: list[Buffer] = []
        self._written = 0
        if not lazy:
            self.change()

    def change(self) -> None:
        """From here on the output differs from the source: creates the file, with all up to here."""
        if self._file is None:
            with self._owned():
                self._file = self._disk.open(self._first.path(LOG + CLEANED), create=True)
            source = self._first.handle().file
            while self._written < self.size:
                data = source.pread(min(WRITE, self.size - self._written), self._written)
                self._file.write([data], self._written)
                self.summing.add(data)
                self._written += len(data)
                self._pace.spend(2 * len(data))

    def add(self, header: BatchHeader, data: Buffer) -> None:
        self.indexer.note(header.last_offset - self._first.base_offset, self.size, len(data), header.max_timestamp)
        self.size += len(data)
        if self._file is not None:
            self._waiting.append(data)
            if self.size - self._written >= WRITE:
                self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        if self._waiting:
            self._file.write(self._waiting, self._written)
            for data in self._waiting:
                self.summing.add(data)
            self._pace.spend(self.size - self._written)
        self._waiting, self._written = [], self.size

    def finish(self) -> File | None:
        """The file, durable; None when nothing has changed. Raises OSError when a segment can't be that long."""
        if self._file is not None:
            self._flush()
            if self.size > MAX_SPAN:
                raise OSError(f"{self._file.path} has {self.size} bytes, more than a segment may have")
            self._file.fdatasync()
        return self._file
