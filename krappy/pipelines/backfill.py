"""Backfill: Parquet files into a topic, once: an archive that is brought back, or rows of any other origin.

    backfill.run(spark, "/data/archive", "orders-again", topic="orders", since="2026-01-01")
    backfill.run(spark, "/data/users.parquet", "users", key="id")

It is one job under one name, published as a whole by the broker; run again, however the first run ended, it publishes
nothing twice, as long as the broker remembers the name (a week). The name is made of what was asked for, unless it is
given. Events of an archive keep the order of their partition, their times and their headers; the key says which
partition each goes to.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sf

import krappy.spark
from krappy.errors import ConfigError
from krappy.pipelines import archive
from krappy.pipelines.following import Tell, silent
from krappy.spark.connections import client
from krappy.spark.options import texts
from krappy.spark.session import activate
from krappy.spark.staged import published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Filled(NamedTuple):
    """`events`: how many were published now. `job`: under what name."""

    events: int
    job: str


def run(
    spark: SparkSession,
    path: str,
    to: str,
    *,
    topic: str | None = None,
    since: str | None = None,
    until: str | None = None,
    key: str | None = None,
    job: str | None = None,
    address: str | None = None,
    tell: Tell = silent,
) -> Filled:
    """Publishes the events of an archive, or with `key` the rows of any Parquet files.

    Args:
        topic: of the archive. None: `to`.
        since, until: dates, from the first to before the second.
        key: the column that identifies a row; its value is the whole row as JSON.
        job: a name for the job, such as "users-2026-01-31". A new one publishes again.

    Raises UnknownTopic when `to` is not there; ConfigError for what can't be.
    """
    for text in filter(None, (since, until)):
        _check_date(text)
    if key is not None and (topic or since or until):
        raise ConfigError(
            "topic, since and until choose from an archive; rows with a key of their own have none of them"
        )
    asked = [path, to, topic, since, until, key]
    name = job or f"backfill-{to}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}"
    found = rows(spark, path, key) if key else events(spark, path, topic or to, since, until)
    broker = client(address)
    if published(name, to, broker):
        tell(f"the job {name} is published already; to publish the same again, give it another name")
        return Filled(0, name)
    tell(f"{path} goes to {to} as the job {name}")
    if key:
        krappy.spark.bulk_load(found, to, job=name, address=address)
    else:  # in the order of the log
        options = texts({"topic": to, "jobId": name, "address": address})
        activate(spark)
        found.write.format("krappy").mode("append").options(**options).save()
    done = published(name, to, broker)
    if done is None:
        tell(f"nothing is published: {path} has no such events")
    return Filled(done.records if done else 0, name)


def _check_date(text: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no date: give one such as 2026-01-31") from None


def events(spark: SparkSession, path: str, topic: str, since: str | None = None, until: str | None = None) -> DataFrame:
    """Events of an archive as they are to be written: those of a partition in one task, in their order."""
    found = archive.events(spark, path, topic)
    found = found if since is None else found.where(sf.col("date") >= sf.lit(since).cast("date"))
    found = found if until is None else found.where(sf.col("date") < sf.lit(until).cast("date"))
    found = found.repartition("partition").sortWithinPartitions("partition", "offset")
    return found.select("key", "value", "timestamp", "headers")


def rows(spark: SparkSession, path: str, key: str) -> DataFrame:
    """Rows of Parquet files as events: keyed by a column, JSON as value."""
    found = spark.read.parquet(path)
    if key not in found.columns:
        raise ConfigError(f"{path} has no column {key}; it has {', '.join(found.columns)}")
    value = sf.to_json(sf.struct(*(sf.col(f"`{name}`") for name in found.columns)), {"ignoreNullFields": "false"})
    return found.select(sf.col(f"`{key}`").cast("string").alias("key"), value.alias("value"))
