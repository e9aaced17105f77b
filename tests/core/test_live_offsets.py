"""The set of live offsets, compared with a plain set; cuts of batches, compared with `batch.keep`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krappy.core.live_offsets import BLOCK, LiveOffsets
from krappy.entries.entry import pack_entry
from krappy.records import batch, survivors
from krappy.types import Headers

OFFSETS = st.integers(0, 5 * BLOCK) | st.sampled_from([0, BLOCK - 1, BLOCK, 2 * BLOCK])


def entries(offsets: dict[int, bool]) -> list[bytes]:
    return [pack_entry(offset, -1, b"v" if value else None) for offset, value in offsets.items()]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(OFFSETS, st.booleans()),
    st.sampled_from([0, 1 << 40, 1 << 62]),
    OFFSETS,
    OFFSETS,
    st.lists(OFFSETS, min_size=1, max_size=4),
)
def test_it_holds_what_was_put_in(found: dict[int, bool], base: int, low: int, blank: int, asked: list[int]) -> None:
    found = {base + at: value for at, value in found.items()}
    low, high, blank = base + low, base + 4 * BLOCK, base + blank
    live = LiveOffsets(low, high, 1 << 20)
    live.add(entries(found))
    inside = {at: value for at, value in found.items() if low <= at < high}
    held = {at for at, value in inside.items() if value or at >= blank}
    assert live.count == sum(inside.values())
    for at in asked:
        first, end = base + at, base + at + BLOCK + 100
        assert live.next(first, blank) == min((each for each in held if each >= first), default=None)
        flags, left_out = live.between(first, end, blank)
        assert {first + index for index, flag in enumerate(flags) if flag} == held & set(range(first, end))
        assert len(flags) == end - first
        assert left_out == bool((inside.keys() - held) & set(range(first, end)))


@pytest.mark.parametrize("each", [1, 1000, 40_000])
@pytest.mark.parametrize("value", [True, False])
def test_what_is_too_much_is_left_to_another(each: int, value: bool) -> None:
    """With one event in each block, with some of its events, and with more than half."""
    room = 40_000
    live = LiveOffsets(0, 1000 * BLOCK, room)
    for block in range(400 if each == 1 else 30):
        live.add(entries(dict.fromkeys(range(block * BLOCK, block * BLOCK + each), value)))
        live.add(entries({block * BLOCK + BLOCK - 1: True}))
    assert room // 2 < live.size <= room
    assert live.high % BLOCK == 0
    assert 0 < live.high < 1000 * BLOCK
    at = count = 0
    while (found := live.next(at, 0)) is not None:
        at, count = found + 1, count + 1
    assert count == live.high // BLOCK * (each + 1) > 0, "and what is below that is all there"


def test_one_block_stays_however_little_room_there_is() -> None:
    live = LiveOffsets(0, 10 * BLOCK, 1)
    for block in range(5):
        live.add(entries({block * BLOCK + 7: True, block * BLOCK + 9: False}))
    assert live.high == BLOCK
    assert live.between(0, 12, 0) == (bytes([0] * 7 + [1, 0, 1, 0, 0]), False)


RECORD = st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=300), st.integers(0, 10**7), st.booleans())


@settings(max_examples=200)
@given(st.lists(RECORD, min_size=1, max_size=40), st.data(), st.integers(0, 4), st.booleans())
def test_a_batch_is_cut_as_keep_does_it(
    records: list[tuple[bytes, bytes | None, int, bool]], data: st.DataObject, codec: int, sparse: bool
) -> None:
    count = len(records)
    headers: list[Headers] = [(("h", b"x"),) if each[3] else () for each in records]
    made = batch.encode(
        [each[0] for each in records],
        [each[1] for each in records],
        timestamps=[each[2] for each in records],
        headers=headers,
        codec=codec,
        base_offset=1000,
        offsets=[1000 + 3 * index for index in range(count)] if sparse else None,
    )
    header = batch.read_header(made)
    there = list(batch.offsets(made))
    kept = set(data.draw(st.lists(st.sampled_from(there), min_size=1)))
    wanted = bytes(offset in kept for offset in range(1000, header.next_offset))
    found = survivors.cut(memoryview(made), wanted)
    assert batch.check(found).next_offset == header.next_offset
    expected = batch.keep(made, kept)
    assert expected is not None
    assert batch.decode(found) == batch.decode(expected)


@pytest.mark.parametrize("size", [1, 30, 120, 9000])
def test_uniform_records_are_cut_too(size: int) -> None:
    count = 300
    made = batch.encode([b"%05d" % n for n in range(count)], [b"x" * size] * count, timestamps=1)
    for step in (1, 2, 7, 299):
        wanted = bytes(n % step == 0 for n in range(count))
        found = survivors.cut(memoryview(made), wanted)
        batch.check(found)
        assert list(batch.decode(found).offsets) == [n for n in range(count) if n % step == 0]


def test_a_batch_may_be_cut_short() -> None:
    made = batch.encode([b"k"] * 10, [b"v"] * 10, timestamps=1, base_offset=5)
    found = survivors.cut(memoryview(made), bytes([0, 1, 1]))
    header = batch.check(found)
    assert (header.base_offset, header.next_offset, header.count) == (5, 8, 2)
    assert list(batch.decode(found).offsets) == [6, 7]


def test_a_batch_of_nothing() -> None:
    header = batch.check(batch.nothing(7, 1_000_007))
    assert (header.base_offset, header.next_offset, header.count) == (7, 1_000_007, 0)
    assert batch.check(batch.nothing(0, 2**40)).next_offset == 2**31


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 399)), st.booleans(), st.sampled_from([1, 50]))
def test_of_long_runs_only_a_few_are_taken_out(gone: set[int], uniform: bool, others: int) -> None:
    """Most records stay, of one length or of several, and it is known which there are."""
    values = [b"v" * (100 if uniform or number % others else 99) for number in range(400)]
    made = batch.encode([b"%03d" % number for number in range(400)], list(values), timestamps=7)
    if len(gone) == 400:
        return
    stay = bytes([number not in gone for number in range(400)])
    first = survivors.cut(memoryview(made), stay)
    columns = batch.decode(first)
    assert list(columns.offsets) == [number for number in range(400) if number not in gone]
    assert columns.keys == [b"%03d" % offset for offset in columns.offsets]
    assert columns.values == [values[offset] for offset in columns.offsets]
    last = max(columns.offsets)
    again = bytes(last) + b"\1" + bytes(399 - last)
    which = bytes(len(columns.offsets) - 1) + b"\1"
    assert survivors.cut(memoryview(first), again, which) == survivors.cut(memoryview(made), again)
