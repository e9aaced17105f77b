"""Chunks: each key is found, and nothing else is, whatever the fingerprints are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from krappy.spark.chunk import Chunk, merged, ordered

KIND = pa.struct([("n", pa.int64())])
PRINTS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 40), st.integers(2**64 - 40, 2**64 - 1))


def chunk(prints: dict[int, int]) -> Chunk:
    """A chunk of fingerprints, each with a number; the key is both of them."""
    keys = [b"%d:%d" % each for each in prints.items()]
    entries = pa.array([{"n": n} for n in prints.values()], KIND)
    return ordered(np.array(list(prints), np.uint64), pa.array(keys, pa.binary()), entries)


@given(st.lists(st.dictionaries(PRINTS, st.integers(0, 9), max_size=60), min_size=1, max_size=4), st.lists(PRINTS))
def test_places(several: list[dict[int, int]], others: list[int]) -> None:
    one = merged([chunk(each) for each in several])
    held: dict[int, int] = {}
    for each in several:
        held = each | held  # of equal fingerprints, the first one stays
    assert len(one) == len(held)
    asked = [*held, *others]
    at = one.places(np.array(asked, np.uint64))
    assert [place >= 0 for place in at.tolist()] == [each in held for each in asked]
    here = at[at >= 0]
    keys = pa.array([b"%d:%d" % (each, held[each]) for each in asked if each in held], pa.binary())
    assert one.same(keys, here).all()
    assert one.entries.take(pa.array(here)).to_pylist() == [{"n": held[each]} for each in asked if each in held]
    if len(here):
        assert not one.same(pa.array([b"another"] * len(here), pa.binary()), here).any()


def test_many_fingerprints_that_begin_alike() -> None:
    prints = {(7 << 56) + 3 * n: n for n in range(1_000)}
    one = chunk(prints)
    asked = np.arange((7 << 56) - 10, (7 << 56) + 3_010, dtype=np.uint64)
    found = one.places(asked)
    assert [int(asked[row]) for row in np.flatnonzero(found >= 0)] == list(prints)
