"""What Spark's filters demand of keys, filter by filter. They exist from PySpark 4.1 on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import datasource as ds

from krappy.spark.keys import NONE, Keys
from krappy.spark.pushdown import narrowed
from krappy.spark.versions import features
from tests.spark.test_keys import lets

if not features().push_filters:
    pytest.skip("PySpark before 4.1 has no filters for data sources", allow_module_level=True)

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
    ([ds.LessThan(K, "\ufffd")], lambda key: True),  # Spark shows the same for bytes that are not UTF-8
    ([ds.StringStartsWith(K, "b\ufffd")], lambda key: True),
    ([ds.In(K, ("b", "\ufffd"))], lambda key: True),
    ([ds.Not(ds.EqualTo(K, "b"))], lambda key: True),
    ([ds.StringContains(K, "b")], lambda key: True),
    ([ds.EqualTo(("value",), "b")], lambda key: True),
    ([ds.EqualTo(("value", "key"), "b")], lambda key: True),
    ([], lambda key: True),
]


@pytest.mark.parametrize(("filters", "wanted"), FILTERS)
def test_filters(filters: list[ds.Filter], wanted: Callable[[bytes], bool]) -> None:
    demand = narrowed(Keys(), filters)
    for key in (b"", b"a", b"b", b"b\0", b"ba", b"bb", b"b\xff", b"c", b"\xff"):
        assert lets(demand, key) == wanted(key), key


def test_nothing_is_looked_up_for_a_contradiction() -> None:
    assert narrowed(Keys(), [ds.EqualTo(K, "b"), ds.EqualTo(K, "c")]) == NONE
    assert narrowed(Keys(start=b"x"), [ds.LessThan(K, "x")]) == NONE
