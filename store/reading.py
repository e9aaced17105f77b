"""Reading a partition's log while others write to it or remove segments.

Rules of this file. A read uses the row of segments as it was at one moment. If their files are removed meanwhile, the
read begins again with the current row. writing.py tells in which order appends become visible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from krappy.errors import CorruptBatch, OffsetOutOfRange, StorageError
from krappy.settings.topic import TopicConfig
from krappy.store.disk import UNREADABLE, Buffer, Disk, File
from krappy.store.index import BadIndex
from krappy.store.recovery import Recovered
from krappy.store.refusals import refusals
from krappy.store.segments import Segments
from krappy.store.walk import Damage, batches
from krappy.types import Span

T = TypeVar("T")
NO_CLAIM = (-1, 0)


class ReadableLog:
    """The part of `Log` that reads."""

    def __init__(self, folder: Path, config: TopicConfig, disk: Disk, found: Recovered) -> None:
        self.folder = folder
        self.config = config  # may be replaced at any time
        self._disk = disk
        self._segments = Segments(found.segments)
        self._active = found.segments[-1]
        self._start = found.start
        self.end_offset: int = self._active.next_offset  # the next event gets this one
        self._lock = Lock()  # held while the log's state changes: briefly, but during the write of an append
        self._broken = ""  # why nothing may be appended any more
        self.damage = ""  # the last damage that was found: what can't be read; empty: none
        self.is_parted = False  # its damage is that it has committed events which its leader lacks: they must be kept
        # (leader epoch of its last event, its end) when ZooKeeper turned out to have been given older data: all of it
        # may be committed.
        self.claim = NO_CLAIM
        self.lost = ""  # which events it once had and has lost; empty: none that are known
        self._closed = False
        self._cuts = 0  # truncations: counted after readers see the new end and before files are cut

    @property
    def cuts(self) -> int:
        """How often it was truncated."""
        return self._cuts

    def read(
        self, offset: int, max_bytes: int, *, limit: int | None = None, nowait: bool = False, min_one: bool = True
    ) -> Buffer:
        """The bytes of `read_span`."""
        data: Buffer = self.read_span(offset, max_bytes, limit=limit, nowait=nowait, min_one=min_one).data
        return data

    def read_span(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int | None = None,
        max_records: int | None = None,
        nowait: bool = False,
        min_one: bool = True,
    ) -> Span:
        """Whole batches, checksums verified, about `max_bytes` of them; the first contains `offset` or is the next.

        Only batches with base offsets below `limit` are given. The span ends behind the batch that reaches
        `max_records`. If there is a batch, at least one is given, whatever `max_bytes` (unless `min_one` is False).
        Empty when there is none. A span is of one segment, so there may be more. Raises OffsetOutOfRange below the
        log's start or above its end, CorruptBatch that names file and position, StorageError when the disk refuses,
        BlockingIOError with `nowait` when it would wait for the disk.
        """
        return self._reading(
            lambda known: known.read(offset, max_bytes, self._range(offset, limit), max_records, nowait, min_one)
        )

    def locate(
        self, offset: int, max_bytes: int, limit: int | None = None, *, nowait: bool = False
    ) -> list[tuple[File, int, int]]:
        """The bytes that `read` would return, as (open file, position, bytes) for sendfile. The last batch may be cut
        short.

        Batches' checksums are not verified. At least the first batch is whole. `truncate` may remove uncommitted
        batches before they are sent: then the file ends earlier, or has other batches there. Raises as `read`.
        """
        return self._reading(lambda known: known.locate(offset, max_bytes, self._range(offset, limit), nowait))

    def find_timestamp(self, timestamp: int, limit: int | None = None) -> tuple[int, int] | None:
        """The first record (offset, timestamp) whose timestamp is at least `timestamp` (ms); None without one. Blocks.

        `limit`: the offset before which to look. Raises CorruptBatch, StorageError.
        """
        return self._reading(lambda known: known.find_timestamp(timestamp, self._start, self._stop(limit)), opens=True)

    def find_latest(self, limit: int | None = None) -> tuple[int, int] | None:
        """The first record (offset, timestamp) with the highest timestamp. Otherwise as `find_timestamp`."""
        return self._reading(lambda known: known.find_latest(self._start, self._stop(limit)), opens=True)

    def _range(self, offset: int, limit: int | None) -> int:
        """The offset before which a read from `offset` stops. Raises OffsetOutOfRange, StorageError."""
        end = self.end_offset
        if not self._start <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset}: the log has {self._start} to {end}", start=self._start, end=end)
        return self._stop(limit)

    def _stop(self, limit: int | None) -> int:
        if self._closed:
            raise StorageError(self._broken)
        end = self.end_offset
        return end if limit is None or limit > end else limit

    def _reading(self, read: Callable[[Segments], T], *, opens: bool = False) -> T:
        """Runs a read on the current segments; again, if they were removed or cut meanwhile. `opens`: the read opens
        batches, so it may also fail because of what a producer sent."""
        while True:
            cuts, known = self._cuts, self._segments  # taken before the log's start, which is published first
            try:
                found = read(known)
                if self._cuts == cuts:
                    return found
            except BadIndex as error:
                self._rescue(error)
            except CorruptBatch as error:
                if self._cuts == cuts:
                    self.damage = self.damage if opens else str(error)
                    raise
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                if self._cuts == cuts and (not isinstance(error, FileNotFoundError) or self._segments is known):
                    if error.errno in UNREADABLE or (isinstance(error, FileNotFoundError) and self._is_lost()):
                        self.damage = str(error)
                    raise StorageError(f"{self.folder}: {error}") from error

    def _is_lost(self) -> bool:
        """Whether a missing file of a segment is damage. It is none if the folder of all logs is missing, too: then the
        disk is away, and may come back as it was."""
        if self._closed:
            return False
        try:
            self._disk.names(self.folder.parent)
        except OSError:
            return False
        return True

    @contextmanager
    def _finding(self) -> Iterator[None]:
        """Notes the damage that the body meets. But the body may also fail at a batch that is as its producer sent it,
        which no reader can open. So the segment is read once more, to tell them apart."""
        try:
            yield
        except CorruptBatch as error:
            if not self.damage and self._is_damaged(error.details.get("file")):
                self.damage = str(error)
            raise

    def _is_damaged(self, file: object) -> bool:
        for segment in self._segments:
            if str(segment.path()) == file:
                try:
                    walk = batches(segment.handle().file, 0, segment.size, segment.base_offset, dense=segment.dense)
                    deque(walk, maxlen=0)
                except (Damage, CorruptBatch):
                    return True
                except OSError as error:
                    return error.errno in UNREADABLE
        return False

    def _rescue(self, reason: BadIndex) -> None:
        """Makes the active segment's indexes anew, because one of them was found wrong."""
        with self._lock:
            if self._active.rebuilt > 3:
                raise StorageError(f"{self.folder}: the index can't be rebuilt: {reason}")
            with refusals(self.folder):
                self._active.reindex()
