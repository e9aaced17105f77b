"""Writes the records of a RecordBatch v2 (`DefaultRecord.writeTo`).

    record:  length, attributes i8 (0), timestamp delta, offset delta, key, value, header count, headers
    key, value:  length (-1: null), bytes        header:  name length, name, value
All numbers but the attributes are zigzag varints; `length` counts what follows it.

Three ways, quickest first: for keys of one length, values of one length and one timestamp; for lengths that are all in
the table; for all others. The tables take 1 MB and 10 ms: `batch` imports this module when it writes its first record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

from krappy.records.varint import encode
from krappy.types import Headers

TABLE = [encode(number) for number in range(8192)]  # the numbers of one and two bytes, by far the most
_NULL = encode(-1)
_COST = [number + len(varint) for number, varint in enumerate(TABLE)]  # of a field: its length varint and its bytes
_FRAME = [varint + b"\0" for varint in TABLE]  # length, attributes
_SHORTEST = 8  # records for which comparing all lengths pays off
_CHUNK = 1024  # records whose heads are cached together


def encoded(number: int) -> bytes:
    """`encode`, from the table if possible."""
    return TABLE[number] if 0 <= number < 8192 else encode(number)


def write(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    times: Sequence[bytes] | None,
    headers: Sequence[Headers] | None,
    deltas: Sequence[bytes] | None,
) -> bytes:
    """The records' bytes, uncompressed.

    `times` and `deltas`: timestamp and offset deltas as varints; None for all 0, and for 0, 1, 2…
    """
    count = len(values)
    if count >= _SHORTEST and times is None and headers is None and deltas is None:
        key_length, value_length = _one_length(keys), _one_length(values)
        if key_length is not None and value_length is not None:
            return _write_uniform(keys, values, key_length, value_length)
    if times is None:
        times = [b"\0"] * count
    if deltas is None:
        deltas = TABLE[:count] if count <= len(TABLE) else list(map(encoded, range(count)))
    tails = [b"\0"] * count if headers is None else _tails(headers)
    try:
        return _write_quick(keys, values, times, deltas, tails)
    except IndexError:
        return _write_any(keys, values, times, deltas, tails)


def _tails(headers: Sequence[Headers]) -> list[bytes]:
    """The headers of each record, as bytes. They are made once for neighbours that have the same object of headers."""
    tails, last, tail = list[bytes](), None, b""
    for each in headers:
        if each is not last:
            last, tail = each, _headers(each) if each else b"\0"
        tails.append(tail)
    return tails


def _one_length(column: Sequence[bytes | None] | None) -> int | None:
    """The length that all of a column's items have; -1: all are null; None: they differ."""
    if column is None:
        return -1
    first, last = column[0], column[-1]
    if first is None or last is None:
        return -1 if column.count(None) == len(column) else None
    if len(first) != len(last):
        return None
    try:
        return len(first) if len(set(map(len, column))) == 1 else None  # type: ignore[arg-type]
    except TypeError:  # a null among them
        return None


@lru_cache(maxsize=64)
def _kept_heads(key_length: int, value_length: int, first: int) -> list[bytes]:
    return []


def _heads(key_length: int, value_length: int, first: int, count: int) -> list[bytes]:
    """At least `count` heads, at most _CHUNK, of the records from index `first` on.

    A head is the bytes between two values: a header count, then all up to the key. Heads are made on demand and cached.
    Two threads may do so at once: they write the same bytes at an index.
    """
    heads = _kept_heads(key_length, value_length, first)
    made = len(heads)
    if made < count:
        key, value = encoded(key_length), encoded(value_length)
        rest = 3 + len(key) + max(key_length, 0) + len(value) + max(value_length, 0)
        more = []
        for delta in map(encoded, range(first + made, first + count)):
            more.append(b"\0" + encoded(rest + len(delta)) + b"\0\0" + delta + key)
        heads[made:count] = more
    return heads


def _write_uniform(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], key_length: int, value_length: int
) -> bytes:
    count = len(values)
    heads: list[bytes] = []
    for first in range(0, count, _CHUNK):
        heads += _heads(key_length, value_length, first, min(_CHUNK, count - first))
    columns: list[Sequence[bytes | None]] = [heads[:count] if len(heads) > count else heads]
    if key_length > 0 and keys is not None:
        columns.append(keys)
    columns.append([encoded(value_length)] * count)
    if value_length > 0:
        columns.append(values)
    parts: list[bytes] = [b""] * (len(columns) * count + 1)
    for index, column in enumerate(columns):
        parts[index : -1 : len(columns)] = column  # type: ignore[assignment]  # no null has a positive length
    parts[0] = parts[0][1:]
    parts[-1] = b"\0"
    return b"".join(parts)


def _write_quick(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    times: Sequence[bytes],
    deltas: Sequence[bytes],
    tails: Sequence[bytes],
) -> bytes:
    """Raises IndexError for a length that is not in the tables."""
    parts: list[bytes] = []
    for key, value, time, delta, tail in zip(keys or repeat(None), values, times, deltas, tails, strict=False):
        if key is None:
            size, key_length, key = 2, _NULL, b""
        else:
            length = len(key)
            size, key_length = _COST[length] + 1, TABLE[length]
        if value is None:
            size += 1 + len(time) + len(delta) + len(tail)
            parts += (_FRAME[size], time, delta, key_length, key, _NULL, tail)
        else:
            length = len(value)
            size += _COST[length] + len(time) + len(delta) + len(tail)
            parts += (_FRAME[size], time, delta, key_length, key, TABLE[length], value, tail)
    return b"".join(parts)


def _write_any(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    times: Sequence[bytes],
    deltas: Sequence[bytes],
    tails: Sequence[bytes],
) -> bytes:
    parts: list[bytes] = []
    for key, value, time, delta, tail in zip(keys or repeat(None), values, times, deltas, tails, strict=False):
        key_length = _NULL if key is None else encoded(len(key))
        value_length = _NULL if value is None else encoded(len(value))
        body = (b"\0", time, delta, key_length, key or b"", value_length, value or b"", tail)
        parts += (encoded(sum(map(len, body))), *body)
    return b"".join(parts)


def _headers(headers: Headers) -> bytes:
    parts = [encoded(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += (encoded(len(raw)), raw)
        parts += (_NULL,) if value is None else (encoded(len(value)), value)
    return b"".join(parts)
