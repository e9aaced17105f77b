"""Checksums of a cleaned segment: one for each block of its `.log`, in `.sums` beside it (FORMAT.md).

A batch's own checksum leaves out its base offset, length and leader epoch. In a dense segment the chain of offsets
checks the first two. Where the cleaner has left holes, nothing does; so every read there compares the bytes with these
checksums. The checkpoint has the checksum of the `.sums` file, the segment's proof. It tells which of the two files is
damaged, and that `.sums` belongs to this very content.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from pathlib import Path

from krappy.errors import CorruptBatch
from krappy.records.checksum import crc32c
from krappy.store.disk import Buffer, Disk, File
from krappy.store.format import SUMS_BLOCK

PORTION = 256  # blocks read at once
NOW = 64  # blocks that are compared without a thread
_SWAP = sys.byteorder == "little"


def _nothing(size: int) -> None:
    pass


class Sums:
    __slots__ = ("_column", "proof", "size")

    def __init__(self, column: array[int], size: int) -> None:
        self._column = column
        self.size = size  # bytes of the segment
        self.proof = crc32c(self.pack())

    def __len__(self) -> int:
        return len(self._column)

    @classmethod
    def of(cls, file: File, size: int, spend: Callable[[int], None] = _nothing) -> Sums:
        """Computed from the file's first `size` bytes as they are; `spend` is called with the bytes read. Raises
        OSError."""
        summing = Summing()
        for start in range(0, size, PORTION * SUMS_BLOCK):
            data = file.pread(min(PORTION * SUMS_BLOCK, size - start), start)
            spend(len(data))
            summing.add(data)
        return summing.sums()

    @classmethod
    def read(cls, disk: Disk, path: Path, size: int, proof: int) -> Sums | None:
        """Reads `.sums` of a segment of `size` bytes; None when the file is missing, has unreadable bytes or does not
        match `proof`. Raises OSError."""
        try:
            data = disk.read_derived(path)
        except FileNotFoundError:
            return None
        if len(data) != 4 * -(-size // SUMS_BLOCK) or crc32c(data) != proof:
            return None
        column = array("I", data)
        if _SWAP:
            column.byteswap()
        return cls(column, size)

    def pack(self) -> bytes:
        column = array("I", self._column)
        if _SWAP:
            column.byteswap()
        return column.tobytes()

    def good(self, view: memoryview, first: int) -> tuple[int, bool]:
        """(bytes of intact blocks at the beginning of `view`, whether a damaged block follows them). `view` begins with
        the block `first`; a block that it has only a part of is not checked."""
        at = 0
        for number in range(first, len(self._column)):
            stop = at + min(SUMS_BLOCK, self.size - number * SUMS_BLOCK)
            if stop > len(view):
                break
            if crc32c(view[at:stop]) != self._column[number]:
                return at, True
            at = stop
        return at, False


class Summing:
    """Computes `Sums` from a file's bytes, given in order."""

    def __init__(self) -> None:
        self._column = array("I")
        self._size = 0  # bytes
        self._crc = 0  # of the block that is not full yet

    def add(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            some = view[: SUMS_BLOCK - self._size % SUMS_BLOCK]
            self._crc = crc32c(some, self._crc)
            self._size += len(some)
            view = view[len(some) :]
            if not self._size % SUMS_BLOCK:
                self._column.append(self._crc)
                self._crc = 0

    def sums(self) -> Sums:
        return Sums(self._column + array("I", [self._crc] if self._size % SUMS_BLOCK else []), self._size)


class ProvenFile(File):
    """A segment's file whose reads return only bytes that match its checksums.

    A read ends before a damaged block, as at the file's end; one that begins in a damaged block raises CorruptBatch.
    """

    __slots__ = ("_file", "_seen", "_sums")

    def __init__(self, file: File, sums: Sums) -> None:
        super().__init__(file.path, file.fd)
        self._file = file  # it closes itself
        self._sums = sums
        self._seen = bytearray(len(sums))  # of each block: 1 once it was compared and found intact

    @property
    def kept(self) -> int:
        """Bytes of memory."""
        return 5 * len(self._sums)

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self._good(self._file.pread, size, position))

    def pread_nowait(self, size: int, position: int) -> Buffer:
        data = self._good(self._file.pread_nowait, size, position)
        if size and not data and position < self._sums.size:
            raise BlockingIOError("a part of a block is not in the cache")
        return data

    def _good(self, pread: Callable[[int, int], Buffer], size: int, position: int) -> memoryview:
        first = position // SUMS_BLOCK
        start, stop = first * SUMS_BLOCK, min(-(-(position + size) // SUMS_BLOCK) * SUMS_BLOCK, self._sums.size)
        if size <= 0 or position >= self._sums.size:
            return memoryview(b"")
        view = memoryview(pread(stop - start, start))
        good, damaged = self._sums.good(view, first)
        if damaged and start + good <= position:
            raise self._corrupt(first)
        return view[position - start : max(position - start, min(good, position - start + size))]

    def _corrupt(self, block: int) -> CorruptBatch:
        start = block * SUMS_BLOCK
        text = f"the bytes up to {min(start + SUMS_BLOCK, self._sums.size)} are not what was written (.sums)"
        return CorruptBatch(f"{self.path} at position {start}: {text}", file=str(self.path), position=start)

    def proven(self, position: int, size: int, *, nowait: bool = False) -> int:
        """How many of the `size` bytes at `position` are intact. A block is compared once as long as this file is open.

        Raises CorruptBatch as `pread` does, OSError; BlockingIOError with `nowait` if it would have to wait."""
        first, last = position // SUMS_BLOCK, -(-(position + size) // SUMS_BLOCK)
        seen = self._seen
        if nowait and seen.count(0, first, last) > NOW:
            raise BlockingIOError(f"{self.path}: much of it was not looked at yet")
        pread = self._file.pread_nowait if nowait else self._file.pread
        while (block := seen.find(0, first, last)) >= 0:
            start = block * SUMS_BLOCK
            want = min(PORTION * SUMS_BLOCK, last * SUMS_BLOCK - start, self._sums.size - start)
            view = memoryview(pread(want, start))
            if nowait and len(view) < want:
                raise BlockingIOError("a part of the pages is not in the cache")
            good, _ = self._sums.good(view, block)
            first = block + -(-good // SUMS_BLOCK)
            seen[block:first] = bytes([1]) * (first - block)
            if good < want:
                return max(0, start + good - position)
        return size

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self.fd = -1
