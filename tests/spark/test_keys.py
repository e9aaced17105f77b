"""Demands on keys, against the plain meaning of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from krappy.spark.demands import narrowed, options_of
from krappy.spark.keys import NONE, Keys, after_prefix
from krappy.spark.options import parse
from krappy.spark.telling import KeysTold, demands, told

letters = st.lists(st.sampled_from([0, 97, 98, 254, 255]), max_size=3).map(bytes)
keys = st.one_of(
    st.builds(Keys),
    st.builds(Keys, exact=st.lists(letters, max_size=3).map(tuple)),
    st.builds(Keys, prefix=letters),
    st.builds(Keys, start=letters, end=st.one_of(st.none(), letters)),
)


def lets(demand: Keys, key: bytes) -> bool:
    """What it means."""
    return (
        (demand.exact is None or key in demand.exact)
        and (demand.prefix is None or key.startswith(demand.prefix))
        and (demand.start is None or key >= demand.start)
        and (demand.end is None or key < demand.end)
    )


@given(keys, keys, letters)
def test_both(one: Keys, other: Keys, key: bytes) -> None:
    assert lets(one & other, key) == (lets(one, key) and lets(other, key))


@given(keys, letters)
def test_a_range_instead_of_a_prefix(demand: Keys, key: bytes) -> None:
    assert lets(demand.as_range(), key) == lets(demand, key)


@given(keys)
def test_there_and_back_as_options(demand: Keys) -> None:
    written = options_of(demand)
    read = parse({"subscribe": "t", "mode": "table", **written}, "log").keys
    assert read == (demand if demand.exact is None else Keys(exact=tuple(dict.fromkeys(demand.exact))))
    assert told(f"Traceback …: {KeysTold(demand)}\n") == written


def test_an_error_that_says_nothing_of_keys() -> None:
    assert told("Traceback …") is None
    assert told(str(KeysTold(Keys(exact=(b"a" * 99,))))[:80]) is None  # cut off on its way


def test_after_prefix() -> None:
    assert [after_prefix(each) for each in (b"a", b"a\xff", b"\xff", b"")] == [b"b", b"b", None, None]


K = ("key",)
FILTERS: list[tuple[list[ds.Filter], Callable[[bytes], bool]]] = [
    ([ds.EqualTo(K, "b")], lambda key: key == b"b"),
    ([ds.EqualTo(K, b"b"), ds.EqualTo(K, b"c")], lambda key: False),
    ([ds.EqualNullSafe(K, "b")], lambda key: key == b"b"),
    ([ds.EqualNullSafe(K, None)], lambda key: False),
    ([ds.IsNull(K)], lambda key: False),
    ([ds.IsNotNull(K)], lambda key: True),
    ([ds.In(K, ("b", "c", None, "b"))], lambda key: key in (b"b", b"c")),
    ([ds.In(K, (1, "b"))], lambda key: True),
    ([ds.GreaterThan(K, "b")], lambda key: key > b"b"),
    ([ds.GreaterThanOrEqual(K, "b"), ds.LessThan(K, "c")], lambda key: b"b" <= key < b"c"),
    ([ds.LessThanOrEqual(K, "b"), ds.GreaterThan(K, "b")], lambda key: False),
    ([ds.LessThanOrEqual(K, "b"), ds.GreaterThanOrEqual(K, "b")], lambda key: key == b"b"),
    ([ds.StringStartsWith(K, "b")], lambda key: key.startswith(b"b")),
    ([ds.StringStartsWith(K, "b"), ds.In(K, ("a", "bb"))], lambda key: key == b"bb"),
    ([ds.Not(ds.EqualTo(K, "b"))], lambda key: True),
    ([ds.StringContains(K, "b")], lambda key: True),
    ([ds.EqualTo(("value",), "b")], lambda key: True),
    ([ds.EqualTo(("value", "key"), "b")], lambda key: True),
    ([], lambda key: True),
]


@pytest.mark.parametrize(("filters", "wanted"), FILTERS)
def test_filters(filters: list[ds.Filter], wanted: Callable[[bytes], bool]) -> None:
    demand = narrowed(Keys(), demands(filters))
    for key in (b"", b"a", b"b", b"b\0", b"ba", b"bb", b"b\xff", b"c", b"\xff"):
        assert lets(demand, key) == wanted(key), key


def test_nothing_is_looked_up_for_a_contradiction() -> None:
    assert narrowed(Keys(), demands([ds.EqualTo(K, "b"), ds.EqualTo(K, "c")])) == NONE
    assert narrowed(Keys(start=b"x"), demands([ds.LessThan(K, "x")])) == NONE
