"""Finds changes that are in no file of a RocksDB database, although later changes are.

RocksDB numbers all changes from 1 on. Its MANIFEST tells up to which number they are in tables, and which write-ahead
log (*.log) is the first with later ones. If that log, or one between two others, is missing or ends too early, RocksDB
silently goes on with the next log. If the end of the MANIFEST is cut off, RocksDB finds an older database: it does not
know the newest tables, deletes them, and silently goes on with a log that was begun after them.

An edit of the MANIFEST is a row of fields, each after its number (RocksDB's db/version_edit.cc). An entry of a log
begins with the number of its first change (u64) and the count of its changes (u32), little-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from krappy.store import journal

__all__ = ["Gap", "find"]

_PIECE = Struct("<QI")
_LOG, _LAST_CHANGE, _FIRST_LOG = 2, 4, 10  # the fields that are used; each value is one number
_NUMBERS = (_LOG, 3, _LAST_CHANGE, 9, _FIRST_LOG, 200, 203, 300)
_TEXTS = (1, 201)
_COMPACTED, _DELETED_FILE, _NEW_FILE = 5, 6, 103
_SKIPPED = 1 << 13  # a field with this bit holds bytes, whatever they mean


class Gap(NamedTuple):
    """`before`: number of the last change before the gap; `last`: of the last one behind it; `behind`: the logs with
    the changes behind it."""

    before: int
    last: int
    behind: list[Path]


def find(folder: Path) -> Gap | None:
    """The first gap; None if no change is missing, or if this code can't read the MANIFEST. Raises OSError."""
    manifest = journal.manifest_of(folder)
    if manifest is None:
        return None
    try:
        first, known = _manifest(manifest.read_bytes())
    except (IndexError, ValueError):
        return None
    logs = sorted((int(file.stem), file) for file in folder.glob("[0-9]*.log") if file.stem.isdigit())
    live = [file for number, file in logs if number >= first]
    for index, file in enumerate(live):
        for number, count in _pieces(file):
            if number > known + 1:
                last = max(at + many - 1 for each in live[index:] for at, many in _pieces(each))
                return Gap(known, last, live[index:])
            known = max(known, number + count - 1)
    return None


def _pieces(log: Path) -> Iterator[tuple[int, int]]:
    for piece in journal.contents(log.read_bytes()):
        if len(piece) < _PIECE.size:
            return
        yield _PIECE.unpack_from(piece)


def _manifest(content: bytes) -> tuple[int, int]:
    """(number of the first log with changes that are in no table, number of the last change that is in a table). Raises
    IndexError, ValueError."""
    found = {_LOG: 0, _FIRST_LOG: 0, _LAST_CHANGE: 0}
    for edit in journal.contents(content):
        for field, value in _fields(edit):
            if field in found:
                found[field] = max(found[field], value)
    return max(found[_LOG], found[_FIRST_LOG]), found[_LAST_CHANGE]


def _fields(edit: bytes) -> Iterator[tuple[int, int]]:
    """(field, value) of each field that is a number. Raises IndexError, and ValueError for an unknown field."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = edit[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value

    def text() -> int:
        nonlocal at
        size = number()
        at += size
        return size

    while at < len(edit):
        field = number()
        if field in _NUMBERS:
            yield field, number()
        elif field in _TEXTS or field & _SKIPPED:
            text()
        elif field == _COMPACTED:
            number(), text()
        elif field == _DELETED_FILE:
            number(), number()
        elif field == _NEW_FILE:
            number(), number(), number(), text(), text(), number(), number()  # level, name, size, keys, changes
            while number() != 1:
                text()
        elif field != 202:
            raise ValueError(f"the field {field} of a MANIFEST")
