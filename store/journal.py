"""Checks RocksDB's own journals before RocksDB reads them: MANIFEST-* (which files are the database) and *.log (the
write-ahead log).

RocksDB does not survive every damage to them. If damage turns a record's type into a recyclable one, an open never
ends. If it makes the length of a record in a MANIFEST reach past the end, the record looks torn: the database silently
becomes an older one, and the newer files are deleted.

A journal is blocks of 32 KiB of records: CRC-32C (masked, u32) of the type and the content, length (u16), type (u8),
content; little-endian. A record never crosses a block's end; if too few bytes for a head are left in a block, they are
zeros (RocksDB's wiki, "Write Ahead Log File Format"). A torn write ends the file within a record, or with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from krappy.records.checksum import crc32c

__all__ = ["contents", "endless", "holds_data", "manifest_flaw", "manifest_of"]

_BLOCK = 32 << 10
_HEAD = Struct("<IHB")
_TYPES = range(1, 5)  # full, first, middle, last: others are for journals that are recycled or compressed; none is here
_BEGINS, _ENDS = (1, 2), (1, 4)


def manifest_flaw(folder: Path) -> str:
    """The damage of the MANIFEST of the database in `folder`, in words; empty when it is whole, or only torn at its
    end.

    Empty as well where there is no database or CURRENT is damaged: RocksDB reports that by itself. Raises OSError.
    """
    file = manifest_of(folder)
    if file is None:
        return ""
    content = file.read_bytes()
    at = _whole(content)
    rest = content[at:].rstrip(b"\0")
    if not rest or _torn(content, at, len(rest)):
        return ""
    return f"{file} is damaged at byte {at}"


def manifest_of(folder: Path) -> Path | None:
    """The MANIFEST that CURRENT names. None where there is no database or CURRENT is damaged. Raises OSError."""
    current = folder / "CURRENT"
    name = current.read_text(errors="replace").rstrip("\n") if current.is_file() else ""
    file = folder / name
    return file if name.startswith("MANIFEST-") and "/" not in name and file.is_file() else None


def holds_data(folder: Path) -> bool:
    """Whether there are tables or write-ahead logs of a database, with its file CURRENT or without it."""
    return any(folder.glob("*.sst")) or any(log.stat().st_size for log in folder.glob("[0-9]*.log"))


def contents(content: bytes) -> Iterator[bytes]:
    """The entries of a journal, each as it was written, up to the first that is torn or damaged."""
    parts: list[bytes] = []
    for at, size in _records(content):
        kind = content[at + _HEAD.size - 1]
        if kind in _BEGINS:
            parts.clear()
        elif not parts:
            return
        parts.append(content[at + _HEAD.size : at + size])
        if kind in _ENDS:
            yield b"".join(parts)
            parts.clear()


def endless(folder: Path) -> tuple[Path, int] | None:
    """(the first write-ahead log that RocksDB would read for ever, the byte of the record). Raises OSError."""
    for file in sorted(folder.glob("[0-9]*.log")):
        content = file.read_bytes()
        at = _whole(content)
        if len(content) - at >= _HEAD.size and _HEAD.unpack_from(content, at)[2] not in (0, *_TYPES):
            return file, at
    return None


def _whole(content: bytes) -> int:
    """The byte at which the first record that is not whole begins; the end when all are whole."""
    at = 0
    for at, size in _records(content):
        at += size
    return min(_next_block(content, at), len(content))


def _records(content: bytes) -> Iterator[tuple[int, int]]:
    """(position, size) of each record, up to the first that is not whole."""
    at = 0
    while size := _record(content, at):
        yield at, size
        at = _next_block(content, at + size)


def _next_block(content: bytes, at: int) -> int:
    """The next block's start, if the rest of this block is zeros and too short for a head; else `at`."""
    left = _BLOCK - at % _BLOCK
    return at + left if left < _HEAD.size and not content[at : at + left].strip(b"\0") else at


def _record(content: bytes, at: int) -> int:
    """The size of the record at `at`; 0 where there is no whole one."""
    stop = min(len(content), at - at % _BLOCK + _BLOCK)
    if at + _HEAD.size > stop:
        return 0
    checksum, length, kind = _HEAD.unpack_from(content, at)
    end = at + _HEAD.size + length
    if kind not in _TYPES or end > stop:
        return 0
    found = crc32c(content[at + _HEAD.size - 1 : end])
    masked = ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return end - at if masked == checksum else 0


def _torn(content: bytes, at: int, written: int) -> bool:
    """Whether the `written` bytes at `at` may be the beginning of a last record, the rest of which never came."""
    if at - at % _BLOCK + _BLOCK < at + written:
        return False  # bytes in the next block were written later
    if written >= _HEAD.size:
        _, length, kind = _HEAD.unpack_from(content, at)
        if kind not in _TYPES or _HEAD.size + length <= written:
            return False
    return not any(_record(content, later) for later in range(at + 1, at + written))
