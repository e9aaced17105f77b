"""Backfill: writes Parquet files to a topic, once: the events of an archive, or any other rows.

    backfill.run(spark, "/data/archive", "orders-again", topic="orders", since="2026-01-01")
    backfill.run(spark, "/data/users.parquet", "users", key="id")

A backfill is one staged job, which the broker publishes as a whole. If it is run again, however the first run ended, it
publishes nothing twice, as long as the broker remembers the job's name (a week). By default the name is made from the
arguments. Events of an archive keep the order of their partition, their times and their headers; the key decides to
which partition they go.
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
    """`events`: how many were published now. `job`: the job's name."""

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
        topic: the topic's name in the archive. None: `to`.
        since, until: dates, such as "2026-01-31": from `since` to before `until`.
        key: the column that becomes the events' key; their value is the whole row as JSON.
        job: a name for the job, such as "users-2026-01-31". A new name publishes again.

    Raises UnknownTopic if `to` does not exist; ConfigError for arguments that do not go together.
    """
    for text in filter(None, (since, until)):
        _check_date(text)
    if key is not None and (topic or since or until):
        raise ConfigError(
            "topic, since and until choose events of an archive: leave them out where `key` names a column of rows"
        )
    asked = [path, to, topic, since, until, key]
    name = job or f"backfill-{to}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}"
    found = rows(spark, path, key) if key else events(spark, path, topic or to, since, until)
    broker = client(address)
    if published(name, to, broker):
        tell(f"the job {name} is published already; to publish the same events again, give it another name")
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
        raise ConfigError(f"{text!r} is not a date: give one such as 2026-01-31") from None


def events(spark: SparkSession, path: str, topic: str, since: str | None = None, until: str | None = None) -> DataFrame:
    """Events of an archive, to be written: those of each partition in one task, in their order."""
    found = archive.events(spark, path, topic)
    found = found if since is None else found.where(sf.col("date") >= sf.lit(since).cast("date"))
    found = found if until is None else found.where(sf.col("date") < sf.lit(until).cast("date"))
    found = found.repartition("partition").sortWithinPartitions("partition", "offset")
    return found.select("key", "value", "timestamp", "headers")


def rows(spark: SparkSession, path: str, key: str) -> DataFrame:
    """Rows of Parquet files as events: a column as key, the row as JSON as value. Raises ConfigError."""
    found = spark.read.parquet(path)
    if key not in found.columns:
        raise ConfigError(f"{path} has no column {key}; it has {', '.join(found.columns)}")
    value = sf.to_json(sf.struct(*(sf.col(f"`{name}`") for name in found.columns)), {"ignoreNullFields": "false"})
    return found.select(sf.col(f"`{key}`").cast("string").alias("key"), value.alias("value"))
