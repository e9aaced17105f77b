"""A few keys are looked up without a job: the rows and their types are those that a query reads. And what is left to
queries."""

from __future__ import annotations

import base64
import json
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import krappy.spark
from krappy.blocking import Client
from krappy.errors import SnapshotGone, UnknownTopic, ViewDisabled
from krappy.spark import at_once
from tests.long import some
from tests.served import BROKERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "key,value,topic,partition,offset,timestamp,headers,deleted"


@pytest.fixture
def users(client: Client, topic: str) -> str:
    """u0 to u19 in two partitions. u3 is deleted, and u4 stands also in another partition than its hash names. (In a
    cluster it does not: no broker could tell which of its rows is the latest.)"""
    client.create_topic(topic, 2)
    with client.producer(topic) as producer:
        for number in range(20):
            headers = {"n": str(number), "none": None} if number % 2 else None
            producer.send(f"v{number}", key=f"u{number}", headers=headers, timestamp=1_700_000_000_123 + number)
        producer.send(None, key="u3", timestamp=5)
        for partition in [0, 1] if BROKERS == 1 else [None]:
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
            assert held.where("key = 'u4'").count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_no_job_is_run_and_each_action_looks_again(
    spark: SparkSession, client: Client, address: str, users: str
) -> None:
    context = spark.sparkContext
    context.setJobGroup("at-once", "lookups")
    try:
        table = krappy.spark.table(spark, users, address=address, keyType="string")
        found = table.where("key = 'u1'")
        assert [row.value for row in found.collect()] == [b"v1"]
        with client.producer(users) as producer:
            producer.send("other", key="u1").result()
        assert [row.value for row in found.collect()] == [b"other"]
        assert [row.value for row in found.take(5)] == [b"other"]
        assert [row.value for row in (found.first(), found.head()) if row is not None] == [b"other"] * 2
        assert not context.statusTracker().getJobIdsForGroup("at-once")
        looked_up = table.lookup(["u1", "u2"])
        assert (looked_up.count(), looked_up.isEmpty()) == (2, False)
        with client.producer(users) as producer:
            producer.send(None, key="u2").result()
        assert looked_up.count() == 1
        assert looked_up.toArrow()["value"].to_pylist() == [b"other"]
        assert [row.value for row in looked_up.toLocalIterator()] == [b"other"]
        looked_up.show()
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
    assert table.lookup(keys).count() == table.where(table.key.isin(keys)).count() == 19
    monkeypatch.undo()
    monkeypatch.setattr(at_once, "MOST_KEYS", 19)
    assert at_once.load(spark, options) is None
    assert table.lookup(keys).count() == 19


def test_errors_come_as_they_are(spark: SparkSession, client: Client, address: str, users: str, topic: str) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'nowhere'"):
        krappy.spark.table(spark, "nowhere", address=address).lookup(["k"]).collect()
    table = krappy.spark.table(spark, users, address=address)
    with table.snapshot() as held:
        pass
    with pytest.raises(SnapshotGone, match="the snapshot that this DataFrame reads has ended"):
        held.where("key = 'u1'").collect()
    client.create_topic(f"{topic}-off", config={"view.enable": False})
    with pytest.raises(ViewDisabled):
        krappy.spark.table(spark, f"{topic}-off", address=address).where("key = 'u1'").collect()


def test_it_is_a_dataframe_like_any_other(spark: SparkSession, client: Client, address: str, users: str) -> None:
    """Whatever is made of the DataFrame is read anew at each use, as with ranges: nothing that was read is kept."""
    table = krappy.spark.table(spark, users, address=address, keyType="string")
    conditions = ("key = 'u1'", "key IN ('u1', 'nobody')", "key = 'u1' OR key = 'nobody'", "key BETWEEN 'u1' AND 'u1'")
    found = {condition: table.where(condition) for condition in some(conditions, 3)}
    for value in ("one", "two"):
        with client.producer(users) as producer:
            producer.send(value, key="u1").result()
        for condition, rows in found.items():
            assert isinstance(rows, DataFrame)
            assert rows.columns == table.columns
            for how, each in _made_of(spark, rows).items():
                assert [bytes(row.value).decode() for row in each.collect()] == [value], (condition, how)
    spark.catalog.dropTempView("found_at_once")


