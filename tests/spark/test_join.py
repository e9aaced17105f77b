"""Lookup joins, in SQL and with DataFrames: nulls, duplicates, keys that are absent or deleted, large values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from krappy.blocking import Client
from krappy.errors import ConfigError
from krappy.spark import join, versions
from krappy.spark.join import krappy_get, krappy_lookup, lookup, register
from krappy.spark.versions import features
from krappy.types import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = 1_700_000_000_123


@pytest.fixture(scope="module")
def users(client: Client) -> str:
    """u0 to u99 with a value, u5 deleted, u7 with headers; in four partitions."""
    client.create_topic("join-users", 4, {"cleanup.policy": "compact"})
    with client.producer("join-users") as producer:
        records = [Record(f"user {n}".encode(), f"u{n}".encode(), (), TIME + n) for n in range(100)]
        producer.send_many(records)
        producer.send(None, key="u5", timestamp=TIME).result()
        producer.send("user 7", key="u7", headers={"from": "test", "none": None}, timestamp=TIME).result()
    return "join-users"


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """Keys that the table has, one of them twice, and keys that are deleted, absent, empty and null."""
    keys = ["u1", "u2", "u1", "u5", "nobody", "", None, "u7", "u1"]
    return spark.createDataFrame([(n, key) for n, key in enumerate(keys)], "id int, user_id string")


def test_a_left_join_keeps_every_row(orders: DataFrame, users: str, address: str) -> None:
    found = lookup(orders, users, "user_id", columns={"value": "user"}, address=address)
    assert found.columns == ["id", "user_id", "user"]
    texts = [row.user and bytes(row.user).decode() for row in found.orderBy("id").collect()]
    assert texts == ["user 1", "user 2", "user 1", None, None, None, None, "user 7", "user 1"]


def test_the_other_kinds_of_join(orders: DataFrame, users: str, address: str) -> None:
    def ids(**options: Any) -> list[int]:
        return [row.id for row in lookup(orders, users, "user_id", address=address, **options).orderBy("id").collect()]

    assert ids(how="inner") == ids(how="semi") == [0, 1, 2, 7, 8]
    assert ids(how="anti") == [3, 4, 5, 6]
    assert ids(how="inner", tombstones=True) == [0, 1, 2, 3, 7, 8]
    assert lookup(orders, users, "user_id", how="semi", address=address).columns == ["id", "user_id"]


def test_every_column_of_an_entry(orders: DataFrame, users: str, client: Client, address: str) -> None:
    columns = ["deleted", "headers", "offset", "partition", "timestamp", "value"]
    binary = orders.where("id in (0, 3, 4, 7)").withColumn("user_id", sf.col("user_id").cast("binary"))
    rows = lookup(binary, users, "user_id", columns=columns, tombstones=True, address=address).orderBy("id").collect()
    table = client.table(users)
    for row, key in zip(rows, ["u1", "u5", "nobody", "u7"], strict=True):
        entry = table.get(key)
        if entry is None:
            assert [row[name] for name in columns] == [None] * 6
            continue
        assert (row.partition, row.offset, row.deleted) == (entry.partition, entry.offset, entry.deleted)
        assert (None if row.value is None else bytes(row.value)) == entry.value
        assert tuple((each.key, each.value and bytes(each.value)) for each in row.headers or ()) == entry.headers
        assert round(row.timestamp.timestamp() * 1000) == entry.timestamp


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")  # mapInArrow's
def test_before_arrow_udfs_the_helper_maps_and_the_functions_say_why_not(
    orders: DataFrame, users: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"value": "user", "offset": "at"}
    now = lookup(orders, users, sf.concat("user_id", sf.lit("")), columns=columns, address=address)
    old = versions.FEATURES[4, 0]
    monkeypatch.setattr(join, "features", lambda: old)
    then = lookup(orders, users, sf.concat("user_id", sf.lit("")), columns=columns, address=address)
    assert then.schema == now.schema
    assert then.orderBy("id").collect() == now.orderBy("id").collect()
    assert lookup(orders, users, "user_id", how="anti", address=address).count() == 4
    for function in (lambda: krappy_get(users, "user_id"), krappy_lookup):
        with pytest.raises(ImportError, match=r"from 4\.1 on"):
            function()


@pytest.mark.skipif(not features().arrow_udf, reason="PySpark before 4.1 has no arrow_udf: no functions for SQL")
def test_sql(spark: SparkSession, orders: DataFrame, users: str, client: Client, address: str) -> None:
    register(spark, address)
    client.create_topic("join-plans", 1)
    with client.producer("join-plans") as producer:
        producer.send("gold", key="u1").result()
    orders.createOrReplaceTempView("join_orders")
    rows = spark.sql(f"SELECT id, krappy_get('{users}', user_id) AS user FROM join_orders ORDER BY id").collect()
    assert [row.id for row in rows if row.user is not None] == [0, 1, 2, 7, 8]
    both = spark.sql(
        "SELECT DISTINCT CAST(krappy_get(topic, user_id) AS string) AS found FROM join_orders, "
        f"VALUES ('join-plans'), ('{users}'), (null) AS topics(topic) WHERE user_id = 'u1'"
    )
    assert {row.found for row in both.collect()} == {"gold", "user 1", None}
    looked_up = spark.sql(
        "SELECT CAST(key AS string) AS key, CAST(value AS string) AS value, partition, offset, headers "
        f"FROM krappy_lookup(TABLE(SELECT user_id, id FROM join_orders), '{users}')"
    ).collect()
    assert len(looked_up) == 9
    values = sorted((row.key or "", row.value or "") for row in looked_up)
    assert values == sorted(
        [("u1", "user 1")] * 3 + [("u2", "user 2"), ("u5", ""), ("nobody", ""), ("", ""), ("", ""), ("u7", "user 7")]
    )
    assert {row.key for row in looked_up if row.offset is None} == {"u5", "nobody", "", None}
    assert [[each.key for each in row.headers] for row in looked_up if row.key == "u7"] == [["from", "none"]]


def test_batches_are_looked_up_together_and_given_back_one_by_one() -> None:
    asked = []

    def look_up(keys: pa.Array, numbers: pa.Array) -> pa.Array:
        asked.append(len(keys))
        return pa.array([f"{key}{number}" for key, number in zip(keys.to_pylist(), numbers.to_pylist(), strict=True)])

    ahead = join.LookAhead(look_up)
    batches = [(pa.array(["a"] * size, pa.string()), pa.array(range(size), pa.int64())) for size in (2, 0, 3, 1)]
    found = [each for batch in batches for each in ahead.put(*batch)]
    assert asked == [2]  # the first batch goes at once: it shows how large the values are
    found += ahead.rest()
    assert asked == [2, 4]
    assert [each.to_pylist() for each in found] == [["a0", "a1"], [], ["a0", "a1", "a2"], ["a0"]]
    assert not list(ahead.rest())


@pytest.mark.skipif(not features().arrow_udf, reason="PySpark before 4.1 has no arrow_udf: no functions for SQL")
def test_sql_over_several_batches(spark: SparkSession, users: str, client: Client, address: str) -> None:
    """Each answer is beside its row, whatever is looked up together: several topics in a batch; and several functions
    in a query, one of which takes the answer of another."""
    register(spark, address)
    client.create_topic("join-next", 2)
    with client.producer("join-next") as producer:
        producer.send_many([Record(f"u{n + 1}".encode(), f"u{n}".encode()) for n in range(99)])
    spark.range(1_000, numPartitions=1).selectExpr(
        "id",
        "concat('u', id % 120) AS user_id",
        f"CASE id % 3 WHEN 0 THEN '{users}' WHEN 1 THEN 'join-next' END AS topic",
    ).createOrReplaceTempView("join_many")
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert before is not None
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "64")
    try:
        rows = spark.sql(
            "SELECT id, CAST(krappy_get(topic, user_id) AS string) AS found, "
            f"CAST(krappy_get('{users}', krappy_get('join-next', user_id)) AS string) AS next FROM join_many"
        ).collect()
        looked_up = spark.sql(
            "SELECT CAST(key AS string) AS key, CAST(value AS string) AS value "
            f"FROM krappy_lookup(TABLE(SELECT user_id FROM join_many), '{users}')"
        ).collect()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)

    def user(n: int) -> str | None:
        return f"user {n}" if n < 100 and n != 5 else None

    def following(n: int) -> str | None:
        return f"u{n + 1}" if n < 99 else None

    assert len(rows) == 1_000
    for row in rows:
        n = row.id % 120
        assert row.found == (user(n), following(n), None)[row.id % 3]
        assert row.next == (user(n + 1) if n < 99 else None)
    assert sorted((row.key, row.value or "") for row in looked_up) == sorted(
        (f"u{n % 120}", user(n % 120) or "") for n in range(1_000)
    )


def test_many_keys_and_large_values(spark: SparkSession, client: Client, address: str) -> None:
    """More keys than one request takes, and 24 MB of values, which no answer may bring at once."""
    client.create_topic("join-large", 3)
    with client.producer("join-large") as producer:
        values = [bytes([n % 256]) * (60_000 if n < 400 else 3) for n in range(3_000)]
        producer.send_columns([str(n) for n in range(3_000)], values)
    many = spark.range(6_000, numPartitions=2).select((sf.col("id") % 4_000).cast("string").alias("key"))
    found = lookup(many, "join-large", "key", columns=("value", "offset"), address=address)
    sizes = found.select(sf.length("value").alias("size")).groupBy("size").count().collect()
    assert {row["size"]: row["count"] for row in sizes} == {60_000: 800, 3: 4_200, None: 1_000}


def test_what_cannot_be_is_said_before_anything_runs(orders: DataFrame, address: str) -> None:
    with pytest.raises(ConfigError, match=r"binary or string, this is int; .cast\('string'\)"):
        lookup(orders, "t", "id")
    with pytest.raises(ConfigError, match="has a column 'ID' already"):
        lookup(orders, "t", "user_id", columns={"value": "ID"})
    with pytest.raises(ConfigError, match="no 'valeu'; there are value, partition"):
        lookup(orders, "t", "user_id", columns=["valeu"])
    with pytest.raises(ConfigError, match="the same name"):
        lookup(orders, "t", "user_id", columns={"value": "a", "offset": "A"})
    with pytest.raises(ConfigError, match="left, inner, semi or anti"):
        lookup(orders, "t", "user_id", how="outer")  # type: ignore[arg-type]


def test_errors_of_the_broker_reach_the_user(orders: DataFrame, address: str) -> None:
    with pytest.raises(Exception, match="there is no topic 'nowhere'"):
        lookup(orders, "nowhere", "user_id", address=address).collect()
    if not features().arrow_udf:
        return
    with pytest.raises(Exception, match="a key is binary or string, this is int32"):
        orders.select(join._sql_get(address)(sf.lit("t"), "id")).collect()


def test_how_many_rows_an_executor_is_to_look_up(spark: SparkSession) -> None:
    df = spark.range(1_000)
    settings: Any = spark.sparkContext._conf
    assert join._expected(df) == 1_000
    try:
        settings.set("spark.executor.instances", "4")
        assert join._expected(df) == 250
        settings.set("spark.dynamicAllocation.enabled", "true")
        assert join._expected(df) == 0
    finally:
        for name in ("spark.executor.instances", "spark.dynamicAllocation.enabled"):
            settings._jconf.remove(name)
    assert join._expected(df) == 1_000
