"""Bulk loads: in the order of keys, all at once, and each row once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

import krappy.spark
from krappy.blocking import Client
from krappy.errors import ConfigError
from krappy.spark import awaiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20_000


def keys_of(client: Client, topic: str, partition: int) -> list[bytes | None]:
    with client.consumer(topic, partitions=[partition], end="now") as consumer:
        return [event.key for event in consumer]


def at_end(client: Client, topic: str) -> bool:
    return all(each.applied == each.high_watermark for each in client.describe(topic).partitions)


def test_a_bulk_load_from_parquet(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, 2, {"cleanup.policy": "compact"})
    numbers = spark.range(0, ROWS, 1, 4)
    rows = numbers.select(
        sf.sha1(sf.col("id").cast("string")).alias("key"),
        sf.concat(sf.lit("new "), sf.col("id")).alias("value"),
        sf.timestamp_millis(sf.lit(2_000)).alias("timestamp"),
    )
    older = rows.limit(50).select(
        "key", sf.lit("old").alias("value"), sf.timestamp_millis(sf.lit(1_000)).alias("timestamp")
    )
    rows.unionByName(older).write.parquet(str(tmp_path / "rows"))
    loaded = spark.read.parquet(str(tmp_path / "rows"))
    for _ in range(2):
        krappy.spark.bulk_load(loaded, topic, tasks=3, job=topic, address=address)
        assert at_end(client, topic), "the table has all of it"
    table = {entry.key: entry.value for entry in client.table(topic).scan()}
    assert len(table) == ROWS
    assert all(value is not None and value.startswith(b"new ") for value in table.values())
    for partition in range(2):
        keys = keys_of(client, topic, partition)
        assert keys == sorted(keys, key=lambda key: key or b"")
    assert sum(len(keys_of(client, topic, partition)) for partition in range(2)) == ROWS + 50

    krappy.spark.bulk_load(loaded.drop("timestamp").limit(10), topic, address=address, wait=False)
    assert sum(len(keys_of(client, topic, partition)) for partition in range(2)) == ROWS + 60


def test_a_topic_without_a_table(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    """There is nothing to wait for."""
    client.create_topic(topic, 2, {"view.enable": False})
    krappy.spark.bulk_load(spark.range(5).selectExpr("string(id) AS key", "'v' AS value"), topic, address=address)
    assert sum(len(keys_of(client, topic, partition)) for partition in range(2)) == 5


def test_in_a_thread_without_an_active_session(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    client.create_topic(topic)
    rows = spark.range(5).selectExpr("string(id) AS key", "'v' AS value")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(krappy.spark.bulk_load, rows, topic, address=address).result(300)
    assert len(keys_of(client, topic, 0)) == 5

    def write() -> None:
        krappy.spark.activate(spark)
        rows.write.format("krappy").mode("append").options(address=address, topic=topic).save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result(300)
    assert len(keys_of(client, topic, 0)) == 10


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0, 8.0])
    progress = awaiting.progress_of("users", lambda: next(clock))
    for done in (0, 1_000, 1_500, 3_000):
        progress(done, 3_000)
    assert capsys.readouterr().err == (
        "the table of 'users' has taken in 1,000 of 3,000 events\n"
        "the table of 'users' has taken in 3,000 of 3,000 events\n"
    )


def test_a_bulk_load_needs_keys(spark: SparkSession, topic: str) -> None:
    with pytest.raises(ConfigError, match="needs a column 'key'; there are id"):
        krappy.spark.bulk_load(spark.range(3), topic)
