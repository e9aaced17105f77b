"""Run by test_connect.py in a process of its own: reads over Spark Connect, printed as JSON.

python connect_session.py HOST:PORT TOPIC
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import krappy.spark


def main(address: str, topic: str) -> dict[str, Any]:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    read = spark.read.format("krappy").option("address", address)  # registered by nobody
    found: dict[str, Any] = {"log": read.option("subscribe", topic).load().count()}
    table = krappy.spark.table(spark, topic, address=address, keyType="string")
    many = [f"u{number}" for number in range(400)]
    found["options"] = table.key_options("key = 'u5'")
    found["condition"] = [bytes(row.value).decode() for row in table.where("key = 'u5'").collect()]
    found["prefix"] = table.where("key LIKE 'u1%'").count()
    found["many"] = table.where(table.key.isin(many)).count()
    with table.snapshot() as held:
        found["offsets"] = sum(held.offsets.values())
        found["snapshot"] = held.df().count()
    try:
        read.option("subcribe", topic).load().count()
    except PySparkException as error:
        found["error"] = [type(error).__name__, str(error)]
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
