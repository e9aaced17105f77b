"""Conditions as Spark Connect writes them: which keys they name, and that all that is not quite that names none."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("grpc", reason="Spark Connect is not installed")

from pyspark.sql.connect import functions as sf
from pyspark.sql.connect.column import Column
from pyspark.sql.connect.expressions import ColumnReference
from pyspark.sql.connect.functions import col, lit

from krappy.spark.conditions import keys

key = col("key")


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        (key == "u1", [b"u1"]),
        (key == "ü", ["ü".encode()]),
        (key == "", [b""]),
        (key == lit("u1"), [b"u1"]),
        (key.eqNullSafe("u1"), [b"u1"]),
        (key.isin("u1", "u2", "u1"), [b"u1", b"u2"]),
        (key.isin(["u1"]), [b"u1"]),
        (key.isin("u1", "u2") & key.isin("u2", "u3"), [b"u2"]),
        ((key == "u1") & (key == "u2"), []),
        ((key == "u1") & (col("offset") > 5) & col("value").isNotNull(), [b"u1"]),
        ((col("offset") > 5) & (sf.length("value") > 1) & (key == "u1"), [b"u1"]),
        (key.like("u%") & (key == "u1"), [b"u1"]),
        ((key == "u1") | (key == "u2"), [b"u1", b"u2"]),
        ((key == "u1") | (key.isin("u2", "u3") & (col("offset") > 5)) | (key == "u1"), [b"u1", b"u2", b"u3"]),
        (((key == "u1") | (key == "u2")) & (key == "u2"), [b"u2"]),
    ],
)
def test_keys_that_are_named(condition: Any, named: list[bytes]) -> None:
    found = keys(condition, "string")
    assert found is not None
    assert found.exact == tuple(named)
    assert keys(condition, "binary") is None  # Spark would cast text, or the keys


def test_keys_in_bytes() -> None:
    for condition in (key == lit(b"\xff"), key.isin(lit(b"\xff"))):
        found = keys(condition, "binary")
        assert found is not None
        assert found.exact == (b"\xff",)
        assert keys(condition, "string") is None
    assert keys(key.isin("u1", b"u1"), "string") is None


@pytest.mark.parametrize(
    "condition",
    [
        "key = 'u1'",  # text is for Spark's parser
        sf.expr("key = 'u1'"),
        key != "u1",
        ~(key == "u1"),
        (key == "u1") | (key > "u2"),
        (key == "u1") | (col("offset") > 5),
        key == col("value"),
        key == sf.upper(lit("u1")),
        key == sf.collate(lit("U1"), "UTF8_LCASE"),
        sf.collate(key, "UTF8_LCASE") == "U1",
        sf.lower(key) == "u1",
        key.cast("int") == 1,
        key == 1,
        key == None,  # noqa: E711
        key.isin("u1", None),
        key.isin([]),
        key.isin("u1", 1),
        key > "u1",
        key.between("u1", "u2"),
        key.startswith("u"),
        key.like("u%"),
        key.alias("k") == "u1",
        col("KEY") == "u1",  # another column, where spark.sql.caseSensitive says so
        col("headers.key") == "u1",
        col("t.key") == "u1",
        col("value") == "u1",
        lit("u1") == key,
        Column(ColumnReference("key", plan_id=1)) == "u1",  # that of a certain DataFrame
        sf.call_function("==", key, lit("u1"), lit("u2")),
        sf.when(key == "u1", lit(True)),
        col("offset") > 5,
        key,
        lit(True),
    ],
)
def test_what_is_left_to_spark(condition: Any) -> None:
    assert keys(condition, "string") is None
