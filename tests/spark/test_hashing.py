"""The partitions of a whole column are those of each key."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from krappy.partitioner import partition_for
from krappy.spark import hashing

KEYS = st.one_of(st.binary(max_size=20), st.binary(max_size=4).map(lambda some: some * 300))
COUNTS = st.integers(1, 100_000)


@given(st.lists(KEYS), COUNTS, st.data())
def test_as_each_key_by_itself(keys: list[bytes], count: int, data: st.DataObject) -> None:
    column = pa.array(keys, pa.binary())
    expected = [partition_for(key, count) for key in keys]
    assert hashing.partitions(column, count).tolist() == expected
    first = data.draw(st.integers(0, len(keys)))
    size = data.draw(st.integers(0, len(keys) - first))
    assert hashing.partitions(column.slice(first, size), count).tolist() == expected[first : first + size]


@given(st.integers(0, 30), st.integers(1, 50), COUNTS, st.randoms(use_true_random=False))
def test_keys_of_one_length(size: int, rows: int, count: int, random: object) -> None:
    keys = [random.randbytes(size) for _ in range(rows)]  # type: ignore[attr-defined]
    assert hashing.partitions(pa.array(keys, pa.binary()), count).tolist() == [
        partition_for(key, count) for key in keys
    ]
