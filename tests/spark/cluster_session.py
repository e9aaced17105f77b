"""Run by test_cluster.py in a process of its own: does all that Krappy does for Spark on a cluster, and prints it as
JSON.

python cluster_session.py MASTER HOST:PORT TOPIC FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import functions as sf

import krappy.spark
from tests.spark.cluster import SETTINGS
from tests.spark.queries import ended

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS, TASKS = 400_000, 8
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
}


def main(master: str, address: str, topic: str, folder: str) -> dict[str, Any]:
    spark = krappy.spark.session(master, config={**SETTINGS, **SPECULATION, "spark.sql.warehouse.dir": f"{folder}/sql"})
    numbers = spark.range(0, ROWS, 1, TASKS).select(sf.col("id").cast("string").alias("key"))
    rows = numbers.select("key", sf.repeat(sf.lit("x"), 100).alias("value"))
    found: dict[str, Any] = {}
    write(rows, address, f"{topic}-killed")  # an executor is killed meanwhile, by the test
    slow = spark.range(0, 100, 1, 2).select(sf.col("id").cast("string").alias("value"))
    write(slow.mapInArrow(standing_still, slow.schema), address, f"{topic}-speculated")
    found["read"] = read(spark, address, f"{topic}-killed")
    table = krappy.spark.table(spark, f"{topic}-killed", address=address, keyType="string")
    found["table"] = table.where("key LIKE '12345%'").count()
    found["joined"] = krappy.spark.lookup(numbers, f"{topic}-killed", "key", how="inner", address=address).count()
    stream = spark.readStream.format("krappy").options(address=address, subscribe=f"{topic}-speculated")
    copied = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("krappy")
    to = {"topic": f"{topic}-copied", "address": address, "checkpointLocation": str(Path(folder) / "checkpoint")}
    ended(copied.options(**to))
    spark.stop()
    return found


def write(df: DataFrame, address: str, topic: str) -> None:
    df.write.format("krappy").mode("append").options(address=address, topic=topic).save()


def standing_still(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of a task gives all its rows, and never ends. Spark starts another attempt, which gives them,
    too."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(3600)


def read(spark: SparkSession, address: str, topic: str) -> list[int]:
    log = spark.read.format("krappy").options(address=address, subscribe=topic, minPartitions=4).load()
    [row] = log.selectExpr("count(*)", "count(DISTINCT key)").collect()
    return list(row)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
