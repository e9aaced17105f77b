"""A file with the batches of a table that were made for one reader. Later readers are sent it without a copy
(sendfile(2)).

The file has no name: it is deleted when its last user closes it, and a crash leaves nothing. It grows as the first
readers come to its end. It is valid for the set of offsets with which it was made (latest_sets.py).
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import trio

from krappy.broker.partition.page_cache import check_cached, warm
from krappy.store.disk import Disk, File
from krappy.types import FilePart

MARK = 64 << 10  # about how many bytes are between two marks, where an answer may begin or end
RESERVE = 256 << 20  # bytes that are left free on the disk


class Mark(NamedTuple):
    """Where an answer may begin or end: the bytes before it, the last record before it, the offset to read next."""

    position: int
    last: int
    end: int


class Found(NamedTuple):
    part: FilePart
    last: int
    end: int


class TableFile:
    """`begin` to `end`: the offsets that it covers."""

    def __init__(self, folder: Path, begin: int) -> None:
        """The file is made in `folder` when it is first written to."""
        self.begin = self.end = begin
        self.size = 0
        self.closed = False  # it grows no further
        self.growing = trio.Lock()  # held by the reader that makes what comes next
        self._folder = folder
        self._file: File | None = None
        self._positions, self._lasts, self._ends = array("q"), array("q"), array("q")

    async def append(self, data: bytes, marks: Iterable[Mark], limiter: trio.CapacityLimiter) -> None:
        """Adds `data`, which covers the offsets from `end` to the last mark. A nearly full disk closes the file."""

        def write() -> File | None:
            try:
                free = os.statvfs(self._folder)
                if free.f_bavail * free.f_frsize < RESERVE + len(data):
                    return None
                file = self._file or Disk().scratch(self._folder)
                file.write([data], self.size)
            except OSError:
                return None
            return file

        file = await trio.to_thread.run_sync(write, limiter=limiter)
        if file is None:
            self.closed = True
            return
        self._file = file
        for mark in marks:
            self._positions.append(self.size + mark.position)
            self._lasts.append(mark.last)
            self._ends.append(mark.end)
        self.size += len(data)
        self.end = self._ends[-1]

    def find(self, offset: int, max_bytes: int, limit: int, min_one: bool) -> Found | None:
        """The batches from the one with `offset` on, up to `limit`; maybe some earlier ones, too.

        At most `max_bytes`, but with `min_one` at least one part. None when the file has none.
        """
        if not self.begin <= offset < self.end:
            return None
        assert self._file is not None
        first = bisect_right(self._ends, offset)
        position = self._positions[first - 1] if first else 0
        most = bisect_right(self._positions, position + max_bytes) - 1
        last = min(max(most, first) if min_one else most, bisect_right(self._ends, limit) - 1)
        if last < first:
            return None
        part = FilePart(self._file, position, self._positions[last] - position)
        return Found(part, self._lasts[last], self._ends[last])


async def cached(part: FilePart, limiter: trio.CapacityLimiter) -> None:
    """Returns once the part is in the page cache, so that sending it does not block the event loop."""
    try:
        check_cached(part)
    except BlockingIOError:
        await trio.to_thread.run_sync(warm, part, limiter=limiter)


async def content(part: FilePart, limiter: trio.CapacityLimiter) -> bytes:
    """The part's bytes."""
    await cached(part, limiter)
    file: File = part.file
    return file.pread(part.size, part.position)
