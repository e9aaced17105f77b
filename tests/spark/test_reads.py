"""Reads in a real session: what the planner accepts and refuses, and that Spark gets what the readers give."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException

import krappy.spark
from krappy.blocking import Client
from krappy.errors import SnapshotGone
from krappy.spark.held import from_text
from krappy.spark.versions import features
from krappy.types import Record
from tests.process import wait_until
from tests.served import BROKERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


def reader(spark: SparkSession, address: str, topic: str) -> DataFrameReader:
    return spark.read.format("krappy").option("address", address).option("subscribe", topic)


def test_a_log(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    with client.producer(topic) as producer:
        for number in range(1000):
            headers = {"n": str(number)} if number % 3 else None
            producer.send(f"v{number}", key=f"k{number % 10}", headers=headers, timestamp=1_700_000_000_000 + number)
        producer.send(None, key="k1")
        producer.send("no key")
    log = reader(spark, address, topic).option("includeHeaders", "true").option("minPartitions", "5").load()
    assert log.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert log.count() == log.count() == 1002
    log.createOrReplaceTempView("events")
    [row] = spark.sql("SELECT * FROM events WHERE value = 'v7'").collect()
    assert (row.key, row.topic, row.timestampType) == (b"k7", topic, 0)
    assert row.timestamp == datetime(2023, 11, 14, 22, 13, 20, 7000)
    assert [(each.key, each.value) for each in row.headers] == [("n", b"7")]
    [counted] = spark.sql(
        "SELECT count(key) keys, count(value) values, count(headers) told, count(DISTINCT partition) partitions, "
        "sum(length(value)) size FROM events"
    ).collect()
    sizes = sum(len(f"v{number}") for number in range(1000)) + len("no key")
    assert tuple(counted) == (1001, 1001, 666, 3, sizes)
    joined = log.where("partition = 0").join(log.where("partition = 1"), "offset").count()
    ends = client.offsets(topic)
    assert joined == min(ends[0], ends[1])
    some = reader(spark, address, topic).option("columns", "value").option("limit", "5").load()
    assert [row.asDict().keys() for row in some.collect()] == [{"value"}] * 5


def test_what_the_planner_refuses(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    """load() refuses it where that is possible; else it is refused when a query is planned, and not later."""
    with pytest.raises(AnalysisException, match="has no option 'startingoffset'; the nearest is 'startingOffsets'"):
        reader(spark, address, topic).option("startingOffset", "earliest").load()
    with pytest.raises(AnalysisException, match="give address=HOST:PORT"):
        spark.read.format("krappy").option("kafka.bootstrap.servers", address).option("subscribe", topic).load()
    with pytest.raises(AnalysisException, match="exactly one of the options subscribe"):
        spark.read.format("krappy").load()
    with pytest.raises(AnalysisException, match="there is no topic"):
        reader(spark, address, topic).load().count()
    with pytest.raises(AnalysisException, match=r"leave .schema\(\) out.*let CREATE TABLE have struct<key:binary,"):
        reader(spark, address, topic).schema("key STRING").load().count()
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW users USING krappy OPTIONS"):
        spark.sql(f"CREATE TABLE never USING krappy OPTIONS (subscribe '{topic}')")
    with pytest.raises(AnalysisException, match=r"(?i)connection|refused|answer"):
        reader(spark, "127.0.0.1:1", topic).load().count()
    client.create_topic(topic)
    with pytest.raises(AnalysisException, match=r"DATA_SOURCE_PUSHDOWN_DISABLED|option pushdown: .* PySpark 4\.1"):
        reader(spark, address, topic).option("mode", "table").option("pushdown", "true").load().count()
    with client.producer(topic) as producer:
        producer.send("v", key=b"\xff")
    with pytest.raises(PythonException, match="keys that are not UTF-8: read them with keyType=binary"):
        reader(spark, address, topic).option("keyType", "string").load().count()


@pytest.fixture(scope="module")
def users(client: Client) -> str:
    """u000 … u999 in 3 partitions. u007 is deleted; u001 is in a second partition, too, where its newest entry is."""
    client.create_topic("reads-users", partitions=3)
    with client.producer("reads-users") as producer:
        producer.send_many([Record(b"old", f"u{number:03}".encode()) for number in range(1000)])
        producer.send_many([Record(f"v{number}".encode(), f"u{number:03}".encode()) for number in range(1000)])
        producer.send(None, key="u007")
        home = client.table("reads-users").get("u001")
        assert home is not None
        # In a cluster no broker has all rows of a topic with such a key.
        producer.send("elsewhere", key="u001", partition=(home.partition + 1) % 3 if BROKERS == 1 else None)
    return "reads-users"


ALIVE = Counter({f"u{number:03}": 1 for number in range(1000) if number != 7})


def keys(found: DataFrame) -> Counter[str]:
    """How many rows each key has."""
    return Counter(
        row.key if isinstance(row.key, str) else bytes(row.key).decode() for row in found.select("key").collect()
    )


def expected(*some: str) -> Counter[str]:
    return Counter({key: ALIVE[key] for key in some if key in ALIVE})


def test_a_plain_load_is_right_whatever_is_made_of_it(spark: SparkSession, address: str, users: str) -> None:
    """Each of these is wrong when filters are pushed in Spark's way."""
    table = reader(spark, address, users).option("mode", "table").option("keyType", "string").load()
    assert table.where("key = 'u005'").count() == 1
    assert table.count() == 999
    assert keys(table.where("key = 'u002'").union(table.where("key = 'u003'"))) == expected("u002", "u003")
    table.createOrReplaceTempView("users")
    assert spark.sql("SELECT * FROM users WHERE key = 'u001'").count() == 1
    assert spark.sql("SELECT * FROM users").count() == 999


