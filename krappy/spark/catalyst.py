"""Asks Spark's optimizer which keys a condition demands, in this program's own JVM: no Python process, no job.

Spark plans the condition over an empty DataFrame with the table's columns, and translates it into the filters
(`org.apache.spark.sql.sources`) that it would push to a data source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from krappy.spark.demands import Demand, either

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

UNKNOWN = 1 << 50  # bytes; Spark assumes more than that for sources of unknown size
MOST_PARTS = 1_000  # of a chain of OR; a longer one narrows no keys
COMPARISONS = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")


def blank(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows; the optimizer does not know that it is empty."""
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession
    empty: Any = spark.sparkContext._jsc.emptyRDD()
    return DataFrame(session.createDataFrame(empty, session.parseDataType(schema.json())), spark)


def demands(over: DataFrame, condition: Column | str) -> list[Demand] | None:
    """The filters of a condition on `over`, a DataFrame that `blank` made; None: this Spark can't say.

    Raises AnalysisException for an invalid condition.
    """
    planned: Any = over.where(condition)._jdf
    try:
        plan = planned.queryExecution().optimizedPlan()
        if plan.nodeName() != "Filter" or plan.child().nodeName() != "LogicalRDD":
            return []  # a join with a subquery, say
        return list(_translated(over, plan.condition()))
    except Py4JError:
        return None


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


def _translated(over: DataFrame, expression: Any) -> Iterator[Demand]:
    """The demands of a condition: one or none for each part of a chain of AND, one (`either`) for a chain of OR."""
    kind = _kind(expression)
    if kind == "And":
        for part in _chain(expression, kind):
            yield from _translated(over, part)
        return
    if kind == "Or":
        parts = list(_chain(expression, kind))
        if len(parts) <= MOST_PARTS:
            yield either(_translated(over, part) for part in parts)
        return
    jvm: Any = over.sparkSession.sparkContext._jvm
    strategy = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceStrategy$").__getattr__("MODULE$")
    translated = strategy.translateFilter(expression, False)
    if not translated.isDefined():
        return
    found = translated.get()
    kind = found.getClass().getSimpleName()
    if kind in (*COMPARISONS, "StringStartsWith"):
        yield Demand(kind, found.attribute().lower(), found.value())
    elif kind == "In":
        yield Demand(kind, found.attribute().lower(), list(found.values()))
    elif kind == "IsNull":
        yield Demand(kind, found.attribute().lower())


def _chain(expression: Any, kind: str) -> Iterator[Any]:
    """The parts of a chain of AND, or of OR, however it is bracketed. Not recursive: a long chain is a deep tree."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if _kind(part) == kind:
            waiting += [part.right(), part.left()]
        else:
            yield part


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())
