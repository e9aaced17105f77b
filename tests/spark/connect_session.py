"""Run by test_connect.py in a process of its own: reads, writes and streams over Spark Connect, printed as JSON.

python connect_session.py local[2]|sc://HOST:PORT HOST:PORT TOPIC FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import krappy.spark
from krappy.spark.versions import features
from tests.spark.queries import ended


def main(remote: str, address: str, topic: str, folder: str) -> dict[str, Any]:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    read = spark.read.format("krappy").option("address", address)  # nothing has registered the data source
    found: dict[str, Any] = {"log": read.option("subscribe", topic).load().count()}
    table = krappy.spark.table(spark, topic, address=address, keyType="string")
    many = [f"u{number}" for number in range(400)]
    found["options"] = table.key_options("key = 'u5'")
    found["range"] = table.key_options("key = 'u5' OR key > 'u7' AND offset > 0")
    found["condition"] = [bytes(row.value).decode() for row in table.where("key = 'u5'").collect()]
    found["prefix"] = table.where("key LIKE 'u1%'").count()
    found["many"] = table.where(table.key.isin(many)).count()
    found["named"] = table.where((table.key == "u5") & (sf.length("value") > 1)).count()
    found["near"] = near(spark, address, topic)
    with table.snapshot() as held:
        found["offsets"] = sum(held.offsets.values())
        found["snapshot"] = held.df().count()
    found |= writes(spark, address, topic, f"{folder}/checkpoint")
    try:
        read.option("subcribe", topic).load().count()
    except PySparkException as error:
        found["error"] = [type(error).__name__, str(error)]
    spark.stop()
    return found


def near(spark: SparkSession, address: str, topic: str) -> list[Any]:
    """Keys that this program looks up by itself: with the answers of a query, and where Spark does not reach the
    broker."""
    nowhere = "127.0.0.1:1"
    table = krappy.spark.table(spark, topic, client_address=address, address=nowhere, keyType="string")
    keys = ["u5", "nobody", "u150"]
    rows: list[Any] = [sorted(bytes(row.value).decode() for row in table.where(table.key.isin(keys)).collect())]
    columns = "key,value,topic,partition,offset,timestamp,headers,deleted"
    for options in ({"keyType": "string"}, {"tombstones": "true"}):
        table = krappy.spark.table(spark, topic, client_address=address, address=address, columns=columns, **options)
        mine, read = table.lookup(keys), table.df(keys=json.dumps(keys))
        rows.append(mine.schema == read.schema and sorted(map(str, mine.collect())) == sorted(map(str, read.collect())))
    with table.snapshot() as held:
        rows.append(held.where(sf.col("key") == sf.lit(b"u5")).count())
    try:
        rows.append(held.df().count())
    except PySparkException as error:
        rows.append("has ended" in str(error))
    return rows


def writes(spark: SparkSession, address: str, topic: str, checkpoint: str) -> dict[str, Any]:
    """What tasks, SQL functions and streams do besides reading."""
    found: dict[str, Any] = {}
    to = {"address": address, "topic": f"{topic}-copy"}
    users = spark.range(150, 250).select(sf.concat(sf.lit("u"), "id").alias("key"), sf.lit("w").alias("value"))
    users.write.format("krappy").mode("append").options(**to).save()
    joined = krappy.spark.lookup(users, topic, "key", columns={"value": "user"}, address=address, how="inner")
    found["joined"] = joined.count()
    if features().arrow_udf:
        krappy.spark.register(spark, address)
        users.createOrReplaceTempView("users")
        found["sql"] = spark.sql(f"SELECT key FROM users WHERE krappy_get('{topic}', key) IS NOT NULL").count()
        table = spark.sql(f"SELECT value FROM krappy_lookup(TABLE(SELECT key FROM users), '{topic}')")
        found["table_function"] = table.where("value IS NOT NULL").count()
    stream = spark.readStream.format("krappy").options(address=address, subscribe=topic)
    copied = stream.option("startingOffsets", "snapshot").load().select("key", "value").writeStream.format("krappy")
    query = ended(copied.options(checkpointLocation=checkpoint, **to))
    found["stream"] = [str(query.exception()), krappy.spark.lag(query.lastProgress)]
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