def test_conditions_of_a_table_are_looked_up(spark: SparkSession, address: str, users: str) -> None:
    table = krappy.spark.table(spark, users, address=address, keyType="string", columns=["key", "value"])
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled", None)
    conditions: list[tuple[str, dict[str, str], Counter[str]]] = [
        ("key = 'u001' AND value = 'elsewhere'", {"keys": '["dTAwMQ=="]'}, Counter(["u001"])),
        ("key IN ('u005', 'u007', 'x')", {"keys": '["dTAwNQ==", "dTAwNw==", "eA=="]'}, expected("u005")),
        ("key LIKE 'u99%'", {"keyFrom": "dTk5", "keyTo": "dTk6"}, expected(*(f"u99{n}" for n in range(10)))),
        ("key > 'u998' AND key <= 'u999'", {"keyFrom": "dTk5OAA=", "keyTo": "dTk5OQA="}, expected("u999")),
        ("key = 'u005' OR value = 'v6'", {}, expected("u005", "u006")),
    ]
    for condition, narrowed, found in conditions:
        options = table.key_options(condition)
        assert options == ({**narrowed, "keyEncoding": "base64"} if narrowed else {}), condition
        assert keys(table.df(**options).where(condition)) == found, condition
    assert table.key_options("key = 'u005'") == {"keys": '["dTAwNQ=="]', "keyEncoding": "base64"}  # after one with none
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled", None) == before

    one = table.where("key = 'u001'")  # what is made of it is right, too
    assert keys(one.where("value = 'elsewhere'").union(one)) == Counter({"u001": 2})
    assert keys(one.where("key = 'u002'").union(one)) == expected("u001")
    assert one.count() == 1
    assert keys(table.where("key = 'u002'").union(table.where("key = 'u003'"))) == expected("u002", "u003")
    assert keys(table.where("key = 'u005' AND key = 'u006'")) == Counter()
    assert table.columns == ["key", "value"]
    assert keys(table.lookup(["u005", b"u006", "nobody"])) == expected("u005", "u006")
    many = [f"u{number:03}" for number in range(0, 1000, 2)]
    assert keys(table.where(table.key.isin(many))) == expected(*many)


def test_binary_keys_are_looked_up(spark: SparkSession, address: str, users: str) -> None:
    table = krappy.spark.table(spark, users, address=address)
    assert table.key_options("key = X'75303035'") == {"keys": '["dTAwNQ=="]', "keyEncoding": "base64"}
    assert keys(table.where("key = X'75303035'")) == expected("u005")
    assert keys(table.where("key = 'u005'")) == expected("u005")
    assert table.key_options("key = 'u005'") == {"keys": '["dTAwNQ=="]', "keyEncoding": "base64"}
    assert table.key_options("key >= X'75393938'") == {"keyFrom": "dTk5OA==", "keyEncoding": "base64"}
    assert keys(table.where("key >= X'75393938'")) == expected("u998", "u999")


