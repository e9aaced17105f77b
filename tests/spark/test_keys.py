"""Demands on keys, compared with the plain meaning of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krappy.spark.demands import options_of
from krappy.spark.keys import Keys, after_prefix
from krappy.spark.options import parse

letters = st.lists(st.sampled_from([0, 97, 98, 254, 255]), max_size=3).map(bytes)
keys = st.one_of(
    st.builds(Keys),
    st.builds(Keys, exact=st.lists(letters, max_size=3).map(tuple)),
    st.builds(Keys, prefix=letters),
    st.builds(Keys, start=letters, end=st.one_of(st.none(), letters)),
)


def lets(demand: Keys, key: bytes) -> bool:
    """Whether the demand allows this key."""
    return (
        (demand.exact is None or key in demand.exact)
        and (demand.prefix is None or key.startswith(demand.prefix))
        and (demand.start is None or key >= demand.start)
        and (demand.end is None or key < demand.end)
    )


@given(keys, keys, letters)
def test_both(one: Keys, other: Keys, key: bytes) -> None:
    assert lets(one & other, key) == (lets(one, key) and lets(other, key))


@given(keys, keys, letters)
def test_either(one: Keys, other: Keys, key: bytes) -> None:
    assert lets(one | other, key) >= (lets(one, key) or lets(other, key))
    if one.exact is not None and other.exact is not None:
        assert lets(one | other, key) == (lets(one, key) or lets(other, key))


@given(keys, letters)
def test_a_range_instead_of_a_prefix(demand: Keys, key: bytes) -> None:
    assert lets(demand.as_range(), key) == lets(demand, key)


@given(keys)
def test_there_and_back_as_options(demand: Keys) -> None:
    written = options_of(demand)
    read = parse({"subscribe": "t", "mode": "table", **written}, "log").keys
    assert read == (demand if demand.exact is None else Keys(exact=tuple(dict.fromkeys(demand.exact))))


def test_after_prefix() -> None:
    assert [after_prefix(each) for each in (b"a", b"a\xff", b"\xff", b"")] == [b"b", b"b", None, None]
