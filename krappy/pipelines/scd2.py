"""SCD2: writes the history of a topic's keys, a row for each value that a key has had, with the time of its validity.

    scd2.run(spark, "users", "/data/users_history", archive_path="/data/archive")
    spark.read.parquet("/data/users_history").where("valid_from <= t AND (valid_to > t OR valid_to IS NULL)")

A slowly changing dimension of type 2 (Kimball). A value is valid from its event to its key's next event; a tombstone
ends it, and has no row. The order is that of the log: if an event has an earlier timestamp than the one before it, it
counts from that one's time, so that no row ends before it begins. A compacted topic has lost its old values; its
archive has not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from krappy.errors import ConfigError
from krappy.pipelines import archive
from krappy.pipelines.following import Tell, silent
from krappy.pipelines.replacing import write_whole
from krappy.spark.options import texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "valid_from", "valid_to", "current", "partition", "offset")


def run(
    spark: SparkSession,
    topic: str,
    to: str,
    *,
    archive_path: str | None = None,
    address: str | None = None,
    overwrite: bool = False,
    tell: Tell = silent,
) -> int:
    """Writes the history to a folder of Parquet files (`to`). Returns its number of rows.

    Args:
        archive_path: the archive to read. None: reads the events that the broker still has.
        overwrite: whether an existing folder is replaced, once the new history is whole.

    Raises ConfigError if `to` is an archive, which would be lost.
    """
    if archive.is_there(spark, to):
        raise ConfigError(f"{to} is an archive, which the history would replace: give it a folder of its own")
    if archive_path is not None:
        events = archive.events(spark, archive_path, topic)
    else:
        options = texts({"address": address, "subscribe": topic, "columns": "key,value,partition,offset,timestamp"})
        events = spark.read.format("krappy").options(**options).load()
    tell(f"the history of {topic} goes to {to}")
    write_whole(history(events), to, overwrite=overwrite)
    return spark.read.parquet(to).count()


def history(events: DataFrame) -> DataFrame:
    """The history of events with a key, with COLUMNS. A key's last value has `valid_to` null and `current` true."""
    of_key = Window.partitionBy("partition", "key").orderBy("offset")
    keyed = events.where("key IS NOT NULL").select("key", "value", "partition", "offset", "timestamp")
    begun = keyed.withColumn("valid_from", sf.max("timestamp").over(of_key))
    ended = begun.withColumn("valid_to", sf.lead("valid_from").over(of_key))
    return ended.where("value IS NOT NULL").withColumn("current", sf.col("valid_to").isNull()).select(*COLUMNS)
