"""The two indexes: their bytes, their lookups, and what they refuse."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.store.index import BadIndex, Indexer, OffsetIndex, TimeIndex

U32 = st.integers(0, 2**31 - 1)


def ascending(size: int = 40) -> st.SearchStrategy[list[int]]:
    return st.lists(U32, unique=True, max_size=size).map(sorted)


@st.composite
def offset_entries(draw: st.DrawFn) -> list[tuple[int, int]]:
    offsets, positions = draw(ascending()), draw(ascending())
    return list(zip(offsets, positions, strict=False))


@given(offset_entries(), U32)
def test_an_offset_index_is_kafkas_bytes(entries: list[tuple[int, int]], wanted: int) -> None:
    index = OffsetIndex()
    for offset, position in entries:
        index.append(offset, position)
    data = b"".join(struct.pack(">ii", *entry) for entry in entries)
    assert index.pack() == data
    assert index.pack(len(entries) // 2) == data[8 * (len(entries) // 2) :]
    read = OffsetIndex.unpack(data, 2**31)
    assert (read.offsets, read.positions) == (index.offsets, index.positions)
    below = [number for number, (offset, _) in enumerate(entries) if offset <= wanted]
    assert index.lookup(wanted) == (below[-1] if below else -1)


@given(
    st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=40).map(sorted), ascending(), st.integers(0, 2**63 - 1)
)
def test_a_time_index_is_kafkas_bytes(timestamps: list[int], offsets: list[int], wanted: int) -> None:
    entries = list(zip(timestamps, offsets, strict=False))
    index = TimeIndex()
    for entry in entries:
        index.append(*entry)
    data = b"".join(struct.pack(">qi", *entry) for entry in entries)
    assert index.pack() == data
    assert index.pack(len(entries) // 2) == data[12 * (len(entries) // 2) :]
    read = TimeIndex.unpack(data)
    assert (read.timestamps, read.offsets) == (index.timestamps, index.offsets)
    earlier = [entry for entry in entries if entry[0] < wanted]
    assert index.before(wanted) == (earlier[-1] if earlier else None)


def test_a_time_index_takes_only_later_times() -> None:
    index = TimeIndex()
    for timestamp, offset in ((-1, 0), (5, 1), (5, 2), (4, 3), (6, 4)):
        index.append(timestamp, offset)
    assert list(zip(index.timestamps, index.offsets, strict=True)) == [(5, 1), (6, 4)]


@given(st.binary(max_size=200), st.integers(0, 500))
def test_garbage_is_refused_or_in_order(data: bytes, size: int) -> None:
    with suppress(BadIndex):
        index = OffsetIndex.unpack(data, size)
        assert index.offsets.tolist() == sorted(set(index.offsets))
        assert index.positions.tolist() == sorted(set(index.positions))
        assert all(position < size for position in index.positions)
    with suppress(BadIndex):
        times = TimeIndex.unpack(data)
        assert times.timestamps.tolist() == sorted(set(times.timestamps))
        assert times.offsets.tolist() == sorted(set(times.offsets))


@pytest.mark.parametrize("entries", [70, 1000, 100_000])
def test_zeros_and_garbage_are_seen_whatever_their_length(entries: int) -> None:
    good = b"".join(struct.pack(">ii", number * 3, number * 100) for number in range(entries))
    assert len(OffsetIndex.unpack(good, entries * 100)) == entries
    page = len(good) // 10 // 8 * 8
    for bad in (
        bytes(len(good)),
        good[:-page] + bytes(page),
        bytes(page) + good[page:],
        good[: 3 * page] + bytes(page) + good[4 * page :],
        random.Random(entries).randbytes(len(good)),
        good[1:] + b"x",
        good[: len(good) // 2] + good[: len(good) // 2],
    ):
        with pytest.raises(BadIndex):
            OffsetIndex.unpack(bad, entries * 100)


@pytest.mark.parametrize("data", [bytes(16), b"x", struct.pack(">iiii", 5, 5, 5, 6), struct.pack(">iiii", 5, 5, 6, 5)])
def test_bad_offset_indexes(data: bytes) -> None:
    with pytest.raises(BadIndex):
        OffsetIndex.unpack(data, 1000)


def test_an_entry_behind_the_end_is_refused() -> None:
    data = struct.pack(">iiii", 1, 10, 2, 20)
    assert len(OffsetIndex.unpack(data, 21)) == 2
    with pytest.raises(BadIndex):
        OffsetIndex.unpack(data, 20)


def test_entries_come_after_the_interval() -> None:
    """As in Kafka's LogSegment.append: an entry comes after more than the interval since the last one, counted before
    this batch."""
    indexer = Indexer(100)
    for number in range(10):
        indexer.note(number, number * 40, 40, 1000 - number if number == 5 else 1000 + number)
    assert list(indexer.offsets.offsets) == [3, 6, 9]
    assert list(indexer.offsets.positions) == [120, 240, 360]
    assert list(zip(indexer.times.timestamps, indexer.times.offsets, strict=True)) == [(1003, 3), (1006, 6), (1009, 9)]
    indexer.note(10, 400, 40, 2000)
    indexer.seal()
    indexer.seal()
    assert (indexer.times.timestamps[-1], indexer.times.offsets[-1], len(indexer.times)) == (2000, 10, 4)
