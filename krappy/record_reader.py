"""The records of a RecordBatch v2, read (`DefaultRecord.readFrom`); `record_writer` shows their layout.

Rules of this file: every position is reached by adding lengths that were checked not to be negative, so once the
last one equals the end of the buffer, none before it lay outside. Only CorruptBatch leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from krappy.errors import CorruptBatch
from krappy.types import Headers
from krappy.varint import decode

_LEAST = 7  # bytes of the smallest record
_I64 = 2**63


class Columns(NamedTuple):
    """The records of a batch, by column; all columns are of one length."""

    offsets: Sequence[int]  # absolute; a range when dense
    timestamps: Sequence[int]  # ms
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None  # None: no record has any

    def __len__(self) -> int:
        return len(self.keys)


def _steps(buf: bytes, position: int, count: int, last_delta: int, base_time: int) -> Iterator[tuple[int, ...]]:
    """Each record's (start, end, offset delta, timestamp, key start, key end, value start, value end, headers)."""
    end = len(buf)
    if count * _LEAST > end - position:
        raise CorruptBatch(f"{count} records in {end - position} bytes")
    previous = -1
    try:
        for _ in range(count):
            start = position
            length, position = decode(buf, position)
            stop = position + length
            if length < 0 or stop > end:
                raise CorruptBatch(f"a record of {length} bytes")
            position += 1  # attributes: none are defined
            time, position = decode(buf, position, 10)
            time += base_time
            if not -_I64 <= time < _I64:
                raise CorruptBatch("a timestamp out of range")
            delta, position = decode(buf, position)
            if not previous < delta <= last_delta:
                raise CorruptBatch(f"offset delta {delta} after {previous}, the last is {last_delta}")
            previous = delta
            length, position = decode(buf, position)
            key_start = position if length >= 0 else -1
            if length < -1:
                raise CorruptBatch(f"a key of {length} bytes")
            position += max(length, 0)
            key_end = position
            length, position = decode(buf, position)
            if length < -1:
                raise CorruptBatch(f"a value of {length} bytes")
            value_start = position if length >= 0 else -1
            position += max(length, 0)
            value_end = position
            headers = position
            fields, position = decode(buf, position)
            if fields < 0:
                raise CorruptBatch(f"{fields} headers")
            if not fields:
                headers = -1
            for _ in range(fields):
                length, position = decode(buf, position)
                if length < 0:
                    raise CorruptBatch(f"a header name of {length} bytes")
                position += length
                length, position = decode(buf, position)
                if length < -1:
                    raise CorruptBatch(f"a header of {length} bytes")
                position += max(length, 0)
            if position != stop:
                raise CorruptBatch("a record whose length does not match its fields")
            yield start, position, delta, time, key_start, key_end, value_start, value_end, headers
    except IndexError:
        raise CorruptBatch("a record cut short") from None
    if position != end:
        raise CorruptBatch(f"{end - position} bytes after the last record")


def read(
    buf: bytes,
    position: int,
    count: int,
    base_offset: int,
    last_delta: int,
    time: int,
    one_time: bool,
) -> Columns:
    """All records from `position` to the end of `buf`. `time`: the base, or with `one_time` that of all records."""
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers] = []
    base_time = 0 if one_time else time
    for _, _, delta, at, ks, ke, vs, ve, hs in _steps(buf, position, count, last_delta, base_time):
        offsets.append(base_offset + delta)
        timestamps.append(time if one_time else at)
        keys.append(buf[ks:ke] if ks >= 0 else None)
        values.append(buf[vs:ve] if vs >= 0 else None)
        headers.append(_headers(buf, hs) if hs >= 0 else ())
    dense = count == last_delta + 1
    return Columns(
        range(base_offset, base_offset + count) if dense else offsets,
        timestamps,
        keys,
        values,
        headers if any(headers) else None,
    )


def _headers(buf: bytes, position: int) -> Headers:
    """The headers that start with their count at `position`; already checked. Names as Java decodes them:
    bytes that are not UTF-8 become U+FFFD."""
    count, position = decode(buf, position)
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = decode(buf, position)
        name = buf[position : position + length].decode(errors="replace")
        position += length
        length, position = decode(buf, position)
        value = None
        if length >= 0:
            value = buf[position : position + length]
            position += length
        found.append((name, value))
    return tuple(found)


def validate(buf: bytes, position: int, count: int, last_delta: int, base_time: int, one_time: bool) -> None:
    """Raises CorruptBatch for whatever `read` refuses."""
    for _ in _steps(buf, position, count, last_delta, 0 if one_time else base_time):
        pass


def spans(
    buf: bytes, position: int, count: int, last_delta: int, base_time: int
) -> list[tuple[int, tuple[int, int]]]:
    """Each record's offset delta, and where its bytes start and end. Raises CorruptBatch."""
    return [(step[2], (step[0], step[1])) for step in _steps(buf, position, count, last_delta, base_time)]
