"""Whole streaming queries: they are stopped and started anew at every step, and go from a table to its changes while it
changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

import krappy.spark
from krappy.blocking import Client
from krappy.spark.versions import features
from krappy.types import Event
from tests.spark.faults import ABORTED, DIED, PUBLISHED, FailingSource
from tests.spark.queries import ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PACE = 0.002  # seconds between two changes: without a pause, a writer would take the CPU from the queries
Seen = list[tuple[int, list["Row"]]]


def source(spark: SparkSession, address: str, topic: str, **options: Any) -> DataFrame:
    return spark.readStream.format("krappy").options(address=address, subscribe=topic, **options).load()


def run(writer: DataStreamWriter, bites: bool = False) -> StreamingQuery:
    """Runs a query to its end; raises what made it fail.

    `bites`: the query has a limit. Before PySpark 4.2, availableNow then ends after the first batch, so the query is
    run until nothing comes.
    """
    query = ended(writer)
    came = query.lastProgress is not None and query.lastProgress["numInputRows"]
    return run(writer, bites) if bites and came and not features().admission_control else query


def collect(
    df: DataFrame, checkpoint: Path, then: Callable[[int], None] = lambda _: None, bites: bool = False
) -> tuple[Seen, dict[str, dict[str, int]]]:
    """The batches of a query, and its lag at the end. `then` is called after each batch."""
    seen: Seen = []

    def see(batch: DataFrame, id: int) -> None:
        seen.append((id, batch.collect()))
        then(id)

    query = run(df.writeStream.foreachBatch(see).option("checkpointLocation", str(checkpoint)), bites)
    return seen, krappy.spark.lag(query.lastProgress or {"sources": []})


def events(client: Client, topic: str) -> list[Event]:
    with client.consumer(topic, end="now") as consumer:
        return list(consumer)


def send(client: Client, topic: str, values: range, partition: int | None = None) -> None:
    with client.producer(topic) as producer:
        producer.send_columns([b"k%d" % n for n in values], [b"%d" % n for n in values], partition=partition)


def test_limits_lag_and_a_restart(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, 2)
    send(client, topic, range(60), 0)
    send(client, topic, range(60, 80), 1)
    bites = source(spark, address, topic, startingOffsets="earliest", maxOffsetsPerTrigger=32)
    more = range(80, 85)
    seen, lag = collect(bites, tmp_path, lambda id: send(client, topic, more, 1) if id == 0 else None, bites=True)
    if features().admission_control:
        assert [len(rows) for _, rows in seen] == [32, 32, 16]
        assert sorted(int(row.value) for _, rows in seen for row in rows) == list(range(80))
        assert lag == {topic: {"0": 0, "1": 5}}
    client.alter_topic(topic, partitions=3)
    send(client, topic, range(85, 90), 2)
    latest = source(spark, address, topic, startingOffsets="latest", columns="value")
    again, _ = collect(latest, tmp_path)
    if features().admission_control:
        assert [id for id, _ in again] == [3], "the checkpoint wins"
    assert sorted(int(row.value) for _, rows in [*seen, *again] for row in rows) == list(range(90))


def test_a_pipeline_that_is_stopped_at_every_step(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """From one topic to another: each event arrives once, wherever the query was when it was stopped."""
    spark.dataSource.register(FailingSource)
    source_topic, to = f"{topic}-in", f"{topic}-out"
    client.create_topic(source_topic, 2)
    client.create_topic(to, 3)
    send(client, source_topic, range(20))

    def step(point: str, spoilt: bool = False) -> None:
        read = source(spark, address, source_topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
        value = sf.raise_error(sf.lit("failed after the source was read")) if spoilt else sf.col("value")
        options: Any = {"failAt": point, "failOnce": tmp_path / point, "topic": to, "address": address}
        options["checkpointLocation"] = tmp_path / "checkpoint"
        rows = read.select("key", value.cast("binary").alias("value"), "timestamp")
        run(rows.writeStream.format("krappy-failing").options(**options), bites=True)

    def staged() -> int:
        return sum(to in job.job for job in client.staged_jobs())

    with pytest.raises(Exception, match="failed after the source was read"):
        step("nowhere", spoilt=True)
    with pytest.raises(Exception, match="failed as told: aborted"):
        step(ABORTED)
    assert staged() == 0
    with pytest.raises(Exception, match="failed as told: died"):
        step(DIED)
    assert events(client, to) == []
    assert staged() == 1
    with pytest.raises(Exception, match="failed as told: published"):
        step(PUBLISHED)
    assert len(events(client, to)) == 10
    step("nowhere")
    sent = {event.value: event.timestamp for event in events(client, source_topic)}
    arrived = events(client, to)
    assert len(arrived) == 20
    assert {event.value: event.timestamp for event in arrived} == sent
    assert staged() == 0


def test_the_options_of_a_stream_that_writes(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """The name and the checkpoint are Spark's own options, and reach the data source with the others."""
    client.create_topic(f"{topic}-in")
    client.create_topic(f"{topic}-out")
    with client.producer(f"{topic}-in") as producer:
        producer.send(bytes(50_000), key="k")
    rows = source(spark, address, f"{topic}-in", startingOffsets="earliest", columns="key,value")
    writer = rows.writeStream.format("krappy").queryName("copy").options(topic=f"{topic}-out", address=address)
    given = {"compression": "zstd", "stagingTtl": "1m", "checkpointLocation": str(tmp_path / "at")}
    assert run(writer.options(**given)).name == "copy"
    assert (tmp_path / "at" / "commits" / "0").exists()
    assert [event.value for event in events(client, f"{topic}-out")] == [bytes(50_000)]
    assert client.describe(f"{topic}-out").partitions[0].size < 10_000
    with pytest.raises(Exception, match="'jobId' is for write, and this is writeStream"):
        run(writer.options(**{**given, "jobId": "j", "checkpointLocation": str(tmp_path / "other")}))


