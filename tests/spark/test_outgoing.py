"""Which DataFrames can be written, and how their rows reach topics and partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from krappy.errors import ConfigError, InvalidRecord
from krappy.partitioner import partition_for
from krappy.spark.outgoing import OutgoingRows, outgoing
from krappy.spark.schema import arrow_schema, spark_schema

TEXT, BINARY = types.StringType(), types.BinaryType()
NOW, PARTITIONS = 1_800_000_000_000, 3


def struct(**columns: types.DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def rows(schema: StructType, given: list[tuple[Any, ...]], topic: str | None = "t") -> list[OutgoingRows]:
    named = [dict(zip(schema.names, row, strict=True)) for row in given]
    batch = pa.RecordBatch.from_pylist(named, arrow_schema(schema))
    return list(outgoing(schema, topic).rows(batch, NOW, lambda topic: PARTITIONS))


def test_a_value_is_enough() -> None:
    assert rows(struct(value=TEXT), [("ä",), (None,)]) == [
        OutgoingRows("t", None, None, ["ä".encode(), None], None, None)
    ]
    assert rows(struct(value=TEXT), []) == []


def test_every_column() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    schema = spark_schema(("key", "value", "partition", "timestamp", "headers"))
    given = [(b"k", b"v", 3, at, [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]), (b"j", None, 3, None, [])]
    ms = 1_767_323_045_678
    assert rows(schema, given) == [
        OutgoingRows("t", 3, [b"k", b"j"], [b"v", None], [(("h", b"1"), ("n", None)), ()], [ms, NOW])
    ]


def test_keys_name_their_partitions() -> None:
    schema = struct(key=TEXT, value=TEXT, partition=types.IntegerType())
    keys = ["u1", None, "u2", "u1", "ü" * 600, "u5", "u1", None]
    given = [(key, str(row), None) for row, key in enumerate(keys)]
    found = rows(schema, given)
    assert found[0] == OutgoingRows("t", None, [None, None], [b"1", b"7"], None, None)
    for each in found[1:]:
        assert each.keys is not None
        assert {partition_for(key or b"", PARTITIONS) for key in each.keys} == {each.partition}
    assert sorted(value or b"" for each in found for value in each.values) == [b"%d" % row for row in range(len(keys))]
    for each in found:
        assert list(each.values) == sorted(each.values, key=lambda value: int(value or 0)), "in their order"
    assert rows(schema, [("u1", "v", 2), ("u1", "v", None)])[0].partition == 2, "the column wins"


def test_times_before_1970_are_not_rounded_up() -> None:
    schema = struct(value=TEXT, timestamp=types.TimestampType())
    [found] = rows(schema, [("v", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))])
    assert found.timestamps == [-1]


def test_rows_go_to_their_topics_and_partitions_in_order() -> None:
    schema = struct(topic=TEXT, partition=types.LongType(), value=TEXT)
    given = [("a", 0, "1"), ("b", None, "2"), ("a", 0, "3"), ("a", 1, "4"), ("b", None, "5")]
    found = {(each.topic, each.partition): each.values for each in rows(schema, given, None)}
    assert found == {("a", 0): [b"1", b"3"], ("b", None): [b"2", b"5"], ("a", 1): [b"4"]}
    assert [each.topic for each in rows(schema, given, "c")] == ["c"] * 3, "the option topic wins"


def test_what_a_row_lacks() -> None:
    with pytest.raises(InvalidRecord, match="column `topic` is null"):
        rows(struct(topic=TEXT, value=TEXT), [(None, "v")], None)
    with pytest.raises(InvalidRecord, match="a header that has no key"):
        rows(spark_schema(("value", "headers")), [(b"v", [{"key": None, "value": b""}])])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (struct(key=TEXT), "no column `value`, it has key"),
        (struct(value=types.IntegerType()), r"`value` is int, and has to be binary or string: .*\.cast\('string'\)"),
        (struct(value=struct(a=TEXT)), r"`value` is struct<a:string>.*to_json\(value\)"),
        (struct(value=TEXT, user=TEXT), "column `user` has no place in an event"),
        (struct(value=TEXT, partition=TEXT), "`partition` is string, and has to be int"),
        (struct(value=TEXT, timestamp=types.TimestampNTZType()), "`timestamp` is timestamp_ntz"),
        (struct(value=TEXT, headers=types.MapType(TEXT, BINARY)), "`headers` is map<string,binary>"),
        (
            struct(value=TEXT, headers=types.ArrayType(struct(name=TEXT, value=BINARY))),
            "`headers` is array<struct<name",
        ),
    ],
)
def test_what_cannot_be_written_is_said_with_what_would_do(schema: StructType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        outgoing(schema, "t")


def test_a_place_is_needed_and_what_reading_gives_can_be_written() -> None:
    with pytest.raises(ConfigError, match="option topic, or a column `topic`"):
        outgoing(struct(value=TEXT), None)
    read = spark_schema(("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"))
    assert outgoing(read, None).columns == ("key", "value", "topic", "partition", "timestamp", "headers")
