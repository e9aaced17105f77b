"""What Spark says of a DataFrame in this program's own JVM, without a Python process and without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

UNKNOWN = 1 << 50  # bytes; Spark assumes more than that for sources of unknown size


def blank(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows, to check conditions on these columns."""
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession
    empty: Any = spark.sparkContext._jsc.emptyRDD()
    return DataFrame(session.createDataFrame(empty, session.parseDataType(schema.json())), spark)


def rows(df: DataFrame) -> int:
    """How many rows the largest source of `df` has, by Spark's estimate; 0: unknown."""
    try:
        leaves: Any = df._jdf.queryExecution().optimizedPlan().collectLeaves()
        return max((_rows_of(leaves.apply(at)) for at in range(leaves.size())), default=0)
    except Py4JError:
        return 0


def executors(df: DataFrame) -> int:
    """How many executors there are, or will be, for `df`; 0: unknown, with dynamic allocation."""
    context = df.sparkSession.sparkContext
    settings = context.getConf()
    if settings.get("spark.dynamicAllocation.enabled") == "true":
        return 0
    every: Any = context._jsc.sc().getExecutorMemoryStatus()
    up = int(every.size()) - 1  # the driver is among them
    return max(1, up, int(settings.get("spark.executor.instances") or 0))


def _rows_of(leaf: Any) -> int:
    known = leaf.stats().rowCount()
    if known.isDefined():
        return int(str(known.get()))
    size = int(str(leaf.stats().sizeInBytes()))
    return 0 if size >= UNKNOWN else size // (8 + int(leaf.schema().defaultSize()))
