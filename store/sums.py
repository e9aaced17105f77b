"""A cleaned segment's witness: the checksum of each block of its `.log`, in `.sums` beside it (FORMAT.md).

A batch's own checksum leaves out its base offset, length and leader epoch. In a dense segment the chain of offsets
stands for the first two. Where the cleaner has left holes, nothing does: so there the bytes are compared with what was
written, whoever reads them. The checkpoint has the checksum of these checksums, the segment's proof. So it is known
which of the two is damaged, and sums of anything else are never believed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from krappy.errors import CorruptBatch
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
        """Made from the file as it stands; `spend` is told of the bytes read. Raises OSError."""
        summing = Summing()
        for start in range(0, size, PORTION * SUMS_BLOCK):
            data = file.pread(min(PORTION * SUMS_BLOCK, size - start), start)
            spend(len(data))
            summing.add(data)
        return summing.sums()

    @classmethod
    def read(cls, disk: Disk, path: Path, size: int, proof: int) -> Sums | None:
        """Those of a segment of `size` bytes with this proof; None when the file has not them. Raises OSError."""
        try:
            data = disk.read_file(path)
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
        """How many bytes of `view`, which begins with the block `first`, are as they were; whether others follow that
        are not. Of a block cut short nothing is said."""
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
    """Makes them of a file's bytes, given in order."""

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
    """A file of which nothing is read that is not what was written.

    Reads end before damage, as they end with the file; one that begins with it raises CorruptBatch.
    """

    __slots__ = ("_file", "_seen", "_sums")

    def __init__(self, file: File, sums: Sums) -> None:
        super().__init__(file.path, file.fd)
        self._file = file  # it closes itself
        self._sums = sums
        self._seen = bytearray(len(sums))  # of each block, whether it was as it ought to be

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
        """What was seen to be true once is taken to be, as long as this file is open."""
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
