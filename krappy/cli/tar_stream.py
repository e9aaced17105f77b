"""Reads a tar archive that others have made, compressed or not, from a file or a pipe, in order.

A few bytes may unpack to any number of bytes, and a header may claim any size. So no more is unpacked than was asked
for, and the headers before a file may have at most `HEADERS` bytes and are read once: tarfile's own reader takes
minutes and gigabytes for the records of a crafted header (CVE-2024-6232). What is no plain file or folder is refused: a
sparse file claims more bytes than the archive has, and a link leads elsewhere.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, cast

from krappy.cli.errors import Failure

HEADERS = 1 << 20  # bytes
DICTIONARY = 128 << 20  # bytes of memory for xz, which `xz -9` stays below
CHUNK = 1 << 20
BLOCK = tarfile.BLOCKSIZE
RECORDS = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
AHEAD = (*RECORDS, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE)  # headers before a file's own
MOST_DIGITS = 20  # of a record's length
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)  # errors of reading a file


def files(source: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and contents of each file. The contents must be read before the next file is asked for. Raises
    Failure, OSError. Reading the contents may raise these and `DAMAGE`."""
    try:
        yield from _files(_unpacked(source))
    except (*DAMAGE, ValueError) as error:
        raise Failure(f"this is not a whole backup: {error}") from None


def _files(source: IO[bytes]) -> Iterator[tuple[str, int, IO[bytes]]]:
    while (member := _member(source)) is not None:
        if member.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse.") for key in member.pax_headers):
            raise Failure(f"{member.name:.300} is a sparse file: pack the backup without `tar --sparse`")
        if not (member.isreg() or member.isdir()):
            raise Failure(f"{member.name:.300} is no file and no folder: a backup has none of these")
        if member.isreg():
            contents = _Contents(source, member.size)
            yield member.name, member.size, cast("IO[bytes]", contents)
            contents.skip()


def _member(source: IO[bytes]) -> tarfile.TarInfo | None:
    """The next file, with what the headers before its own header say of it; None: there are no more files."""
    told: dict[str, str] = {}
    left = HEADERS
    while (head := source.read(BLOCK)).strip(b"\0"):
        found = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        if found.type not in AHEAD:
            found.name, found.pax_headers = told.get("path", found.name), told
            found.size = int(told.get("size", found.size))
        if found.size < 0:
            raise Failure(f"{found.name:.300} has a size below 0: this is no backup")
        if found.type not in AHEAD:
            return found
        left -= BLOCK + found.size
        if left < 0:
            raise Failure(f"this is no backup: the archive has a header of more than {HEADERS:,} bytes")
        data = _Contents(source, found.size).read(found.size)
        if found.type == tarfile.GNUTYPE_LONGNAME:
            told["path"] = _text(data.partition(b"\0")[0])
        elif found.type in RECORDS:
            told |= _records(data)
    return None


def _records(data: bytes) -> dict[str, str]:
    """The records of a pax header. Each is a length, a space, name=value and a newline (POSIX). Raises ValueError."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + MOST_DIGITS)
        length = data[at : max(space, at)]
        end = at + int(length) if length.isdigit() else -1
        name, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not (space < end <= len(data) and equals and data[end - 1 : end] == b"\n"):
            raise ValueError("the archive has a header that can't be read")
        found[_text(name)] = _text(value)
        at = end
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class _Contents(io.RawIOBase):
    """The contents of a file of an archive. Zeros after them fill the last block."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source = source
        self._left = size
        self._padding = -size % BLOCK

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = min(self._left, CHUNK if size < 0 else size)
        data = self._source.read(wanted)
        self._left -= len(data)
        if not self._left:
            self._source.read(self._padding)
            self._padding = 0
        if len(data) < wanted:
            raise EOFError("the archive ends too early")
        return data

    def skip(self) -> None:
        while self.read():
            pass


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
    """Like lzma.LZMAFile, but with a bound on its memory: that one takes as much as the archive says."""

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