def _made_of(spark: SparkSession, found: DataFrame) -> dict[str, DataFrame]:
    found.createOrReplaceTempView("found_at_once")
    return {
        "itself": found,
        "columns": found.select("value"),
        "more": found.where("offset >= 0").drop("topic"),
        "joined": found.join(spark.createDataFrame([("u1",)], "key STRING"), "key"),
        "both": found.unionByName(found).distinct(),
        "counted": found.groupBy("value").count(),
        "sql": spark.sql("SELECT * FROM found_at_once"),
    }


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("key = 'u1' OR key = 'u2'", ["u1", "u2"]),
        ("(key = 'u1' OR (key = 'u2' OR key IN ('u3', 'u4'))) OR key <=> 'u5'", ["u1", "u2", "u3", "u4", "u5"]),
        ("(key = 'u1' AND offset >= 0) OR (length(value) > 1 AND 'u2' = key)", ["u1", "u2"]),
        ("(key = 'u1' OR key = 'u2') AND key = 'u2'", ["u2"]),
        ("(key = 'u1' OR key = 'u2') AND (key = 'u2' OR key = 'u4') AND offset >= 0", ["u2"]),
        ("key = 'u1' OR key = NULL", ["u1"]),
        (" OR ".join(f"key = 'u{number}'" for number in range(20)), [f"u{number}" for number in range(20)]),
    ],
)
def test_keys_that_or_joins_are_looked_up(
    spark: SparkSession, address: str, users: str, condition: str, keys: list[str]
) -> None:
    table = krappy.spark.table(spark, users, address=address, keyType="string")
    asked = table.key_options(condition)
    assert sorted(base64.b64decode(each).decode() for each in json.loads(asked["keys"])) == sorted(keys)
    assert sorted(table.where(condition).collect()) == sorted(table.df().where(condition).collect())


@pytest.mark.parametrize(
    "condition",
    [
        "key = 'u1' OR offset > 10",
        "key = 'u1' OR key > 'u18'",
        "key < 'u1' OR key BETWEEN 'u12' AND 'u15'",
        "key LIKE 'u1%' OR key = 'u5'",
        "NOT (key = 'u1' OR key = 'u2')",
        "key = 'u1' OR key = topic",
        "key > 'u5' OR key IS NULL",
        "CASE WHEN key = 'u1' OR offset > 1 AND key = 'u2' THEN false ELSE true END",
        "(SELECT max(id) FROM range(3) WHERE id > 1 AND key = 'u1') = 2",
        "(key = 'u1') = false",
        "key = 'u' '1' OR key = 'u2'",
        "key LIKE 'u_' AND key NOT BETWEEN 'u2' AND 'u3' AND offset BETWEEN 1 AND 9",
        "'u15' >= key AND key > X'7531'",
    ],
)
def test_what_or_joins_otherwise_is_what_spark_says(
    spark: SparkSession, address: str, users: str, condition: str
) -> None:
    table = krappy.spark.table(spark, users, address=address, keyType="string")
    assert sorted(table.where(condition).collect()) == sorted(table.df().where(condition).collect())


def test_columns_are_read_as_text_is(spark: SparkSession, address: str, users: str) -> None:
    table = krappy.spark.table(spark, users, address=address, keyType="string")
    key, offset, lit = table.key, table["offset"], sf.lit
    many = [f"u{number}" for number in range(100)]
    same = [
        (key == "u1", "key = 'u1'"),
        (lit("u1") == key, "key = 'u1'"),
        (key.eqNullSafe("u1") & (offset > 5), "key = 'u1'"),
        (key.isin("u1", "u2") & (sf.length("value") > 0) & (key > "u1"), "key = 'u2'"),
        ((key == "u1") | (key == "u2"), "key IN ('u1', 'u2')"),
        (reduce(or_, [key == each for each in many]), " OR ".join(f"key = '{each}'" for each in many)),
        (reduce(and_, [key > "u1"] * 100), "key > 'u1'"),
        (key.between("u1", "u2"), "key BETWEEN 'u1' AND 'u2'"),
        (key.startswith("u1"), "key LIKE 'u1%'"),
        (key.like("u1%"), "key LIKE 'u1%'"),
        (key.isNull(), "key IS NULL"),
        (sf.expr("key = 'u1' OR offset > 5") & (key <= "u3"), "key <= 'u3'"),
        ((key == "u1") | (offset > 5), "true"),
        (~(key == "u1"), "true"),
        (key == sf.upper(lit("u1")), "true"),
        (key == lit(b"u1"), "true"),
        (key.cast("binary") == lit(b"u1"), "true"),
        (sf.when(key == "u1", lit(False)).otherwise(lit(True)), "true"),
    ]
    for condition, text in same:
        assert table.key_options(condition) == table.key_options(text), condition
        assert sorted(table.where(condition).collect()) == sorted(table.df().where(condition).collect()), condition
    binary = krappy.spark.table(spark, users, address=address)
    assert binary.key_options(binary.key.isin(lit(b"u1"), "u2")) == table.key_options("key IN ('u1', 'u2')")
    with pytest.raises(AnalysisException, match="nothing"):
        table.where("key = 'u1' AND nothing = 1")
