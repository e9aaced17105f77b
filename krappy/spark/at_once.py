"""A few keys of a table without a job: this program looks them up, and hands them to Spark as rows.

For a query, Spark would start a task and call Python processes three times. That takes a hundred milliseconds, of which
the broker needs less than one. So if a DataFrame is only some keys of a table, its actions are answered here, each by a
new lookup. DataFrames made from it are ordinary queries. Both read the table as it is when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

from krappy.spark.options import parse
from krappy.spark.schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_KEYS = 1_000
MOST_BYTES = 8 << 20
ACTIONS = (
    "collect",
    "count",
    "first",
    "head",
    "isEmpty",
    "show",
    "tail",
    "take",
    "toArrow",
    "toLocalIterator",
    "toPandas",
)


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame | None:
    """The rows of the keys that `options` name; None if they name no keys, more than MOST_KEYS, or rows of more than
    MOST_BYTES: tasks are better at that.

    Raises what the tasks would, but not wrapped by Spark: UnknownTopic, ViewDisabled, ConnectionLost, SnapshotGone, …
    """
    import pyarrow as pa

    from krappy.spark.table_read import TableReader

    asked = parse(options, "log")
    if asked.keys.exact is None or len(asked.keys.exact) > MOST_KEYS:
        return None
    schema = spark_schema(asked.columns, asked.key_type)
    reader = TableReader(schema, asked)
    shape = arrow_schema(schema)
    found, size = [pa.RecordBatch.from_pylist([], shape)], 0  # Spark needs at least one batch
    for task in reader.partitions():
        for batch in reader.read(task):
            found.append(batch)
            size += batch.nbytes
            if size > MOST_BYTES:
                return None
    rows = pa.Table.from_batches(found)
    made: DataFrame = spark.createDataFrame(rows, schema)
    return made


def answered(spark: SparkSession, read: Callable[[], DataFrame], now: Callable[[], DataFrame | None]) -> DataFrame:
    """A DataFrame that Spark takes for the one that `read` returns. Each of its ACTIONS calls `now` again, and runs on
    the DataFrame that it returns, or on `read`'s if that is None."""
    if hasattr(spark, "_jsparkSession"):
        from pyspark.sql.classic.dataframe import DataFrame

        made: Any = object.__new__(_answering(DataFrame))
        made._krappy = _Ways(read, now)
        DataFrame.__init__(made, None, spark)
        return made  # type: ignore[no-any-return]
    made = read()  # over Spark Connect that sends no request
    kind: Any = type(made)
    made._krappy = _Ways(read, now)
    made.__class__ = _answering(kind)
    return made  # type: ignore[no-any-return]


class _Ways:
    def __init__(self, read: Callable[[], DataFrame], now: Callable[[], DataFrame | None]) -> None:
        self._read, self._now = read, now
        self._planned: DataFrame | None = None

    def plan(self) -> DataFrame:
        """The ordinary DataFrame."""
        if self._planned is None:
            self._planned = self._read()
        return self._planned

    def act(self, name: str, *given: Any, **named: Any) -> Any:
        found = self._now()
        return getattr(self.plan() if found is None else found, name)(*given, **named)


@lru_cache
def _answering(kind: Any) -> Any:
    """A subclass of DataFrame with those actions. Without Spark Connect, its JVM object is made on first use: to make
    it, Spark calls a Python process."""

    def action(name: str) -> Any:
        @wraps(getattr(kind, name))
        def act(self: Any, *given: Any, **named: Any) -> Any:
            return self._krappy.act(name, *given, **named)

        return act

    methods: dict[str, Any] = {name: action(name) for name in ACTIONS}
    if not kind.__module__.startswith("pyspark.sql.connect"):
        methods["_jdf"] = property(lambda self: self._krappy.plan()._jdf, lambda self, none: None)
    return type(kind.__name__, (kind,), methods)
