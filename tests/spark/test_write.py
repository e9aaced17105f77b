"""Batch writes: what arrives, and that it arrives once or not at all, whatever fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from krappy.blocking import Client
from krappy.clients.staging import StagedJob
from krappy.errors import KrappyError, StagingFenced
from krappy.spark.outgoing import outgoing
from krappy.spark.schema import arrow_schema, spark_schema
from krappy.spark.staged import SparkJob, StagedWrite, TaskAttempt, abort_all, commit_all, stage_all
from krappy.types import Event
from tests.long import long
from tests.process import wait_until
from tests.spark.faults import DIED, PUBLISHED, STAGED, FailingSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


def events(client: Client, topic: str) -> list[Event]:
    with client.consumer(topic, end="now") as consumer:
        return list(consumer)


def values(client: Client, topic: str) -> list[bytes | None]:
    return sorted((event.value for event in events(client, topic)), key=lambda value: value or b"")


def writer(df: DataFrame, address: str, source: str = "krappy", **options: Any) -> DataFrameWriter:
    return df.write.format(source).options(address=address, **options).mode("append")


def numbers(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(sf.col("id").cast("string").alias("value"))


def with_rows(client: Client) -> list[StagedJob]:
    """The jobs that have staged rows. Other tests of this broker have asked whether a job is published: the empty run
    of such a job stays for a minute."""
    return [each for each in client.staged_jobs() if each.attempts]


def test_every_column_arrives(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    for name in (f"{topic}-a", f"{topic}-b"):
        client.create_topic(name, 3)
    rows = spark.sql(
        f"""SELECT * FROM VALUES
        ('{topic}-a', 'k1', 'v1', 2, timestamp_millis(1700000000123), array(struct('h', x'01'))),
        ('{topic}-b', 'k2', 'v2', null, null, null),
        ('{topic}-a', 'k1', null, 2, timestamp_millis(1700000000124), array(struct('h', CAST(null AS binary)))),
        ('{topic}-b', null, 'v3', 1, null, array())
        AS t(topic, key, value, partition, timestamp, headers)"""
    ).withColumn("headers", sf.col("headers").cast("array<struct<key:string,value:binary>>"))
    writer(rows.coalesce(1), address).save()
    first, second = events(client, f"{topic}-a")
    assert (first.key, first.value, first.partition) == (b"k1", b"v1", 2)
    assert (first.timestamp, first.headers) == (1_700_000_000_123, (("h", b"\x01"),))
    assert (second.value, second.timestamp, second.headers) == (None, 1_700_000_000_124, (("h", None),))
    by_value = {event.value: event for event in events(client, f"{topic}-b")}
    assert (by_value[b"v3"].key, by_value[b"v3"].partition) == (None, 1)
    entry = client.table(f"{topic}-b").get("k2")
    assert entry is not None
    assert (entry.value, entry.headers) == (b"v2", ())
    deleted = client.table(f"{topic}-a").get("k1", partition=2)
    assert deleted is not None
    assert deleted.deleted, "a null value is a tombstone"


def test_what_was_read_can_be_written(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    """The option topic wins over the column. Each write is a job of its own, so writing twice stores the rows twice."""
    client.create_topic(f"{topic}-to")
    copied = spark.createDataFrame(
        [(bytearray(b"k"), bytearray(b"v"), "elsewhere", 0, 7, 0)],
        "key binary, value binary, topic string, partition int, offset long, timestampType int",
    )
    for _ in range(2):
        writer(copied, address, topic=f"{topic}-to", compression="zstd").save()
    assert values(client, f"{topic}-to") == [b"v", b"v"]


def test_a_task_that_fails_after_writing(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """The task has staged all its rows; it is tried again, and the rows come once."""
    spark.dataSource.register(FailingSource)
    client.create_topic(topic, 3)
    keyed = numbers(spark, 30_000).withColumn("key", sf.col("value"))
    writer(keyed, address, "krappy-failing", topic=topic, failAt=STAGED, failOnce=tmp_path / "once").save()
    assert values(client, topic) == sorted(b"%d" % n for n in range(30_000))
    assert with_rows(client) == []
    assert (tmp_path / "once").exists()


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    client.create_topic(topic, 2)
    df = numbers(spark, 4000)
    bad = df.withColumn(
        "value", sf.when(sf.col("value") == "3999", sf.raise_error(sf.lit("bad row"))).otherwise(df.value)
    )
    with pytest.raises(Exception, match="bad row"):
        writer(bad, address, topic=topic).save()
    there = bad.withColumn("partition", sf.lit(7))
    with pytest.raises(Exception, match="UnknownPartition"):
        writer(there.limit(1), address, topic=topic).save()
    assert events(client, topic) == []
    assert with_rows(client) == []


def test_a_write_that_is_cancelled_leaves_nothing(
    spark: SparkSession, client: Client, address: str, topic: str
) -> None:
    """It is cancelled while rows are staged: its tasks are killed, and the broker keeps nothing of them."""
    client.create_topic(topic, 2)
    endless = numbers(spark, 10**12, 2)  # more than anybody waits for
    failed: list[BaseException] = []

    def job() -> None:
        spark.sparkContext.setJobGroup("write", "a write that is cancelled", interruptOnCancel=True)
        try:
            writer(endless, address, topic=topic).save()
        except Exception as error:
            failed.append(error)

    def staging() -> bool:
        return any(each.size for each in client.staged_jobs())

    thread = threading.Thread(target=job)
    thread.start()
    try:
        wait_until(lambda: staging() or not thread.is_alive(), "something is staged", 300)
    finally:
        spark.sparkContext.cancelJobGroup("write")
        thread.join(120)
    assert failed
    assert not thread.is_alive()
    wait_until(lambda: with_rows(client) == [], "nothing is staged any more", 120)
    assert events(client, topic) == []


def test_a_driver_that_dies_before_the_commit(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """What was staged belongs to nobody; the same job, run again, is published once."""
    spark.dataSource.register(FailingSource)
    client.create_topic(topic, 2)
    job = {"topic": topic, "jobId": f"{topic}-1"}
    with pytest.raises(Exception, match="failed as told: died"):
        writer(numbers(spark, 1000), address, "krappy-failing", failAt=DIED, failOnce=tmp_path / "once", **job).save()
    assert events(client, topic) == []
    assert [each.sealed for each in client.staged_jobs() if each.job.startswith(topic)] == [4]
    for _ in range(2):
        writer(numbers(spark, 1000), address, **job).save()
    assert values(client, topic) == sorted(b"%d" % n for n in range(1000))
    assert with_rows(client) == []


def test_a_commit_whose_answer_is_lost(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """Spark aborts the write, and it fails. But the rows are there, and the same job does not write them again."""
    spark.dataSource.register(FailingSource)
    client.create_topic(topic, 2)
    job = {"topic": topic, "jobId": f"{topic}-1", "failAt": PUBLISHED, "failOnce": tmp_path / "once"}
    with pytest.raises(Exception, match="failed as told: published"):
        writer(numbers(spark, 1000), address, "krappy-failing", **job).save()
    writer(numbers(spark, 1000), address, "krappy-failing", **job).save()
    assert values(client, topic) == sorted(b"%d" % n for n in range(1000))


def test_a_job_id_is_of_one_topic(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    """A second write would count as done already, and its rows would be lost unnoticed."""
    for name in (topic, f"{topic}-2"):
        client.create_topic(name)
    writer(numbers(spark, 10), address, topic=topic, jobId=f"{topic}-job").save()
    with pytest.raises(Exception, match=f"was published already, to {topic}, .*give each write a jobId of its own"):
        writer(numbers(spark, 10), address, topic=f"{topic}-2", jobId=f"{topic}-job").save()
    assert len(values(client, topic)) == 10
    assert values(client, f"{topic}-2") == []


@long
def test_a_job_id_of_a_topic_that_was_made_anew(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    """The new topic has no rows of the job: the job is written to it, and then counts as written again."""
    for _ in range(3):
        client.create_topic(topic, 2)
        for _ in range(2):
            writer(numbers(spark, 10), address, topic=topic, jobId=f"{topic}-job").save()
            assert values(client, topic) == sorted(b"%d" % n for n in range(10))
        client.delete_topic(topic)
    client.create_topic(topic)
    client.create_topic(f"{topic}-2")
    both = (
        numbers(spark, 10)
        .withColumn("topic", sf.lit(topic))
        .unionByName(numbers(spark, 5).withColumn("topic", sf.lit(f"{topic}-2")))
    )
    writer(both, address, jobId=f"{topic}-both").save()
    client.delete_topic(f"{topic}-2")
    client.create_topic(f"{topic}-2")
    for again in (both, both.where(f"topic = '{topic}-2'")):  # no row of either topic may be left out unnoticed
        with pytest.raises(Exception, match="others that it was published to are there still"):
            writer(again, address, jobId=f"{topic}-both").save()
    assert len(values(client, topic)) == 10


def staged(client: Client, topic: str, job: SparkJob, value: bytes) -> StagedWrite:
    schema = spark_schema(("value",))
    batch = pa.RecordBatch.from_pylist([{"value": value}], arrow_schema(schema))
    return stage_all([batch], outgoing(schema, topic), client, job)


def test_an_abort_overtakes_writes(client: Client, topic: str) -> None:
    """A task that is at work, one that comes late, and a commit that comes late."""
    client.create_topic(topic)
    job = SparkJob(f"{topic}-job", False, 60.0)
    first = staged(client, topic, job, b"1")
    with TaskAttempt(client, job) as at_work:
        at_work.stage(topic).send_columns(None, [b"2"])
        abort_all([job.name], client)
        with pytest.raises(StagingFenced):
            at_work.seal()
    with pytest.raises(StagingFenced):
        staged(client, topic, job, b"3")
    with pytest.raises(StagingFenced):
        commit_all([first], client)
    assert events(client, topic) == []


def test_a_job_that_comes_again_after_an_abort_has_another_run(client: Client, topic: str) -> None:
    client.create_topic(topic)
    job = SparkJob(f"{topic}-job", True, 60.0)
    first = staged(client, topic, job, b"1")
    abort_all([first.run], client)
    second = staged(client, topic, job, b"2")
    assert (first.run, second.run) == (f"{job.name}#0", f"{job.name}#1")
    with pytest.raises(KrappyError, match="given up while its tasks wrote"):
        commit_all([first, second], client)
    with pytest.raises(StagingFenced):
        commit_all([first], client)
    commit_all([second, None], client)
    commit_all([second], client)
    third = staged(client, topic, job, b"3")
    assert third.done
    commit_all([third], client)
    abort_all([second.run], client)
    assert values(client, topic) == [b"2"]


def test_of_two_attempts_of_a_task_one_is_published(client: Client, topic: str) -> None:
    """As with speculation: both attempts are sealed, and Spark names the one that won."""
    client.create_topic(topic)
    job = SparkJob(f"{topic}-job", False, 60.0)
    lost, won = staged(client, topic, job, b"same"), staged(client, topic, job, b"same")
    assert lost.tokens != won.tokens
    commit_all([won], client)
    assert values(client, topic) == [b"same"]
    assert with_rows(client) == []


def test_what_cannot_be_written_is_said_at_once(spark: SparkSession, address: str, topic: str) -> None:
    df = numbers(spark, 1)
    with pytest.raises(Exception, match="no column `value`, it has other"):
        writer(df.withColumnRenamed("value", "other"), address, topic=topic).save()
    with pytest.raises(Exception, match="Give the option topic, or a column `topic`"):
        writer(df, address).save()
    with pytest.raises(Exception, match="events are never overwritten"):
        writer(df, address, topic=topic).mode("overwrite").save()
