"""Reads a tar archive that others have made, compressed or not, in order: from a file, or from a pipe.

A few bytes may unpack to any number, and a header may tell of any size. So no more is unpacked than was asked for, and
the headers before a file are read up to `HEADERS` bytes. What is no plain file or folder is refused: a sparse file
tells of more bytes than the archive has, and a link leads elsewhere.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, cast

from krappy.cli.errors import Failure

HEADERS = 1 << 20  # bytes
DICTIONARY = 128 << 20  # bytes of memory for xz, which `xz -9` stays below
CHUNK = 1 << 20
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)  # of reading a file


def files(source: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and contents of each file; these are to be read before the next. Raises Failure, OSError; so does
    reading contents, and `DAMAGE`."""
    try:
        yield from _files(_Headers(_unpacked(source)))
    except (*DAMAGE, ValueError, RecursionError) as error:
        raise Failure(f"this is not a whole backup: {error}") from None


def _files(stream: _Headers) -> Iterator[tuple[str, int, IO[bytes]]]:
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            stream.left = math.inf
            if member.size < 0:
                raise Failure(f"{member.name:.300} has a size below 0: this is no backup")
            if member.issparse():
                raise Failure(f"{member.name:.300} is a sparse file: pack the backup without `tar --sparse`")
            if not (member.isreg() or member.isdir()):
                raise Failure(f"{member.name:.300} is no file and no folder: a backup has none of these")
            file = tar.extractfile(member)
            if file is not None:
                yield member.name, member.size, file
            tar.members = []  # type: ignore[attr-defined]  # it would keep all
            tar.pax_headers = {}
            stream.left = HEADERS


class _Headers:
    """What tarfile reads of an archive: forwards only. `left`: how many bytes it may take until that is set again."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._at = 0
        self.left: float = HEADERS

    def tell(self) -> int:
        return self._at

    def seek(self, to: int) -> None:
        if to < self._at:
            raise ValueError("it leads back")
        while self._at < to and (data := self._source.read(min(CHUNK, to - self._at))):
            self._at += len(data)

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise Failure(f"this is no backup: the archive has a header of more than {HEADERS:,} bytes")
        data = self._source.read(size)
        self._at += len(data)
        return data


def _unpacked(source: IO[bytes]) -> IO[bytes]:
    head = source.read(4)
    whole = io.BufferedReader(_Joined(head, source))
    if head.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=whole))
    if head.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.BZ2File(whole))
    if head.startswith((b"\xfd7zX", b"\x5d\x00\x00\x80")):
        return io.BufferedReader(_Xz(whole))
    return whole


class _Joined(io.RawIOBase):
    """Bytes that were read already, and the source that they were read from."""

    def __init__(self, head: bytes, source: IO[bytes]) -> None:
        self._head = head
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data, self._head = self._head or self._source.read(len(buffer)), b""
        buffer[: len(data)] = data
        return len(data)


class _Xz(io.RawIOBase):
    """As lzma.LZMAFile, which takes as much memory as the archive says."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._xz = lzma.LZMADecompressor(memlimit=DICTIONARY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = b""
        while not data and not self._xz.eof:
            packed = self._source.read(io.DEFAULT_BUFFER_SIZE) if self._xz.needs_input else b""
            if self._xz.needs_input and not packed:
                raise EOFError("the archive ends too early")
            data = self._xz.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)