def test_a_table_is_loaded_anew_for_each_use(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    client.create_topic(topic)
    table = krappy.spark.table(spark, topic, address=address, keyType="string", minPartitions=2)
    with table.snapshot() as before, client.producer(topic) as producer:
        producer.send("v", key="k")
        producer.flush()
        assert keys(table.where("key = 'k'")) == Counter(["k"])
        producer.send("v", key="k2")
        producer.flush()
        assert keys(table.where("key LIKE 'k%'")) == Counter(["k", "k2"])
        with table.snapshot("5m", minPartitions=4) as held:
            producer.send(None, key="k")
            producer.flush()
            assert held.offsets == {0: 2}
            assert keys(held.df()) == keys(held.where("key < 'x'")) == Counter(["k", "k2"])
            assert keys(held.where("key = 'k'")) == Counter(["k"])
            since = reader(spark, address, topic).option("startingOffsets", held.starting_offsets).load()
            assert [(row.offset, row.value) for row in since.collect()] == [(2, None)]
            ended = held.df()
        assert keys(before.df()) == Counter()
        with pytest.raises(PythonException, match="the snapshot that this DataFrame reads has ended"):
            ended.count()


@pytest.mark.skipif(not features().push_filters, reason="PySpark before 4.1 passes no filters on")
def test_pushdown_in_spark_s_own_way(spark: SparkSession, address: str, users: str) -> None:
    """The answer is right for those who load the table anew for each query."""
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting) or "false"
    spark.conf.set(setting, "true")
    try:
        for condition, found in (("key = 'u005'", expected("u005")), ("key LIKE 'u00%'", None)):
            loaded = reader(spark, address, users).option("mode", "table").option("pushdown", "true")
            table = loaded.option("keyType", "string").load().where(condition)
            assert keys(table) == (found or expected(*(f"u00{number}" for number in range(10))))
    finally:
        spark.conf.set(setting, before)


def test_a_reader_that_is_cancelled_leaves_nothing_behind(
    spark: SparkSession, client: Client, address: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=2)
    with client.producer(topic) as producer:
        value = os.urandom(10_000)
        producer.send_many([Record(value, str(number).encode()) for number in range(2000)])
    held = krappy.spark.table(spark, topic, address=address).snapshot()
    id = from_text(held._text).id
    folder = str(tmp_path)

    def slow(rows: Any) -> None:
        """Takes one row, says so, and takes no more until it is killed."""
        next(rows)
        Path(folder, f"reading-{os.getpid()}").touch()
        for _ in range(1200):
            time.sleep(0.05)

    failed: list[BaseException] = []

    def job() -> None:
        spark.sparkContext.setJobGroup("cancelled", "a read that is cancelled", interruptOnCancel=True)
        try:
            held.df().foreachPartition(slow)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    try:
        wait_until(lambda: any(tmp_path.iterdir()) or not thread.is_alive(), "a task has read something")
        client.keep_snapshot(id)
    finally:
        spark.sparkContext.cancelJobGroup("cancelled")
        thread.join(60)
    assert not thread.is_alive()
    assert failed
    assert any(tmp_path.iterdir()), failed
    client.keep_snapshot(id, 0.1)  # no reader that was forgotten prolongs the snapshot's life

    def gone() -> bool:
        try:
            list(client.read_snapshot(id, from_text(held._text).ranges[0]))
        except SnapshotGone:
            return True
        time.sleep(0.3)
        return False

    wait_until(gone, "the snapshot has ended")


def test_options_as_json_of_what_was_read(spark: SparkSession, client: Client, address: str, topic: str) -> None:
    """So that a job can go on where the last one ended."""
    client.create_topic(topic, partitions=2)
    with client.producer(topic) as producer:
        for number in range(20):
            producer.send(str(number), partition=number % 2)
    first = reader(spark, address, topic).option("endingOffsets", json.dumps({topic: {0: 4, 1: 7}})).load()
    ends = {
        row.partition: row.end
        for row in first.groupBy("partition").agg({"offset": "max"}).toDF("partition", "end").collect()
    }
    assert ends == {0: 3, 1: 6}
    rest = json.dumps({topic: {partition: end + 1 for partition, end in ends.items()}})
    assert reader(spark, address, topic).option("startingOffsets", rest).load().count() == 9
