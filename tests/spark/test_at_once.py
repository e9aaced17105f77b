"""A few keys looked up without a job: the same rows as a query reads, of the same types; and what queries are left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import krappy.spark
from krappy.blocking import Client
from krappy.errors import SnapshotGone, UnknownTopic, ViewDisabled
from krappy.spark import at_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "key,value,topic,partition,offset,timestamp,headers,deleted"


@pytest.fixture
def users(client: Client, topic: str) -> str:
    """u0 to u19 in two partitions; u3 deleted, u4 elsewhere than its hash names, too."""
    client.create_topic(topic, 2)
    with client.producer(topic) as producer:
        for number in range(20):
            headers = {"n": str(number), "none": None} if number % 2 else None
            producer.send(f"v{number}", key=f"u{number}", headers=headers, timestamp=1_700_000_000_123 + number)
        producer.send(None, key="u3", timestamp=5)
        for partition in range(2):
            producer.send("here", key="u4", partition=partition, timestamp=6)
    return topic


@pytest.mark.parametrize("key_type", ["binary", "string"])
@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_as_a_query_reads_it(spark: SparkSession, address: str, users: str, zone: str, key_type: str) -> None:
    options: dict[str, Any] = {"address": address, "columns": COLUMNS, "keyType": key_type, "tombstones": True}
    table = krappy.spark.table(spark, users, **options)
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for keys in (["u1", "u2", "u3", "u4", "u4", "nobody"], ["nobody"], []):
            mine = table.lookup(keys)
            read = table.df(keys=json.dumps(keys))
            assert mine.schema == read.schema
            assert sorted(map(str, mine.collect())) == sorted(map(str, read.collect()))
            assert mine.count() == read.count()
        condition = "key IN ('u1', 'u4') AND length(headers[0].key) = 1 AND timestamp > '2001-01-01'"
        assert table.where(condition).collect() == table.df().where(condition).collect()
        with table.snapshot() as held:
            assert held.where("key = 'u4'").count() == 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_no_job_is_run_and_the_rows_stay(spark: SparkSession, client: Client, address: str, users: str) -> None:
    context = spark.sparkContext
    context.setJobGroup("at-once", "lookups")
    try:
        table = krappy.spark.table(spark, users, address=address, keyType="string")
        found = table.where("key = 'u1'")
        assert [row.value for row in found.collect()] == [b"v1"]
        with client.producer(users) as producer:
            producer.send("other", key="u1").result()
        assert [row.value for row in found.collect()] == [b"v1"]
        assert [row.value for row in table.where("key = 'u1'").collect()] == [b"other"]
        assert not context.statusTracker().getJobIdsForGroup("at-once")
        assert table.where("key LIKE 'u1%'").count() == 11
        assert context.statusTracker().getJobIdsForGroup("at-once")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_much_is_left_to_tasks(spark: SparkSession, address: str, users: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = krappy.spark.table(spark, users, address=address, keyType="string")
    keys = [f"u{number}" for number in range(20)]
    options = {**table.options, "keys": json.dumps(keys)}
    assert at_once.load(spark, options) is not None
    monkeypatch.setattr(at_once, "MOST_BYTES", 100)
    assert at_once.load(spark, options) is None
    assert table.lookup(keys).count() == table.where(table.key.isin(keys)).count() == 20
    monkeypatch.undo()
    monkeypatch.setattr(at_once, "MOST_KEYS", 19)
    assert at_once.load(spark, options) is None
    assert table.lookup(keys).count() == 20


def test_errors_come_as_they_are(spark: SparkSession, client: Client, address: str, users: str) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'nowhere'"):
        krappy.spark.table(spark, "nowhere", address=address).lookup(["k"])
    table = krappy.spark.table(spark, users, address=address)
    with table.snapshot() as held:
        pass
    with pytest.raises(SnapshotGone, match="the snapshot that this DataFrame reads has ended"):
        held.where("key = 'u1'")
    client.alter_topic(users, {"view.enable": False})
    with pytest.raises(ViewDisabled):
        table.where("key = 'u1'")
