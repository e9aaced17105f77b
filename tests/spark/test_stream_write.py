"""Streams to a topic, as far as no session is needed: rows one by one, and what can't be written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import Row

from krappy.errors import KrappyError
from krappy.spark.options import parse
from krappy.spark.outgoing import outgoing
from krappy.spark.schema import spark_schema
from krappy.spark.stream_write import ROWS, StreamWriter, _batches

SCHEMA = spark_schema(("key", "value", "timestamp", "headers"))


def test_rows_become_batches() -> None:
    """PySpark 4.0 gives rows to the writer of a stream, with times in the machine's zone that do not name it."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    given = [
        Row(key=bytearray(b"k"), value=b"v", timestamp=at.astimezone().replace(tzinfo=None), headers=None),
        Row(key=None, value=None, timestamp=None, headers=[Row(key="h", value=bytearray(b"1"))]),
    ]
    [batch] = _batches(given, SCHEMA)
    [rows] = outgoing(SCHEMA, "t").rows(batch, 5, lambda _: 1)
    assert (rows.keys, rows.values) == ([b"k", None], [b"v", None])
    assert rows.timestamps == [1_767_323_045_678, 5]
    assert rows.headers == [None, (("h", b"1"),)]
    many = _batches((given[0] for _ in range(ROWS + 1)), SCHEMA)
    assert [len(batch) for batch in many] == [ROWS, 1]
    assert list(_batches([], SCHEMA)) == []


def test_what_cannot_be() -> None:
    with pytest.raises(KrappyError, match="does not know its micro-batch"):
        StreamWriter(SCHEMA, parse({"topic": "t"}, "writeStream"), False).write(iter([]))
