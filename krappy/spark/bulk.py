"""Loading much into a topic that is a table: the rows in the order of their keys.

A view takes rows that come in the order of their keys up to twice as fast as rows that come anyhow, and its files then
need hardly any compaction. Sorting is what Spark is good at. The tasks of a write are published one after the other, so
with ranges of keys that do not overlap the whole load is in order.
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

    Of rows with the same key the one with the latest `timestamp` stands in the table, if there is such a column;
    without one a DataFrame has no order that would tell.

    Args:
        df: `key`, `value`, and what else `df.write.format("krappy")` takes.
        tasks: so many ranges of keys, written by as many tasks. None: each partition of `df` is sorted by itself,
            which saves moving the rows between them, and leaves the broker more to merge.
        job: its name, which makes it safe to run again (the data source's option jobId).
        wait: until the table has taken all of it in, with progress on stderr (the option awaitTable). Otherwise it
            returns when all is published, and lookups wait then, or time out when there is much.
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
