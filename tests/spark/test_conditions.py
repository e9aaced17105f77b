"""Which keys a condition demands, as text and as Spark Connect writes it; and that any other condition demands none.

test_at_once.py tests what Columns without Spark Connect demand, and that Spark finds the same rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.spark.conditions import MOST_PARTS, keys
from krappy.spark.keys import NONE, Keys
from tests.spark.test_keys import lets

ALL = Keys()


def exact(*some: str | bytes) -> Keys:
    return Keys(exact=tuple(key.encode() if isinstance(key, str) else key for key in some))


TEXTS: list[tuple[str, Keys]] = [
    ("key = 'u1'", exact("u1")),
    ("KEY=='ü'", exact("ü")),
    ("`key` <=> ''", exact("")),
    (" ( (key = 'u1')\n) ", exact("u1")),
    ("'u1' = key", exact("u1")),
    ("key = 'u1' AND key = 'u2'", NONE),
    ("key = 'a AND b' and length(value) > 3", exact("a AND b")),
    ("coalesce(value = 'x' OR key = 'z', false) AND key = 'u1'", exact("u1")),
    ("key IN ('u1', 'u2', 'u1', NULL) AND headers[0].key = 'x'", exact("u1", "u2")),
    ("key = 'u1' OR key IN ('u2') AND offset > 5 OR (key = 'u3')", exact("u1", "u2", "u3")),
    ("(key = 'u1' OR key = 'u2') AND offset BETWEEN 1 AND 2 AND key = 'u2'", exact("u2")),
    ("'a' = 'b' AND key = 'u1' AND key = key", exact("u1")),
    ("key = NULL OR key IS NULL", NONE),
    ("key < 'b'", Keys(end=b"b")),
    ("key <= 'b'", Keys(end=b"b\0")),
    ("key > 'b'", Keys(start=b"b\0")),
    ("key >= 'b'", Keys(start=b"b")),
    ("'b' < key AND 'c' >= key", Keys(start=b"b\0", end=b"c\0")),
    ("key BETWEEN 'a' AND 'b' AND key < 'b'", Keys(start=b"a", end=b"b")),
    ("key = 'a' OR key > 'c'", Keys(start=b"a")),
    ("key BETWEEN 'u1' AND value", Keys(start=b"u1")),
    (" OR ".join(f"key = '{number}'" for number in range(MOST_PARTS)), exact(*map(str, range(MOST_PARTS)))),
]
ONLY_TEXT: list[tuple[str, Keys]] = [
    ("key LIKE 'u1%'", Keys(prefix=b"u1")),
    ("startswith(key, 'u1')", Keys(prefix=b"u1")),
]
ONLY_BYTES: list[tuple[str, Keys]] = [
    ("key = X'00ff'", exact(b"\x00\xff")),
    ("key >= x'ff' AND key IN (X'', X'ff00')", exact(b"\xff\x00")),
]


@pytest.mark.parametrize(("condition", "found"), TEXTS)
def test_text(condition: str, found: Keys) -> None:
    assert keys(condition, "string") == keys(condition, "binary") == found


@pytest.mark.parametrize(("condition", "found"), [*ONLY_TEXT, *ONLY_BYTES])
def test_text_about_keys_of_one_type(condition: str, found: Keys) -> None:
    mine = "string" if (condition, found) in ONLY_TEXT else "binary"
    assert keys(condition, mine).as_range() == found.as_range()
    assert keys(condition, "binary" if mine == "string" else "string") == ALL


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "true",
        "key",
        "value = 'u1'",
        "NOT key = 'u1'",
        "NOT (key = 'u1' OR key = 'u2')",
        "! key = 'u1'",
        "key <> 'u1'",
        "key != 'u1'",
        "key NOT IN ('u1')",
        "key IS NOT NULL",
        "key = 'u1' OR offset > 5",
        "key = 'u1' OR (key > 'u2' OR offset > 5)",
        "key = value",
        "key = 1",
        "key = upper('u1')",
        "upper(key) = 'U1'",
        "(key) = 'u1'",
        "key = 'u' || '1'",
        "key = 'u' '1'",
        "key = 'u''1'",
        "key = 'u1' COLLATE UTF8_LCASE",
        "key = 'u1' IS TRUE",
        "(key = 'u1') = false",
        "(key = 'u1') IN (false)",
        "key = 'u1' && offset > 5",
        "users.key = 'u1'",
        "headers[0].key = 'u1'",
        "key LIKE 'u_'",
        "key LIKE '%u'",
        "key LIKE 'u1'",
        "key LIKE 'u%' ESCAPE '/'",
        "key ILIKE 'u%'",
        "key IN ('u1', value)",
        "key IN ('u1',)",
        "key IN ('u1' 'u2')",
        "key IN (SELECT 'u1')",
        "key = 'u\\1'",  # its meaning depends on spark.sql.parser.escapedStringLiterals
        'key = "u1"',  # its meaning depends on spark.sql.ansi.doubleQuotedIdentifiers
        "key = '${u}'",  # its meaning depends on spark.sql.variable.substitute
        "key = 'u1' -- AND",
        "key = 'u1' /* AND */",
        "key = X'0'",
        "key = 'u1' AND offset > 1OR offset > 0",
        "key = 'u1' AND offset > 1e3",
        "(SELECT offset > 1 AND key = 'u1' FROM users LIMIT 1)",
        "(SELECT true FROM users WHERE offset > 1 AND key = 'u1')",
        "CASE WHEN offset > 1 AND key = 'u1' AND value = 'x' THEN false ELSE true END",
        "EXISTS (TABLE users |> WHERE offset > 1 AND key = 'u1')",
        "CASE WHEN offset > 1 AND key = 'u1' THEN false ELSE true END",
        "key = 'u1' AND ((offset > 1",
        "key = 'u1' AND )offset > 1(",
        "key IS 'u1'",
        "`and` = 'x' OR `or` = 'y'",
        "\u00a0key = 'u1'",
        "key = '\ufffd'",  # which Spark also shows for bytes that are not UTF-8
        " OR ".join(f"key = '{number}'" for number in range(MOST_PARTS + 1)),
        "(" * 100_000 + "key = 'u1'" + ")" * 100_000,
    ],
)
def test_text_that_demands_no_keys(condition: str) -> None:
    assert keys(condition, "string") == ALL


Says = tuple[str, Any]  # a condition; and a function of a key and of what is unknown, which says whether it holds


def _atoms() -> list[Says]:
    found: list[Says] = [("offset > 1", lambda key, other: other), ("(offset > 1 OR true)", lambda key, other: True)]
    for at in ("a", "b", "bb"):
        found += [
            (f"key = '{at}'", lambda key, other, at=at: key == at),
            (f"'{at}' <= key", lambda key, other, at=at: at <= key),
            (f"key < '{at}'", lambda key, other, at=at: key < at),
            (f"key IN ('{at}', 'c')", lambda key, other, at=at: key in (at, "c")),
            (f"key BETWEEN 'a' AND '{at}'", lambda key, other, at=at: "a" <= key <= at),
            (f"key NOT BETWEEN 'a' AND '{at}'", lambda key, other, at=at: not "a" <= key <= at),
            (f"key LIKE '{at}%'", lambda key, other, at=at: key.startswith(at)),
            (f"key <> '{at}'", lambda key, other, at=at: key != at),
        ]
    return found


def _joined(some: st.SearchStrategy[Says]) -> st.SearchStrategy[Says]:
    def one(joint: str, parts: list[Says]) -> Says:
        text = f" {joint} ".join(f"({part})" if joint == "AND" else part for part, _ in parts)
        every = all if joint == "AND" else any
        return text, lambda key, other: every(holds(key, other) for _, holds in parts)

    negated = some.map(lambda each: (f"NOT ({each[0]})", lambda key, other: not each[1](key, other)))
    return negated | st.builds(one, st.sampled_from(["AND", "OR"]), st.lists(some, min_size=1, max_size=3))


@given(st.recursive(st.sampled_from(_atoms()), _joined, max_leaves=8), st.booleans())
def test_no_key_is_left_out_for_which_it_holds(says: Says, other: bool) -> None:
    condition, holds = says
    asked = keys(condition, "string")
    for key in ("", "a", "aa", "b", "ba", "bb", "bbb", "c", "d"):
        assert lets(asked, key.encode()) >= holds(key, other), (condition, key)


COLUMNS, OTHERS = 16, 19  # how many there are below: to know it by them, each worker would import Spark Connect


@pytest.fixture(scope="module")
def connect() -> Any:
    """Its functions, imported by the one worker whose tests they are."""
    return pytest.importorskip("pyspark.sql.connect.functions", reason="Spark Connect is not installed")


def _columns(connect: Any) -> list[tuple[Any, Keys]]:
    sf, key, col, lit = connect, connect.col("key"), connect.col, connect.lit
    return [
        (key == "u1", exact("u1")),
        (key == "", exact("")),
        (lit("u1") == key, exact("u1")),
        (key.eqNullSafe("u1"), exact("u1")),
        (key.isin("u1", "u2", "u1"), exact("u1", "u2")),
        (key.isin(["u1"]), exact("u1")),
        (key.isin("u1", None), exact("u1")),
        (key.isin([]), NONE),
        (key == None, NONE),  # noqa: E711
        (key.isin("u1", "u2") & key.isin("u2", "u3"), exact("u2")),
        ((key == "u1") & (col("offset") > 5) & col("value").isNotNull(), exact("u1")),
        ((col("offset") > 5) & (sf.length("value") > 1) & (col("KEY") == "u1"), exact("u1")),
        ((key == "u1") | (key.isin("u2", "u3") & (col("offset") > 5)) | (key == "u1"), exact("u1", "u2", "u3")),
        ((key == "u1") | (key > "u2"), Keys(start=b"u1")),
        (key.between("u1", "u2"), Keys(start=b"u1", end=b"u2\0")),
        (sf.expr("key = 'u1' OR key = 'u2'") & (key >= "u2"), exact("u2")),
    ]


@pytest.mark.parametrize("number", range(COLUMNS))
def test_columns_of_spark_connect(connect: Any, number: int) -> None:
    every = _columns(connect)
    assert len(every) == COLUMNS
    condition, found = every[number]
    assert keys(condition, "string") == keys(condition, "binary") == found


def test_columns_about_keys_of_one_type(connect: Any) -> None:
    key, lit = connect.col("key"), connect.lit
    for condition in (key.startswith("u"), key.like("u%")):
        assert keys(condition, "string").as_range() == Keys(start=b"u", end=b"v")
        assert keys(condition, "binary") == ALL
    for condition in (key == lit(b"\xff"), key.isin(lit(b"\xff"))):
        assert keys(condition, "binary") == exact(b"\xff")
        assert keys(condition, "string") == ALL


def _others(connect: Any) -> list[Any]:
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.expressions import ColumnReference

    sf, key, col, lit = connect, connect.col("key"), connect.col, connect.lit
    return [
        key != "u1",
        ~(key == "u1"),
        (key == "u1") | (col("offset") > 5),
        key == col("value"),
        key == sf.upper(lit("u1")),
        key == sf.collate(lit("U1"), "UTF8_LCASE"),
        sf.collate(key, "UTF8_LCASE") == "U1",
        key.cast("int") == 1,
        key == 1,
        key.isin("u1", 1),
        key.alias("k") == "u1",
        col("headers.key") == "u1",
        col("t.key") == "u1",
        col("value") == "u1",
        Column(ColumnReference("key", plan_id=1)) == "u1",  # that of a certain DataFrame
        sf.call_function("==", key, lit("u1"), lit("u2")),
        sf.when(key == "u1", lit(True)),
        key,
        lit(True),
    ]


@pytest.mark.parametrize("number", range(OTHERS))
def test_columns_of_spark_connect_that_demand_no_keys(connect: Any, number: int) -> None:
    every = _others(connect)
    assert len(every) == OTHERS
    assert keys(every[number], "string") == ALL
