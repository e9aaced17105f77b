"""Rows, batches of them and strategies that make them, for the tests of the record-batch codec."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c
from hypothesis import strategies as st

from krappy.errors import CorruptBatch, UnsupportedCompression
from krappy.records import codecs
from krappy.records.batch import Columns, encode
from krappy.types import Headers

NOW = 1_700_000_000_000


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = NOW
    headers: Headers = ()


class FullRow(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def encode_rows(rows: Sequence[Row], **settings: Any) -> bytes:
    return encode(
        [row.key for row in rows],
        [row.value for row in rows],
        timestamps=[row.timestamp for row in rows],
        headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
        **settings,
    )


def rows_of(columns: Columns) -> list[FullRow]:
    headers: Sequence[Headers] = columns.headers if columns.headers is not None else [()] * len(columns)
    return [
        FullRow(*row)
        for row in zip(columns.offsets, columns.timestamps, columns.keys, columns.values, headers, strict=True)
    ]


def expected_rows(rows: Sequence[Row], base_offset: int = 0) -> list[FullRow]:
    return [
        FullRow(base_offset + index, row.timestamp, row.key, row.value, row.headers) for index, row in enumerate(rows)
    ]


def others_rows(records: Any) -> list[FullRow]:
    return [
        FullRow(record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
        for record in records
    ]


def with_crc(raw: bytes) -> bytes:
    """The batch with its length and checksum set to what its other bytes need."""
    raw = raw[:8] + struct.pack(">i", len(raw) - 12) + raw[12:]
    return raw[:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:]


def accepts(function: Callable[[bytes], Any], raw: bytes) -> bool:
    try:
        function(raw)
    except (CorruptBatch, UnsupportedCompression):
        return False
    return True


# --- strategies ----------------------------------------------------------------------------------------------

# Lengths around those where a varint grows, and where the writer's tables end.
LENGTHS = st.one_of(
    st.none(), st.integers(0, 20), st.sampled_from([62, 63, 64, 65, 127, 128, 129, 300]), st.sampled_from([8191, 8192])
)
NAMES = st.one_of(st.sampled_from(["", "trace", "ü", "名" * 30]), st.text("aü名\0", max_size=5))
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5) | st.just(b"v" * 70)), max_size=3).map(tuple)
STEPS = st.one_of(
    st.just(0),
    st.integers(-3, 3),
    st.sampled_from([-70, 70, 9000, -9000, 2**20, -(2**20), 2**27, 2**33, -(2**40), NOW]),
)


@st.composite
def rows(draw: st.DrawFn, longest: int = 150, headers: bool = True) -> list[Row]:
    """Runs of similar records, as producers make them, each different from the next."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    found: list[Row] = []
    timestamp = draw(st.sampled_from([0, NOW, NOW + 1]))
    for _ in range(draw(st.integers(1, 4))):
        key_length, value_length = draw(LENGTHS), draw(LENGTHS)
        step = draw(STEPS)
        some = draw(HEADERS) if headers and draw(st.booleans()) else ()
        large = (key_length or 0) + (value_length or 0) > 1000
        for _ in range(draw(st.integers(1, 12 if large else longest))):
            key = None if key_length is None else chance.randbytes(key_length)
            value = None if value_length is None else chance.randbytes(value_length)
            found.append(Row(key, value, timestamp, some))
            timestamp += step
    return found


CODECS = st.integers(0, 4)
# kafka-python needs python-snappy and zstandard for the other two, which nothing else here does.
KAFKA_PYTHON_CODECS = st.sampled_from([codecs.NONE, codecs.GZIP, codecs.LZ4])
