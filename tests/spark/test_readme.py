"""What krappy/spark/README.md shows is run from top to bottom: Python and SQL as one program, then the commands."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import krappy.spark
from krappy.blocking import Client
from krappy.cli.main import run
from krappy.spark.patience import SLOW_START
from krappy.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (Path(krappy.spark.__path__[0]) / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def topics(client: Client) -> None:
    """Makes the topics that the README names."""
    for name in ("orders", "counts", "orders-again"):
        client.create_topic(name, if_absent=True)
    for name in ("users", "copy"):
        client.create_topic(name, 2, {"cleanup.policy": "compact"}, if_absent=True)
    with client.producer("users") as producer:
        for number in range(20):
            producer.send(f"user {number}", key=f"u{number}")
    with client.producer("orders") as producer:
        for number in range(5):
            producer.send(json.dumps({"eur": number}), key=f"u{number}")


def names_of(spark: SparkSession) -> dict[str, Any]:
    """The names that the examples take for granted."""
    orders = spark.createDataFrame([("u1", 5), ("nobody", 6)], "user_id string, eur int")
    orders.createOrReplaceTempView("orders")
    df = spark.createDataFrame([("u1", "Ada")], "user_id string, name string")
    stream = spark.readStream.format("krappy").options(subscribe="users", startingOffsets="earliest").load()
    counts = stream.groupBy("key").count().selectExpr("key", "string(count) AS value")
    return {"spark": spark, "remote": spark, "krappy": krappy, "orders": orders, "df": df, "counts": counts}


def shown(text: str, names: dict[str, Any]) -> dict[str, list[Any]]:
    """Runs Python. Returns the rows of each DataFrame that a line of its own shows, by that line."""
    found = {}
    for node in ast.parse(text).body:
        line = ast.unparse(node)
        if ".start()" in line:
            started(line, names)
        elif not isinstance(node, ast.Expr):
            exec(line, names)
        else:
            value = eval(line, names)
            if hasattr(value, "collect"):
                found[line] = value.collect()
    return found


def started(line: str, names: dict[str, Any]) -> None:
    """Starts a query, and waits until it has read what is there."""
    while True:
        before = {query.runId for query in names["spark"].streams.active}
        exec(line, names)
        try:
            for query in names["spark"].streams.active:
                if query.runId not in before:
                    query.processAllAvailable()
            return
        except StreamingQueryException as error:
            if SLOW_START not in str(error):
                raise


def test_the_examples(
    spark: SparkSession, client: Client, address: str, topics: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRAPPY_ADDRESS", address)
    names, rows = names_of(spark), dict[str, list[Any]]()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        for language, source in BLOCKS:
            text = (
                source.replace("broker:7092", address).replace("gate:7092", address).replace("/data/", f"{tmp_path}/")
            )
            if language == "python":
                rows |= shown(text, names)
            elif language == "sql" and features().arrow_udf:
                krappy.spark.register(spark)
                for statement in filter(str.strip, re.sub(r"--.*", "", text).split(";")):
                    rows[statement.strip()] = spark.sql(statement).collect()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
        for query in spark.streams.active:
            query.stop()
    assert names["events"].count() == 5
    assert {partition: at > 0 for partition, at in names["held"].offsets.items()} == {0: True, 1: True}
    found = {line: len(some) for line, some in rows.items()}
    assert [count for line, count in found.items() if re.match(r"table\.|near\.", line)] == [1, 2, 11, 2, 1, 2]
    joined = [some for line, some in rows.items() if "user_id" in line and "krappy_lookup" not in line]
    for some in joined:
        users = {row.user_id: row.user and bytes(row.user) for row in some}
        assert users == {"u1": b"user 1", "nobody": None}, "the bulk load came last"
    assert len(joined) == (2 if features().arrow_udf else 1)
    with client.consumer("copy", end="now") as consumer:
        assert {event.key for event in consumer} >= {b"u0", b"u19"}
    assert client.table("counts").get("u0") is not None


def test_the_commands(
    spark: SparkSession, client: Client, address: str, topics: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRAPPY_ADDRESS", address)
    [block] = [source for language, source in BLOCKS if language == "sh"]
    commands = [line.replace("/data/", f"{tmp_path}/") for line in block.splitlines()]
    assert len(commands) == 5
    for command in commands:
        assert run(shlex.split(command)[1:]) == 0, command
    assert client.table("spent").get("u3") is not None
    assert (tmp_path / "users_history" / "_SUCCESS").exists()
