"""Cuts a record batch down to some of its records, for a reader. Quicker than `batch.keep`, which checks all records.

For batches from the log: their structure was checked when they were appended, and their checksum when they were read.
The result is not compressed: it is used for one answer, for which compression costs more than it saves.
"""

from __future__ import annotations

import re
from itertools import compress

from krappy.records import batch as batches
from krappy.records import codecs, varint
from krappy.records.batch import CODEC_MASK, CRC_START, HEADER_SIZE, HOLDS, LENGTH_END
from krappy.records.checksum import crc32c
from krappy.records.codecs import DEFAULT_LIMIT

_DELTA_AT = 23
_COUNT_AT = HEADER_SIZE - 4
_FEW = 8  # a search for a run of fewer records does not pay off
_LONG = 8  # wanted records that lie together, on average, from which on they are copied as pieces
_TOGETHER = re.compile(rb"\x01+").finditer


def layout(view: memoryview, position: int) -> tuple[int, int, int, int, int]:
    """(base offset, size in bytes, attributes, last offset delta, records) of the batch at `position`."""
    base, length, attributes, last_delta, count = HOLDS.unpack_from(view, position)
    return base, length + LENGTH_END, attributes, last_delta, count


def cut(
    batch: memoryview,
    wanted: bytes,
    which: bytes | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    parts: int = codecs.ANY,
) -> bytes:
    """The batch with only the records whose offsets are wanted.

    `wanted`: a byte for each offset from the base offset on, 1 for a wanted one. If it ends before the batch does, the
    result ends there too. `which`: the same for each record of a batch that lacks offsets, if known. `limit`, `parts`:
    as for `codecs.decompress`. Raises CorruptBatch.
    """
    base, _, attributes, last_delta, count = layout(batch, 0)
    if attributes & CODEC_MASK:
        buf, position = codecs.decompress(attributes & CODEC_MASK, batch[HEADER_SIZE:], limit, parts), 0
    else:
        buf, position = bytes(batch), HEADER_SIZE
    if which is not None:
        pass
    elif count != last_delta + 1:
        known = len(wanted)
        here = [offset - base for offset in batches.decode(batch, limit=limit, parts=parts).offsets]
        which = bytes([at < known and wanted[at] for at in here])
    else:
        which = wanted
    records = _pick(buf, position, which)
    covered = bytearray(batch[CRC_START:HEADER_SIZE])
    covered[0:2] = (attributes & ~CODEC_MASK).to_bytes(2, "big", signed=True)
    covered[_DELTA_AT - CRC_START : _DELTA_AT + 4 - CRC_START] = (len(wanted) - 1).to_bytes(4, "big")
    covered[_COUNT_AT - CRC_START :] = which.count(1).to_bytes(4, "big")
    length = HEADER_SIZE - LENGTH_END + len(records)
    crc = crc32c(records, crc32c(covered))
    head = bytes(batch[:8]) + length.to_bytes(4, "big") + bytes(batch[12:17]) + crc.to_bytes(4, "big")
    return b"".join((head, covered, records))


def _pick(buf: bytes, position: int, wanted: bytes) -> bytes:
    """The wanted records of those that begin at `position`. `wanted`: a byte for each record, 1 for a wanted one."""
    picked: list[bytes] = []
    at, end = 0, wanted.rfind(1) + 1
    step = _FEW
    while at < end:
        size, width = _record(buf, position)
        run = _run(buf, position, size, width, end - at) if end - at >= _FEW else 0
        if run:
            some = wanted[at : at + run]
            if _LONG * some.count(b"\x00\x01") < some.count(1):  # neighbours are copied as one piece
                pieces = ((match.start() * size, match.end() * size) for match in _TOGETHER(some))
                picked += [buf[position + start : position + end] for start, end in pieces]
            else:
                starts = compress(range(position, position + run * size, size), some)
                picked += [buf[start : start + size] for start in starts]
            at += run
            position += run * size
            step = _FEW
            continue
        for keep in wanted[at : min(end, at + step)]:
            size = buf[position]
            if size < 128:
                following = position + 1 + (size >> 1)
            elif (byte := buf[position + 1]) < 128:
                following = position + 2 + ((byte << 7) + size - 128 >> 1)
            else:
                following = position + _record(buf, position)[0]
            if keep:
                picked.append(buf[position:following])
            position = following
        at += step
        step *= 2
    return b"".join(picked)


def _record(buf: bytes, position: int) -> tuple[int, int]:
    """(bytes of the record at `position`, bytes of its length varint)."""
    length, start = varint.decode(buf, position)
    return start - position + length, start - position


def _run(buf: bytes, position: int, size: int, width: int, count: int) -> int:
    """How many records from `position` on have the same length, so that each begins `size` bytes after the one before.

    The length fields alone prove it: a record of that length ends where the next begins. 0 when there are fewer than
    _FEW.
    """
    if position + 3 * size > len(buf) or not buf[position] == buf[position + size] == buf[position + 2 * size]:
        return 0
    for at in range(position, position + width):
        column = buf[at : at + size * count : size]
        if column.count(column[:1]) != len(column):
            column = column[: len(column) - len(column.lstrip(column[:1]))]
        count = min(count, len(column))
    return count if count >= _FEW else 0