def test_from_the_table_to_its_changes_while_it_changes(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """The first batch fails and is replayed, others write all the time, and every event after the snapshot comes."""
    client.create_topic(topic, 3, {"cleanup.policy": "compact"})
    send(client, topic, range(500))
    stop, ready = threading.Event(), threading.Event()

    def change() -> None:
        with client.producer(topic) as producer:
            count = 0
            while not stop.is_set() or count < 100:
                value = None if count % 7 == 0 else f"change {count}"
                producer.send(value, key=f"k{count % 600}").result()
                count += 1
                if count == 50:
                    ready.set()
                stop.wait(PACE)

    def fail(_: int) -> None:
        raise RuntimeError("this sink fails")

    stream = source(spark, address, topic, startingOffsets="snapshot", snapshotTtl="5m")
    writer = threading.Thread(target=change)
    writer.start()
    try:
        assert ready.wait(60)
        with pytest.raises(Exception, match="this sink fails"):
            collect(stream, tmp_path, fail)
        seen, _ = collect(stream, tmp_path)
    finally:
        stop.set()
        writer.join()
    for partition in range(3):
        send(client, topic, range(1000, 1001), partition)
    rest, lag = collect(stream, tmp_path)
    log = {(event.partition, event.offset): event for event in events(client, topic)}
    (first, table), *changes = [*seen, *rest]
    assert first == 0
    at = {(row.partition, row.offset) for row in table}
    came = [(row.partition, row.offset) for _, rows in changes for row in rows]
    assert len(at | set(came)) == len(table) + len(came), "no event comes twice"
    begins = {partition: min(offset for at, offset in came if at == partition) for partition in range(3)}
    folded = {}
    for (partition, offset), event in sorted(log.items()):
        if offset < begins[partition]:
            folded[event.key] = event
    alive = {(event.partition, event.offset) for event in folded.values() if event.value is not None}
    assert at == alive, "the table, as it was at these offsets"
    assert set(came) == {(partition, offset) for partition, offset in log if offset >= begins[partition]}
    assert lag == ({topic: {"0": 0, "1": 0, "2": 0}} if features().admission_control else {})


def test_a_running_count_into_a_compacted_topic(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    """Update mode: the changed rows of an aggregate are upserts, once each, even if a batch is replayed."""
    source_topic, to = f"{topic}-in", f"{topic}-counts"
    client.create_topic(source_topic)
    client.create_topic(to, 2, {"cleanup.policy": "compact"})
    send(client, source_topic, range(20))
    read = source(spark, address, source_topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    counts = read.groupBy((sf.col("value").cast("string").cast("int") % 2).cast("string").alias("key")).count()
    upserts = counts.select("key", sf.col("count").cast("string").alias("value")).writeStream.outputMode("update")
    upserts = upserts.option("checkpointLocation", str(tmp_path))
    write, calls = krappy.spark.batches_to(to, address=address), []

    def fail_behind_it(batch: DataFrame, id: int) -> None:
        write(batch, id)
        calls.append(id)
        if len(calls) == 2:
            raise RuntimeError("failed after it was published")

    with pytest.raises(Exception, match="failed after it was published"):
        run(upserts.foreachBatch(fail_behind_it), bites=True)
    run(upserts.foreachBatch(fail_behind_it), bites=True)
    assert calls == [0, 1, 1]
    found = sorted((event.key, event.value) for event in events(client, to))
    assert found == [(b"0", b"10"), (b"0", b"5"), (b"1", b"10"), (b"1", b"5")]


def test_two_writes_of_one_batch(spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path) -> None:
    """The second one would count as a replay of the first, and be lost unnoticed."""
    source_topic, to = f"{topic}-in", f"{topic}-out"
    client.create_topic(source_topic)
    client.create_topic(to)
    send(client, source_topic, range(10))
    rows = source(spark, address, source_topic, startingOffsets="earliest").select("key", "value")

    def twice(*names: str | None) -> None:
        def write(batch: DataFrame, id: int) -> None:
            for low, name in zip((True, False), names, strict=True):
                part = batch.where("int(string(value)) < 5" if low else "int(string(value)) >= 5")
                krappy.spark.batches_to(to, address=address, name=name)(part, id)

        run(rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / str(names))))

    with pytest.raises(Exception, match="the batch 0 was written there already"):
        twice(None, None)
    assert len(events(client, to)) == 5
    twice(f"{topic}-low", f"{topic}-high")
    assert len(events(client, to)) == 15
