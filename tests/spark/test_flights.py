"""A quarter's flights through the pipelines: produce, rollup, lookups joined to the planes, archive, reconcile.

All results are compared with what pandas makes of the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import krappy.spark
from krappy.blocking import Client
from krappy.cli.main import run
from krappy.demos.flights import find_file
from krappy.pipelines import archive, rollup
from tests.long import long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20_000  # rows of one call
FIELDS = "arr_delay DOUBLE, time_hour TIMESTAMP"
AGGREGATES = {"flights": "count(*)", "mean_delay": "avg(value.arr_delay)", "last_seen": "max(value.time_hour)"}


@pytest.fixture(scope="module")
def flights() -> Any:
    """The flights from January to March; `make demo` has the whole year."""
    year = pd.read_csv(find_file())
    return year[year.month <= 3].reset_index(drop=True)


@pytest.fixture(scope="module")
def planes() -> Any:
    return pd.read_csv(find_file().parent / "planes.csv")


def produce(client: Client, topic: str, rows: Any, times: Any = None) -> None:
    """Sends each row as JSON, with its aircraft as the key, in the order of the file."""
    keys = [
        None if key is None else key.encode() for key in rows.tailnum.astype(object).where(rows.tailnum.notna(), None)
    ]
    values = [line.encode() for line in rows.to_json(orient="records", lines=True).splitlines()]
    with client.producer(topic) as producer:
        for at in range(0, len(values), ROWS):
            part = slice(at, at + ROWS)
            given = None if times is None else times[part]
            producer.post_columns(keys[part], values[part], timestamps=given)


@long
def test_flights(
    spark: SparkSession,
    client: Client,
    address: str,
    tmp_path: Path,
    flights: Any,
    planes: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    aircraft, without_aircraft = flights.tailnum.nunique(), int(flights.tailnum.isna().sum())
    client.create_topic("flights", 3)
    client.create_topic("planes", 2, {"cleanup.policy": "compact"})
    months = pd.to_datetime({"year": flights.year, "month": flights.month, "day": 1})
    produce(client, "flights", flights, [int(month.timestamp() * 1000) for month in months])
    produce(client, "planes", planes)

    # rollup: by aircraft, over several batches
    done = rollup.run(
        spark,
        "flights",
        "aircraft",
        fields=FIELDS,
        aggregates=AGGREGATES,
        checkpoint=str(tmp_path / "rollup"),
        per_batch=30_000,
        address=address,
    )
    assert (done.events, done.late) == (len(flights), 0)
    expected = flights.groupby("tailnum").agg(
        flights=("year", "size"), mean_delay=("arr_delay", "mean"), last_seen=("time_hour", "max")
    )
    table = krappy.spark.table(spark, "aircraft", address=address, keyType="string")
    rows = {row.key: json.loads(row.value) for row in table.df(columns="key,value").collect()}
    found = pd.DataFrame.from_dict(rows, orient="index").reindex(expected.index)
    assert len(rows) == len(expected) == aircraft
    assert found.flights.tolist() == expected.flights.tolist()
    assert found.mean_delay.tolist() == pytest.approx(expected.mean_delay.tolist(), nan_ok=True)
    assert pd.to_datetime(found.last_seen, utc=True).tolist() == pd.to_datetime(expected.last_seen, utc=True).tolist()

    # lookups joined back to the planes
    of_planes = krappy.spark.lookup(
        table.df(columns="key,value"), "planes", on="key", columns={"value": "plane"}, how="inner", address=address
    )
    by_maker = of_planes.selectExpr(
        "get_json_object(string(plane), '$.manufacturer') AS maker",
        "bigint(get_json_object(string(value), '$.flights')) AS flights",
    )
    joined = {
        row.maker: row.flights
        for row in by_maker.groupBy("maker").agg({"flights": "sum"}).toDF("maker", "flights").collect()
    }
    merged = expected.merge(planes.set_index("tailnum"), left_index=True, right_index=True)
    assert joined == merged.groupby("manufacturer").flights.sum().to_dict()

    # archive: both topics, and all of each
    path = str(tmp_path / "archive")
    archive.run(spark, ["flights", "aircraft"], path, address=address)
    events = archive.events(spark, path, "flights")
    by_month = {row["date"].month: row["count"] for row in events.groupBy("date").count().collect()}
    assert by_month == flights.groupby("month").size().to_dict()
    assert events.select("partition", "offset").distinct().count() == len(flights)
    assert events.where("key IS NULL").count() == without_aircraft

    # reconcile: the tables are what the archive says
    for topic, count in (("flights", len(flights)), ("aircraft", None)):
        assert run(["pipeline", "reconcile", topic, "--archive", path, "--address", address, "--json"]) == 0
        told = json.loads(capfd.readouterr().out)
        assert (told["keys"], told["since"], told["differences"]) == (aircraft, 0, {})
        assert count in (None, told["archived"])
