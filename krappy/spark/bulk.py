"""Loads many rows into a topic that is read as a table: in the order of their keys.

A view takes rows in the order of their keys up to twice as fast as rows in any order, and its files then need hardly
any compaction. Spark is good at sorting. The tasks of a write are published one after the other, so if their ranges of
keys do not overlap, the whole load is in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from krappy.errors import ConfigError
from krappy.spark.options import texts
from krappy.spark.session import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def bulk_load(
    df: DataFrame, topic: str, *, tasks: int | None = None, job: str | None = None, wait: bool = True, **options: Any
) -> None:
    """Writes a DataFrame to a topic sorted by key, as one job: all of it is published at once, and once.

        krappy.spark.bulk_load(spark.read.parquet("users/").select("key", "value"), "users", address="broker:7092")

    If several rows have the same key, the table gets the one with the latest `timestamp`; without a column `timestamp`
    it is undefined which, since a DataFrame has no order.

    Args:
        df: has the columns `key`, `value`, and any others that `df.write.format("krappy")` takes.
        tasks: the number of key ranges, and of the tasks that write them. None: each partition of `df` is sorted by
            itself, which moves no rows between partitions, but leaves the broker more to merge.
        job: the job's name, which makes it safe to run again (the data source's option jobId).
        wait: return when the table has taken all rows in, with progress on stderr (the option awaitTable). If False,
            return when they are published; lookups then wait for the table, or time out if there are many rows.
        options: of the data source, by their names.

    Raises ConfigError without a column `key`, and as the data source does.
    """
    if "key" not in df.columns:
        raise ConfigError(f"a bulk load needs a column 'key'; there are {', '.join(df.columns)}")
    order = [name for name in ("key", "timestamp") if name in df.columns]
    ranges = df if tasks is None else df.repartitionByRange(tasks, "key")
    given = texts({"awaitTable": wait, "jobId": job, **options, "topic": topic})
    activate(df.sparkSession)
    ranges.sortWithinPartitions(*order).write.format("krappy").options(**given).mode("append").save()
