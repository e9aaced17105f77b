"""Entries: the layout that stands in the module's head, and the fold of columns against a plain one."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.entries.entry import (
    bin_header,
    entry_offset,
    floor,
    is_tombstone,
    key_of_bin,
    pack_columns,
    pack_entry,
    packed_rows,
    unpack_entry,
)
from krappy.errors import StorageError
from krappy.types import Headers

offsets = st.integers(0, 2**63 - 1)
timestamps = st.integers(-1, 2**63 - 1)
values = st.none() | st.binary(max_size=300)
headers: st.SearchStrategy[Headers] = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
).map(tuple)


def test_the_layout_byte_by_byte() -> None:
    packed = pack_entry(258, 3, b"ab", (("h", b"v"), ("i", None)))
    assert packed == bytes.fromhex("94 cf0000000000000102 d30000000000000003 c4026162 92 92a168c40176 92a169c0")


def test_a_tombstone_byte_by_byte() -> None:
    assert pack_entry(0, -1, None) == bytes.fromhex("94 cf0000000000000000 d3ffffffffffffffff c0 c0")


@given(offsets, timestamps, values, headers)
def test_any_msgpack_library_reads_an_entry(offset: int, timestamp: int, value: bytes | None, headers: Headers) -> None:
    packed = pack_entry(offset, timestamp, value, headers)
    plain = [list(header) for header in headers] or None
    assert msgpack.unpackb(packed) == [offset, timestamp, value, plain]
    assert unpack_entry(packed) == (offset, timestamp, value, headers)


@given(offsets, timestamps, values)
def test_the_cheap_questions(offset: int, timestamp: int, value: bytes | None) -> None:
    packed = pack_entry(offset, timestamp, value)
    assert entry_offset(packed) == offset
    assert is_tombstone(packed) == (value is None)


@given(offsets, offsets, timestamps, values)
def test_bytes_compare_as_offsets(offset: int, limit: int, timestamp: int, value: bytes | None) -> None:
    assert (pack_entry(offset, timestamp, value) < floor(limit)) == (offset < limit)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255, 256, 65535, 65536])
def test_bin_headers_are_those_of_msgpack(length: int) -> None:
    data = bytes(length)
    assert bin_header(length) + data == msgpack.packb(data)


@pytest.mark.parametrize("length", [0, 255, 256])
def test_keys_are_packed_before_their_entries(length: int) -> None:
    keys, held = [b"a", bytes(length), b""], [pack_entry(number, 5, b"v") for number in range(3)]
    items = packed_rows(keys, held)
    assert [key_of_bin(key) for key in items[::2]] == keys
    assert [msgpack.unpackb(key) for key in items[::2]] == keys
    assert items[1::2] == held
    assert packed_rows([], []) == []


@pytest.mark.parametrize("bad", [b"", b"\x94", b"\x93\x01\x02\x03", b"\xc0", b"\x94\x01\x02\x03\x91\x01"])
def test_bytes_that_are_no_entry(bad: bytes) -> None:
    with pytest.raises(StorageError):
        unpack_entry(bad)


@st.composite
def columns(draw: st.DrawFn) -> tuple[range, list[int], list[bytes | None], list[bytes | None], list[Headers] | None]:
    count = draw(st.integers(0, 30))
    few = st.sampled_from([b"", b"a", b"b", b"c"]) | st.binary(max_size=2)
    keys = draw(st.lists(draw(st.sampled_from([few, st.none() | few])), min_size=count, max_size=count))
    held = draw(st.lists(draw(st.sampled_from([st.binary(max_size=3), values])), min_size=count, max_size=count))
    times = draw(st.lists(timestamps, min_size=count, max_size=count))
    extra = draw(st.none() | st.lists(headers, min_size=count, max_size=count))
    first = draw(st.integers(0, 2**40))
    return range(first, first + count), times, keys, held, extra


@given(columns(), st.data())
def test_columns_fold_to_the_last_of_each_key(
    given_columns: tuple[range, list[int], list[bytes | None], list[bytes | None], list[Headers] | None],
    data: st.DataObject,
) -> None:
    at, times, keys, held, extra = given_columns
    start = data.draw(st.integers(0, len(keys)))
    stop = data.draw(st.none() | st.integers(start, len(keys)))
    plain: dict[bytes, tuple[int, int, bytes | None, Headers]] = {}
    for index in range(start, len(keys) if stop is None else stop):
        key = keys[index]
        if key is not None:
            plain[key] = (at[index], times[index], held[index], extra[index] if extra else ())
    packed = pack_columns(at, times, keys, held, extra, start, stop)
    assert {key: unpack_entry(entry) for key, entry in packed.items()} == plain


@pytest.mark.parametrize("length", [255, 256, 65535, 65536])
def test_columns_with_long_values(length: int) -> None:
    value = b"x" * length
    assert pack_columns([7], [9], [b"k"], [value]) == {b"k": pack_entry(7, 9, value)}


@pytest.mark.parametrize("lengths", [[0], [1], [255], [256], [65536], [3, 4], [255, 256], [0, 65536], [5, None]])
@pytest.mark.parametrize("hot", [False, True])
def test_columns_with_values_of_one_length_and_of_several(lengths: list[int | None], hot: bool) -> None:
    count = 12
    held = [None if length is None else bytes([row]) * length for row in range(count) for length in lengths]
    keys: list[bytes | None] = [b"k%d" % (row % 3 if hot else row) for row in range(len(held))]
    plain = {key: pack_entry(100 + row, -row, held[row]) for row, key in enumerate(keys) if key is not None}
    assert pack_columns(range(100, 100 + len(held)), [-row for row in range(len(held))], keys, held) == plain
