"""Looking for intact batches behind damaged bytes.

An event's value may hold bytes that look like a batch, even on purpose. So a batch counts only if it begins where the
damaged batch ends by its own length, or if batches follow from it to the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from krappy.errors import CorruptBatch
from krappy.records.batch import HEADER_SIZE, LENGTH_END, MAGIC, STAMPED, BatchHeader, check, read_header
from krappy.store.disk import File
from krappy.store.format import MAX_RELATIVE
from krappy.store.walk import Damage, batches

WINDOW = 4 << 20
LARGEST = 64 << 20  # bytes of a batch
EFFORT = 8  # how many times the remaining bytes may be read before it gives up: a fake may claim any length


def next_whole(file: File, position: int, end: int, expected: int, *, dense: bool) -> tuple[int, BatchHeader] | None:
    """(position, header) of the first intact batch behind the damaged one at `position`, with an offset that may follow
    `expected`.

    With `dense` no offset may be missing behind it. None if there is no such batch. Raises OSError.
    """
    damaged = header_at(file, position, end)
    if damaged is not None:
        natural = position + damaged.size
        header = _whole_at(file, natural, end, expected)
        if header is not None:
            return natural, header
    left = EFFORT * (end - position) + WINDOW
    for at in _places(file, position + 1, end, expected):
        claimed = header_at(file, at, end)
        if claimed is None or at + claimed.size > end or not _fits(claimed, expected):
            continue
        left -= claimed.size
        header = _whole_at(file, at, end, expected)
        if header is not None:
            left -= end - at
            if _runs_on(file, at, end, header.base_offset, dense):
                return at, header
        if left < 0:
            return None
    return None


def with_length(file: File, position: int, end: int, expected: int) -> bytes | None:
    """The first 16 bytes of an intact batch from `position` to `end`, with the length corrected. A batch's checksum
    does not cover its length, so it tells whether only the length is damaged. None if more is damaged. Raises
    OSError."""
    if not HEADER_SIZE <= end - position <= LARGEST:
        return None
    data = file.pread(end - position, position)
    found = data[:8] + (len(data) - LENGTH_END).to_bytes(4, "big") + data[LENGTH_END:STAMPED]
    try:
        header = check(found + data[STAMPED:])
    except CorruptBatch:
        return None
    return found if header.base_offset == expected else None


def displaced(file: File, position: int, end: int, expected: int) -> BatchHeader | None:
    """The header, with the `expected` base offset, of the batch at `position` if all but its base offset is intact;
    else None. Raises OSError."""
    base = expected.to_bytes(8, "big")
    try:
        size = read_header(base + file.pread(min(HEADER_SIZE, end - position) - 8, position + 8)).size
        return None if size > end - position else check(base + file.pread(size - 8, position + 8))
    except CorruptBatch:
        return None


def header_at(file: File, position: int, end: int) -> BatchHeader | None:
    """The batch header at `position`; None if the bytes can't be one. No checksum is verified. Raises OSError."""
    if end - position < HEADER_SIZE:
        return None
    try:
        return read_header(file.pread(HEADER_SIZE, position))
    except CorruptBatch:
        return None


def _fits(header: BatchHeader, expected: int) -> bool:
    return expected <= header.base_offset <= expected + MAX_RELATIVE


def _whole_at(file: File, position: int, end: int, expected: int) -> BatchHeader | None:
    header = header_at(file, position, end)
    if header is None or position + header.size > end or not _fits(header, expected):
        return None
    try:
        return check(file.pread(header.size, position))
    except CorruptBatch:
        return None


def _runs_on(file: File, position: int, end: int, expected: int, dense: bool) -> bool:
    """Whether batches follow to the end. Some may be damaged, if their lengths lead to the next batch."""
    while True:
        try:
            for _, header, _ in batches(file, position, end, expected, dense=dense):
                expected = header.next_offset
            return True
        except Damage as damage:
            damaged = header_at(file, damage.position, end)
            position = end if damaged is None else damage.position + damaged.size
            whole = _whole_at(file, position, end, expected)
            if whole is None:
                return damaged is not None and position == end
            expected = whole.base_offset


def _places(file: File, position: int, end: int, expected: int) -> Iterator[int]:
    """Positions at which a batch might begin, by the high half of its base offset and its magic."""
    halves = {(expected >> 32).to_bytes(4, "big"), ((expected + MAX_RELATIVE) >> 32).to_bytes(4, "big")}
    either = b"|".join(re.escape(half) for half in sorted(halves))
    pattern = re.compile(b"(?s)(?=(?:" + either + b").{12}" + re.escape(bytes([MAGIC])) + b")")
    while position < end:
        data = file.pread(min(WINDOW + HEADER_SIZE, end - position), position)
        for match in pattern.finditer(data):
            if match.start() < WINDOW:
                yield position + match.start()
        if len(data) <= WINDOW:
            return
        position += WINDOW
