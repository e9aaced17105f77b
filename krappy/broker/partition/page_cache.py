"""Whether a part of a file is in the page cache, so that sending it (sendfile(2)) does not block the event loop."""

from __future__ import annotations

from krappy.types import FilePart

STRIDE = 128 << 10  # distance of the probes for the page cache: the kernel reads ahead that much
PORTION = 1 << 20  # bytes of one read that fills the page cache


def check_cached(part: FilePart) -> None:
    """Raises BlockingIOError when a probe finds that the part is not in the page cache."""
    for at in range(part.position, part.position + part.size, STRIDE):
        part.file.pread_nowait(1, at)


def head(records: bytes | bytearray | memoryview | FilePart, size: int) -> bytes | bytearray | memoryview:
    """The records, or the first bytes of a part of a file."""
    return records.file.pread(size, records.position) if isinstance(records, FilePart) else records


def warm(part: FilePart) -> None:
    """Reads the part into the page cache, so that sending it does not block the event loop."""
    position, end = part.position, part.position + part.size
    while position < end:
        got = len(part.file.pread(min(PORTION, end - position), position))
        if not got:
            return
        position += got
