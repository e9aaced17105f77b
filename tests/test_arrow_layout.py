"""Columns in Arrow's layout: what pyarrow reads of them is what they were made of, entries too."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy import arrow_layout
from krappy.arrow_layout import Binary
from krappy.entries import columns as entry_columns
from krappy.entries.entry import pack_entry
from krappy.types import Headers

ITEMS = st.lists(st.none() | st.binary(max_size=300), max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
I64 = st.integers(-(2**63), 2**63 - 1)


def arrow(column: Binary, rows: int, kind: pa.DataType) -> pa.Array:
    arrow_layout.check_binary(column, rows)
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    found = pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)])
    found.validate(full=True)
    return found


@given(ITEMS)
def test_items(items: list[bytes | None]) -> None:
    column = arrow_layout.binary(items)
    assert arrow(column, len(items), pa.binary()).to_pylist() == items
    assert arrow_layout.items(column) == items
    assert (column.validity is None) == (None not in items)
    if column.validity is None:
        assert arrow_layout.parts(column.offsets, column.data) == items


@given(st.lists(I64, max_size=40))
def test_numbers(numbers: list[int]) -> None:
    buffer = arrow_layout.int64s(numbers)
    assert pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(buffer)]).to_pylist() == numbers
    assert arrow_layout.numbers(buffer) == numbers


@given(st.lists(HEADERS, max_size=10))
def test_headers(rows: list[Headers]) -> None:
    column = arrow_layout.header_lists(rows)
    assert arrow_layout.headers(column) == rows
    count = sum(map(len, rows))
    names, values = arrow(column.names, count, pa.string()), arrow(column.values, count, pa.binary())
    lists = pa.ListArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(rows) + 1, [None, pa.py_buffer(column.offsets)]),
        pa.StructArray.from_arrays([names, values], ["name", "value"]),
    )
    lists.validate(full=True)
    assert [tuple((each["name"], each["value"]) for each in row) for row in lists.to_pylist()] == rows


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (Binary(b"", b"", None), 0),
        (Binary(b"\0" * 4, b"a", None), 0),
        (Binary(b"\0" * 8, b"", None), 0),
        (Binary(b"\1\0\0\0\1\0\0\0", b"a", None), 1),
        (Binary(b"\0\0\0\0\1\0\0\0", b"a", b""), 1),
    ],
)
def test_buffers_of_wrong_sizes_are_refused(column: Binary, rows: int) -> None:
    with pytest.raises(ValueError, match=r"rows|offsets"):
        arrow_layout.check_binary(column, rows)


SHORT = st.tuples(st.integers(0, 2**62), st.integers(-1, 2**62), st.none() | st.binary(max_size=255), st.just(()))
ANY = st.tuples(st.integers(0, 2**62), st.integers(-1, 2**62), st.none() | st.binary(max_size=400), HEADERS)
EVERY = ("value", "offset", "timestamp", "headers")


@given(st.lists(SHORT, max_size=20) | st.lists(ANY, max_size=20), st.sets(st.sampled_from(EVERY)))
def test_entries(rows: list[tuple[int, int, bytes | None, Headers]], wanted: set[str]) -> None:
    """The short way, for short values without headers, and the long one."""
    values, offsets, timestamps, headers = entry_columns.columns([pack_entry(*row) for row in rows], wanted)
    held = [row[2] for row in rows]
    assert (None if values is None else arrow_layout.items(values)) == (held if "value" in wanted else None)
    assert values is None or arrow(values, len(rows), pa.binary()).to_pylist() == held
    told = [row[0] for row in rows]
    assert (None if offsets is None else arrow_layout.numbers(offsets)) == (told if "offset" in wanted else None)
    times = [row[1] for row in rows]
    assert (None if timestamps is None else arrow_layout.numbers(timestamps)) == (
        times if "timestamp" in wanted else None
    )
    any_headers = "headers" in wanted and any(row[3] for row in rows)
    assert (None if headers is None else arrow_layout.headers(headers)) == (
        [row[3] for row in rows] if any_headers else None
    )
