"""A log's `checkpoint`: what can't be derived from its segments. Replaced as a whole, atomically.

It says up to which offset everything was on disk and checked (the recovery point), the producers' states as of it,
where the log starts, how far it was cleaned, and what its closed segments hold, so that a clean open reads no batch. It
stands in two files, so that damage to one does not undo what was acknowledged as durable, such as a deletion of
records. Without both, the log still opens: it reads more, and starts at its first segment.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from krappy.core.epochs import Epochs
from krappy.core.retention import SegmentInfo
from krappy.store.disk import Disk
from krappy.store.format import CHECKPOINT, CHECKPOINT_COPY, CHECKPOINT_HEAD, CHECKPOINT_MAGIC, TEMPORARY
from krappy.store.producers import ProducerStates
from krappy.store.segment import Segment

UNKNOWN = 0  # in the file: a time that is not known, or None


class BadCheckpoint(Exception):
    """A checkpoint file that can't be read. Does not leave the store."""


class ProducersAt(NamedTuple):
    """What a checkpoint knows of producers, as of an offset."""

    offset: int
    producers: bytes
    transactions: bytes


class Checkpoint(NamedTuple):
    recovery: int  # offset: every batch before it was checked and synced
    segment: int  # base offset of the segment that holds it
    position: int  # its byte in that segment
    created_ms: int | None  # when that segment got its first batch; None: it had none
    max_timestamp: int  # ms, of that segment's events up to there; -1 without any
    max_timestamp_offset: int  # last offset of the batch that has it
    entries: int  # entries of that segment's offset index, for batches before the recovery point
    time_entries: int  # entries of its time index
    entries_crc: int  # CRC-32 (zlib's) of the bytes of those entries in the file
    time_entries_crc: int
    start: int  # the log's first offset
    clean: int  # the cleaner has seen everything before this offset
    sparse: int  # offsets before this one may be missing: a cleaner removed them, here or on the broker fetched from
    closed: tuple[SegmentInfo, ...]  # the segments before that one
    producers: bytes  # ProducerStates.snapshot() as of `recovery`
    cache: str = ""  # the page cache that it was written in (`Disk.page_cache`); empty: not known
    proofs: tuple[tuple[int, int], ...] = ()  # base offsets of closed segments with `.sums`, and the CRC-32C of these
    epochs: tuple[tuple[int, int], ...] | None = None  # leader epochs and their first offsets; None: all of epoch 0
    transactions: bytes = b""  # msgpack of Stability.pack() as of `recovery`; empty: there never was one
    high_watermark: int | None = None  # all before it is committed; never above `recovery`. None: not known
    # Where `recovery` is above the high watermark: the producers as of an offset not above the high watermark.
    earlier: ProducersAt | None = None
    cut: bool = False  # a truncation was decided: all behind `position`, and all later segments, have to go
    appended_ms: int | None = None  # when that segment got its last batch; None: it had none, or that is not known
    gone_below: int = 0  # tombstones and markers from before this offset may be missing
    noted: bool = True  # its writer clears the log's record in DATA/reached before it makes the log shorter

    @classmethod
    def of(
        cls,
        active: Segment,
        closed: Iterable[SegmentInfo],
        producers: ProducerStates,
        *,
        start: int,
        clean: int,
        sparse: int,
        cache: str,
        proofs: Iterable[tuple[int, int]] = (),
        epochs: Epochs,
        high_watermark: int | None = None,
        gone_below: int = 0,
    ) -> Checkpoint:
        """The log's state now. It is true once all is synced. To be called after a flush of the indexes."""
        indexer = active.indexer
        assert indexer is not None
        entries, time_entries = active.flushed
        return cls(
            recovery=active.next_offset,
            segment=active.base_offset,
            position=active.size,
            created_ms=active.created_ms,
            max_timestamp=indexer.max_timestamp,
            max_timestamp_offset=indexer.max_timestamp_offset,
            entries=entries.entries,
            time_entries=time_entries.entries,
            entries_crc=entries.crc,
            time_entries_crc=time_entries.crc,
            start=start,
            clean=clean,
            sparse=sparse,
            closed=tuple(closed),
            producers=producers.snapshot(),
            cache=cache,
            proofs=tuple(proofs),
            epochs=epochs.kept(start, active.next_offset),
            transactions=producers.transactions(),
            high_watermark=None if high_watermark is None else min(high_watermark, active.next_offset),
            appended_ms=active.appended_ms,
            gone_below=gone_below,
        )

    def upto(self, offset: int) -> ProducersAt | None:
        """The latest known state of the producers as of `offset` or an offset before it; None without one."""
        if self.recovery <= offset:
            return ProducersAt(self.recovery, self.producers, self.transactions)
        return self.earlier if self.earlier and self.earlier.offset <= offset else None

    def knowing(self, before: Checkpoint, cleaned: int) -> Checkpoint:
        """This checkpoint, with `earlier` taken from the checkpoint `before`: the producers as of an offset not above
        this one's high watermark. A truncation usually ends above that offset, and then reads only the batches behind
        it. Batches below `cleaned` are being cleaned and can't serve for that, so a state from before `cleaned` is not
        kept."""
        if self.high_watermark is None or self.recovery <= self.high_watermark:
            return self
        earlier = before.upto(self.high_watermark)
        return self if earlier is None or earlier.offset < cleaned else self._replace(earlier=earlier)

    def pack(self) -> bytes:
        closed = [[*info[:4], info.created_ms or UNKNOWN] for info in self.closed]
        appended = [ms or UNKNOWN for ms in (*(info.appended_ms for info in self.closed), self.appended_ms)]
        times = {"created_ms": self.created_ms or UNKNOWN, "appended_ms": appended}
        body = msgpack.packb(self._asdict() | times | {"closed": closed})
        return CHECKPOINT_HEAD.pack(CHECKPOINT_MAGIC, zlib.crc32(body), len(body)) + bytes(body)

    @classmethod
    def unpack(cls, data: bytes) -> Checkpoint:
        """Raises BadCheckpoint."""
        if len(data) < CHECKPOINT_HEAD.size:
            raise BadCheckpoint(f"{len(data)} bytes: too short")
        magic, crc, size = CHECKPOINT_HEAD.unpack_from(data)
        body = data[CHECKPOINT_HEAD.size :]
        if magic != CHECKPOINT_MAGIC:
            raise BadCheckpoint("its first bytes are not a checkpoint's")
        if size != len(body) or crc != zlib.crc32(body):
            raise BadCheckpoint("its checksum is wrong")
        try:
            found = msgpack.unpackb(body)
            rows = found.pop("closed")
            *appended, last = map(int, found.pop("appended_ms", [UNKNOWN] * (len(rows) + 1)))
            closed = tuple(_info(info, ms) for info, ms in zip(rows, appended, strict=True))
            producers, transactions = found.pop("producers"), found.pop("transactions", b"")
            cache = found.pop("cache", "")
            proofs = tuple((int(base), int(crc)) for base, crc in found.pop("proofs", ()))
            epochs = found.pop("epochs", None)
            if epochs is not None:
                epochs = tuple((int(epoch), int(first)) for epoch, first in epochs)
            marked = found.pop("high_watermark", None)
            earlier = found.pop("earlier", None)
            if earlier is not None:
                offset, *states = earlier
                earlier = ProducersAt(int(offset), *map(bytes, states))
            cut = bool(found.pop("cut", False))
            below = min(found["sparse"], found["recovery"])  # what an earlier version may have removed
            gone_below = int(found.pop("gone_below", below))
            noted = bool(found.pop("noted", False))
            if not isinstance(cache, str):
                raise TypeError(cache)
            others = (
                *("closed", "producers", "transactions", "cache", "proofs", "epochs"),
                *("high_watermark", "earlier", "cut", "appended_ms", "gone_below", "noted"),
            )
            numbers: dict[str, Any] = {name: int(found[name]) for name in cls._fields if name not in others}
            numbers["created_ms"] = numbers["created_ms"] or None
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise BadCheckpoint(f"its content can't be read: {error!r}") from None
        return cls(
            **numbers,
            closed=closed,
            producers=bytes(producers),
            transactions=bytes(transactions),
            cache=cache,
            proofs=proofs,
            epochs=epochs,
            high_watermark=None if marked is None else int(marked),
            earlier=earlier,
            cut=cut,
            noted=noted,
            appended_ms=last or None,
            gone_below=gone_below,
        )


