"""Walking over the batches of a segment file in order: every other reader of whole segments is built on this.

A fault on the way raises `Damage`, which does not leave the store: recovery cuts there or reports it, a read turns it
into a CorruptBatch.
"""

from __future__ import annotations

from collections.abc import Iterator

from krappy.errors import CorruptBatch
from krappy.records.batch import HEADER_SIZE, LENGTH_END, BatchHeader, check, read_header
from krappy.store.disk import File

WINDOW = 32 << 10  # bytes read at once to get at headers
CHUNK = 1 << 20  # bytes read at once to get at whole batches


class Damage(Exception):
    """The bytes at `position` of a file are not the batch that has to be there."""

    def __init__(self, position: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.reason = reason  # "torn" | "zeros" | "checksum" | "structure" | "offsets"
        self.text = text


def headers(file: File, position: int, end: int, expected: int, *, dense: bool) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch from `position` to `end` (bytes), without its records or checksum.

    `expected` is the offset that comes next; with `dense` no offset may be missing. Raises Damage, OSError.
    """
    for at, header, _ in _walk(file, position, end, expected, dense, False):
        yield at, header


def batches(
    file: File, position: int, end: int, expected: int, *, dense: bool
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch, checksum verified. Arguments and errors as `headers`."""
    return _walk(file, position, end, expected, dense, True)


def _walk(
    file: File, position: int, end: int, expected: int, dense: bool, whole: bool
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    view = memoryview(b"")
    start = position  # where in the file `view` starts
    while position < end:
        at = position - start
        if len(view) - at < HEADER_SIZE:
            view, start, at = _fetch(file, position, CHUNK if whole else WINDOW, end, HEADER_SIZE), position, 0
        try:
            header = read_header(view, at)
        except CorruptBatch as error:
            raise _blame(view[at:], position, end, str(error)) from None
        if position + header.size > end:
            raise Damage(position, "torn", f"a batch of {header.size} bytes where the file has {end - position} more")
        if header.base_offset != expected and (dense or header.base_offset < expected):
            raise Damage(position, "offsets", f"base offset {header.base_offset} where {expected} comes next")
        if whole:
            if len(view) - at < header.size:
                view, start, at = _fetch(file, position, max(CHUNK, header.size), end, header.size), position, 0
            try:
                check(view, at)
            except CorruptBatch as error:
                raise Damage(position, "checksum", str(error)) from None
        yield position, header, view[at : at + header.size]
        position += header.size
        expected = header.next_offset


def _fetch(file: File, position: int, size: int, end: int, least: int) -> memoryview:
    """Up to `size` bytes, at least `least`: fewer than `size` before damage or before `end`. Raises Damage, OSError."""
    want = min(size, end - position)
    try:
        data = file.pread(want, position)
        if len(data) < min(least, want):
            file.pread(1, position + len(data))
    except CorruptBatch as error:
        raise Damage(position, "checksum", error.text) from None
    if len(data) < min(least, want):
        raise Damage(position, "torn", f"the file ends {want - len(data)} bytes or more before its known end")
    return memoryview(data)


def _blame(rest: memoryview, position: int, end: int, text: str) -> Damage:
    if len(rest) >= LENGTH_END and not any(rest[:HEADER_SIZE]):  # fewer zeros may begin a good batch
        return Damage(position, "zeros", f"zeros where the file has {end - position} more bytes")
    if len(rest) < HEADER_SIZE:
        return Damage(position, "torn", f"{len(rest)} bytes: less than a batch header")
    return Damage(position, "structure", text)


def lacking(header: BatchHeader, expected: int) -> int:
    """The offset behind the last event that is missing before or in a batch, 0 if none is. `expected`: the offset where
    the batch before it ends."""
    if not header.dense:
        return header.next_offset
    return header.base_offset if header.base_offset > expected else 0
