"""Events whose timestamps are in no calendar: they are read as null, are reported once, and never stop a read."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import krappy.spark
from krappy.blocking import Client
from krappy.clients.blocks import ColumnBlock
from krappy.spark import blocks
from krappy.spark.schema import arrow_schema, spark_schema
from tests.spark.rows import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = 1_700_000_000_123
STRANGE = {
    "nanoseconds": NOW * 1_000_000,
    "the largest": 2**63 - 1,
    "in year 10000": 253_402_300_800_000,
    "of the last day": 253_402_300_799_999,
}
ANY_TIME = {"message.timestamp.after.max.ms": 2**63 - 1}


@pytest.fixture
def times(client: Client, topic: str) -> str:
    """A topic with such events, as they were stored before the broker refused them."""
    client.create_topic(topic, 1, ANY_TIME)
    with client.producer(topic) as producer:
        for name, time in {"good": NOW, **STRANGE, "good too": NOW + 1}.items():
            producer.send("v", key=name, timestamp=time)
        for _ in range(100):
            producer.send("v", key="good", timestamp=NOW)
    return topic


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_told", set())


def as_read(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["key"].decode(): row["timestamp"] for row in found}


EXPECTED = {
    "good": datetime.fromtimestamp(NOW / 1000, UTC),
    "good too": datetime.fromtimestamp((NOW + 1) / 1000, UTC),
    **dict.fromkeys(STRANGE),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": "timestamp,key"},
        {"mode": "table"},
        {"mode": "table", "columns": "timestamp,key"},
        {"mode": "table", "minPartitions": 2},
        {"keys": json.dumps([*EXPECTED, "nobody"])},
    ],
)
def test_they_are_null_and_one_of_them_is_told(
    address: str, times: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert as_read(rows(address, subscribe=times, **options)) == EXPECTED
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, told
    offset = next(number for number, time in enumerate([NOW, *STRANGE.values()]) if f"timestamp {time} ms" in told[0])
    assert told[0].startswith(f"{times}-0 offset {offset}: its timestamp ")


def test_no_more_lines_than_so_many(caplog: pytest.LogCaptureFixture) -> None:
    shape = arrow_schema(spark_schema(("timestamp",)))
    strange = (2**62).to_bytes(8, "little", signed=True)
    with caplog.at_level(logging.WARNING):
        for partition in range(3 * blocks.MOST_TOLD):
            block = ColumnBlock(partition, 2, timestamps=strange * 2, offsets=bytes(16))
            assert blocks.of_block(block, shape, "t").to_pylist() == [{"timestamp": None}] * 2
    assert len(caplog.records) == blocks.MOST_TOLD


def test_spark_reads_joins_and_streams_them(spark: SparkSession, address: str, times: str, tmp_path: Path) -> None:
    expected = {name: time and time.replace(tzinfo=None) for name, time in EXPECTED.items()}
    load = spark.read.format("krappy").option("address", address).option("subscribe", times).option("keyType", "string")
    assert {row.key: row.timestamp for row in load.load().collect()} == expected
    table = krappy.spark.table(spark, times, address=address, keyType="string")
    assert {row.key: row.timestamp for row in table.collect()} == expected
    assert {row.key: row.timestamp for row in table.lookup(list(expected)).collect()} == expected
    asked = spark.createDataFrame([(name,) for name in expected], "name STRING")
    joined = krappy.spark.lookup(asked, times, "name", columns=["timestamp"], address=address)
    assert {row.name: row.timestamp for row in joined.collect()} == expected
    loading = spark.readStream.format("krappy").option("address", address).option("subscribe", times)
    stream = loading.option("startingOffsets", "snapshot").option("keyType", "string").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("strange_times")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert {row.key: row.timestamp for row in spark.table("strange_times").collect()} == expected


def test_an_events_time_is_the_nearest(client: Client, times: str) -> None:
    with client.consumer(times, end="now") as consumer:
        found = {event.key.decode(): event.time for event in consumer if event.key}
    assert found["good"] == EXPECTED["good"]
    assert found["the largest"] == datetime.max.replace(tzinfo=UTC)
    assert found["of the last day"].year == 9999