def _info(row: Iterable[int], appended: int) -> SegmentInfo:
    base, following, size, max_timestamp, created = map(int, row)
    return SegmentInfo(base, following, size, max_timestamp, created or None, appended or None)


def save(disk: Disk, folder: Path, checkpoint: Checkpoint) -> None:
    """Both files are durable when this returns. Raises OSError; each is then the old one or the new."""
    write(disk, folder, checkpoint)
    replace(disk, folder)


def write(disk: Disk, folder: Path, checkpoint: Checkpoint) -> None:
    """The first half of `save`: writes both files as `*.tmp`. Raises OSError; the checkpoint is then the old one."""
    data = checkpoint.pack()
    for name in (CHECKPOINT, CHECKPOINT_COPY):
        disk.write_file(folder / (name + TEMPORARY), data)


def replace(disk: Disk, folder: Path) -> None:
    """The other half of `save`: renames both files."""
    for name in (CHECKPOINT, CHECKPOINT_COPY):
        disk.rename(folder / (name + TEMPORARY), folder / name)
    disk.fsync_dir(folder)


class Loaded(NamedTuple):
    checkpoint: Checkpoint
    whole: bool  # both files hold it; else it has to be saved again
    problems: list[str]  # damaged files, in words


def load(disk: Disk, folder: Path) -> Loaded:
    """The first of the two files that can be read. Raises BadCheckpoint, FileNotFoundError without any, OSError."""
    problems: list[str] = []
    found: dict[str, bytes] = {}
    for name in (CHECKPOINT, CHECKPOINT_COPY):
        with contextlib.suppress(FileNotFoundError):
            found[name] = disk.read_file(folder / name)
    if not found:
        raise FileNotFoundError(f"{folder / CHECKPOINT} is missing, and its copy too")
    taken: Checkpoint | None = None
    for name, data in found.items():
        try:
            checkpoint = Checkpoint.unpack(data)
        except BadCheckpoint as error:
            problems.append(f"the file {name} was damaged: {error}")
        else:
            taken = taken or checkpoint
    if taken is None:
        raise BadCheckpoint("; ".join(problems))
    return Loaded(taken, len(found) == 2 and len(set(found.values())) == 1, problems)
