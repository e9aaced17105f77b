"""Decoding with `keyed=True`: values of records without a key may be missing, and all else is the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krappy.records import batch

RUNS = st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=4), st.integers(1, 40)))


@given(RUNS.filter(bool), st.sampled_from([0, 3]))
def test_only_values_of_records_without_a_key_may_be_missing(
    runs: list[tuple[bytes | None, bytes | None, int]], codec: int
) -> None:
    rows = [(key, value) for key, value, count in runs for _ in range(count)]
    times = [1000 + at % 5 for at in range(len(rows))]
    data = batch.encode([key for key, _ in rows], [value for _, value in rows], timestamps=times, codec=codec)
    full, found = batch.decode(data), batch.decode(data, keyed=True)
    assert (found.keys, found.timestamps, list(found.offsets)) == (full.keys, full.timestamps, list(full.offsets))
    for key, value, other in zip(full.keys, full.values, found.values, strict=True):
        assert other == value if key is not None else other in (value, None)


def test_values_without_keys_are_spared() -> None:
    data = batch.encode(None, [b"x" * 100] * 50, timestamps=1)
    assert batch.decode(data, keyed=True).values == [None] * 50
