"""Where keys are cut, so that parts have about equal weight, whatever is known of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from krappy.core.splits import KeyFile, WeightedPiece, allot, cut, midpoint, pieces, weight

KEYS = st.binary(min_size=1, max_size=6)


def test_files_make_pieces() -> None:
    files = [KeyFile(b"a", b"c", 100), KeyFile(b"d", b"f", 50), KeyFile(b"b", b"e", 30), KeyFile(b"x", b"z", 9)]
    assert pieces(b"a", b"g", files) == [(b"a", 100 / 2), (b"b", 100 / 2 + 30 / 2), (b"d", 30 / 2 + 50)]
    assert pieces(b"a", b"g", []) == [(b"a", 0)]
    assert pieces(b"y", b"zz", files) == [(b"y", 9)]


@given(KEYS, KEYS, st.lists(st.tuples(KEYS, KEYS, st.integers(0, 1000))))
def test_pieces_begin_in_the_range_and_hold_what_the_files_have(
    a: bytes, b: bytes, given: list[tuple[bytes, bytes, int]]
) -> None:
    first, end = min(a, b), max(a, b) + b"\0"
    files = [KeyFile(min(x, y), max(x, y), count) for x, y, count in given]
    found = pieces(first, end, files)
    starts = [piece.start for piece in found]
    assert starts == sorted(set(starts))
    assert starts[0] == first
    assert all(start < end for start in starts)
    there = sum(file.entries for file in files if file.first < end and file.last >= first)
    assert abs(weight(found) - there) < 1e-6


def test_cuts_are_near_to_equal() -> None:
    fine = [WeightedPiece(b"%03d" % number, 10) for number in range(1000)]
    assert cut(fine, 4) == [b"250", b"500", b"750"]
    assert cut(fine, 1) == []
    skewed = [WeightedPiece(b"a", 1), WeightedPiece(b"b", 1000), WeightedPiece(b"c", 1)]
    assert cut(skewed, 8) == [b"b", b"c"]
    assert cut([WeightedPiece(b"a", 5)], 8) == []
    assert cut([], 8) == []


@given(st.lists(st.integers(0, 50), max_size=50), st.integers(1, 20))
def test_cuts_ascend_and_no_part_is_heavier_than_its_share_and_two_pieces(weights: list[int], parts: int) -> None:
    some = [WeightedPiece(b"%03d" % number, each) for number, each in enumerate(weights)]
    starts = cut(some, parts)
    assert starts == sorted(set(starts))
    assert len(starts) < parts
    bounds = [0, *(int(start) for start in starts), len(some)]
    heaviest = max((sum(weights[a:b]) for a, b in pairwise(bounds)), default=0)
    assert heaviest <= sum(weights) / parts + 2 * max(weights, default=0)


def test_heavy_ranges_get_more_parts() -> None:
    assert allot([1000, 3000, 0], 8) == [2, 6, 1]
    assert allot([100, 100], 8) == [1, 1]  # too few to be worth a cut
    assert allot([0, 0], 8) == [1, 1]
    assert sum(allot([1e6] * 3, 10)) in (9, 10)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_a_midpoint_lies_between(a: bytes, b: bytes) -> None:
    low, high = min(a, b), max(a, b)
    assert low <= midpoint(low, high) <= high
