"""A few keys of a table as a DataFrame without a job: read in this program, and handed to Spark as rows.

A query that reads them starts a task and asks Python processes three times, which takes Spark a hundred milliseconds,
and the broker less than one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from krappy.spark.options import parse
from krappy.spark.schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_KEYS = 1_000
MOST_BYTES = 8 << 20


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame | None:
    """What these options, some of them keys, load; None: that is much, and better left to tasks.

    Raises what the tasks would, as it is: UnknownTopic, ViewDisabled, ConnectionLost, SnapshotGone, …
    """
    import pyarrow as pa

    from krappy.spark.table_read import TableReader

    asked = parse(options, "log")
    if asked.keys.exact is None or len(asked.keys.exact) > MOST_KEYS:
        return None
    schema = spark_schema(asked.columns, asked.key_type)
    reader = TableReader(schema, asked)
    shape = arrow_schema(schema)
    found, size = [pa.RecordBatch.from_pylist([], shape)], 0  # Spark wants one
    for task in reader.partitions():
        for batch in reader.read(task):
            found.append(batch)
            size += batch.nbytes
            if size > MOST_BYTES:
                return None
    rows = pa.Table.from_batches(found)
    made: DataFrame = spark.createDataFrame(rows, schema)
    return made
