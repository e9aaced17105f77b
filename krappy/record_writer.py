"""The records of a RecordBatch v2, written (`DefaultRecord.writeTo`).

    record:  length, attributes i8 (0), timestamp delta, offset delta, key, value, header count, headers
    key, value:  length (-1: null), bytes        header:  name length, name, value
All numbers but the attributes are zigzag varints; `length` counts what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from krappy.types import Headers
from krappy.varint import encode, encoded

_NULL = encode(-1)


def write(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    times: Sequence[int] | None,
    headers: Sequence[Headers] | None,
    deltas: Sequence[int] | None,
) -> bytes:
    """The records. `times`: timestamp deltas, None for all 0; `deltas`: offset deltas, None for 0, 1, 2…"""
    parts: list[bytes] = []
    for index, value in enumerate(values):
        key = keys[index] if keys is not None else None
        body = b"".join(
            (
                b"\0",
                encode(times[index]) if times is not None else b"\0",
                encoded(deltas[index] if deltas is not None else index),
                _NULL if key is None else encoded(len(key)) + key,
                _NULL if value is None else encoded(len(value)) + value,
                _headers(headers[index]) if headers is not None else b"\0",
            )
        )
        parts += (encoded(len(body)), body)
    return b"".join(parts)


def _headers(headers: Headers) -> bytes:
    parts = [encoded(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += (encoded(len(raw)), raw)
        parts += (_NULL,) if value is None else (encoded(len(value)), value)
    return b"".join(parts)
