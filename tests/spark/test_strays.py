"""Keys in other partitions than their own (the broker's strays.py): each way to read a table has one row
for each key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from zlib import crc32

import pyarrow as pa
import pytest

from krappy.blocking import Client
from krappy.spark import by_key, table_read
from krappy.spark.join import krappy_get, lookup
from krappy.spark.options import parse
from krappy.spark.schema import spark_schema
from krappy.spark.stream_read import StreamReader
from krappy.spark.stream_table import FirstPartition
from krappy.spark.versions import features
from tests.served import alone
from tests.spark.rows import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = alone  # in a cluster no broker has all rows of such a key: brokers refuse to read the table in columns

COUNT = 300
KEYS = [f"u{number}" for number in range(COUNT)]


@pytest.fixture
def table(client: Client, topic: str) -> dict[str, str]:
    """What the table has after librdkafka's partitioner and ours have written to it, and partitions were added."""
    client.create_topic(topic, 2)
    found: dict[str, str] = {}

    def write(keys: list[str], what: str | None, timestamp: int, *, by_crc: bool) -> None:
        with client.producer(topic) as producer:
            for key in keys:
                partition = crc32(key.encode()) % partitions if by_crc else None
                value = None if what is None else f"{what} of {key}"
                producer.send(value, key=key, partition=partition, timestamp=timestamp)
                found.pop(key, None)
                if value is not None:
                    found[key] = value

    partitions = 2
    write(KEYS, "first", 1_000, by_crc=True)
    partitions = 4
    client.alter_topic(topic, partitions=4)
    write(KEYS[::3], "second", 2_000, by_crc=False)
    write(KEYS[::4], None, 3_000, by_crc=False)
    write(KEYS[::5], None, 4_000, by_crc=True)
    write(KEYS[::20], "third", 5_000, by_crc=True)
    assert client.describe(topic).scattered
    return found


def values(found: list[dict[str, object]]) -> dict[str, str]:
    """The values by key; fails if a key comes twice."""
    assert len({row["key"] for row in found}) == len(found)
    return {bytes(row["key"]).decode(): bytes(row["value"]).decode() for row in found}  # type: ignore[call-overload]


def test_lookups_find_them(client: Client, topic: str, table: dict[str, str]) -> None:
    for keep in (0, 1 << 20):
        for _ in range(2):
            found = by_key.entries(client, topic, pa.array([*KEYS, None, "no"]), ["value", "partition"], keep=keep)
            told = [entry and entry["value"].decode() for entry in found.to_pylist()]
            assert told == [table.get(key) for key in KEYS] + [None, None]
    one = next(iter(table))
    [entry] = by_key.entries(client, topic, pa.array([one]), ["partition", "offset"]).to_pylist()
    expected = client.table(topic).get(one)
    assert expected is not None
    assert (entry["partition"], entry["offset"]) == (expected.partition, expected.offset)


@pytest.mark.parametrize("small", [0, table_read.SMALL])
def test_a_table_has_one_row_for_each(
    address: str, topic: str, table: dict[str, str], monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(table_read, "SMALL", small)
    assert values(rows(address, mode="table", subscribe=topic)) == table
    assert values(rows(address, mode="table", subscribePattern=f"^{topic}$", minPartitions=7)) == table
    [held, *_] = rows(address, mode="snapshot", subscribe=topic)
    assert values(rows(address, mode="table", snapshot=held["snapshot"])) == table
    some = {key: value for key, value in table.items() if key.startswith("u1")}
    assert values(rows(address, subscribe=topic, keyPrefix="u1")) == some


def test_named_keys_come_once(client: Client, address: str, topic: str, table: dict[str, str]) -> None:
    found = rows(address, subscribe=topic, keys=json.dumps(KEYS))
    assert values(found) == table
    for row in found[:10]:
        expected = client.table(topic).get(bytes(row["key"]))
        assert expected is not None
        assert (row["partition"], row["offset"]) == (expected.partition, expected.offset)
    deleted = rows(address, subscribe=topic, key=KEYS[4], tombstones="true")
    assert [row["deleted"] for row in deleted] == [True]


def test_a_named_partition_answers_for_itself(address: str, client: Client, topic: str, table: dict[str, str]) -> None:
    for partition in range(4):
        its = {entry.key for entry in client.table(topic).scan(partitions=[partition])}
        assert {row["key"] for row in rows(address, mode="table", assign=json.dumps({topic: [partition]}))} == its
    both = rows(address, mode="table", assign=json.dumps({topic: [0, 1]}))
    assert len(both) > len({row["key"] for row in both})


@pytest.mark.skipif(not features().admission_control, reason="PySpark before 4.2 begins a stream otherwise")
@pytest.mark.parametrize("gone", [False, True])
def test_a_stream_begins_with_one_row_for_each(
    client: Client, address: str, topic: str, table: dict[str, str], gone: bool
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    asked = parse({"address": address, "subscribe": topic, "startingOffsets": "snapshot"}, "stream")
    reader = StreamReader(spark_schema(asked.columns, asked.key_type), asked)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = list(reader.partitions(start, end))
    if gone:  # before the tasks have begun, so they take new snapshots
        for part in parts:
            assert isinstance(part, FirstPartition)
            client.close_snapshot(part.snapshot)
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert values(found) == table


def test_joins_and_functions(spark: SparkSession, address: str, topic: str, table: dict[str, str]) -> None:
    asked = spark.createDataFrame([(key,) for key in KEYS], "key string")
    found = lookup(asked, topic, "key", address=address).collect()
    assert {row.key: bytes(row.value).decode() for row in found if row.value is not None} == table
    assert lookup(asked, topic, "key", how="anti", address=address).count() == COUNT - len(table)
    if features().arrow_udf:
        got = asked.select("key", krappy_get(topic, "key", address=address).alias("value")).collect()
        assert {row.key: bytes(row.value).decode() for row in got if row.value is not None} == table
