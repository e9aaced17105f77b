"""pushdown=true: filters of a query narrow the keys to read, in Spark's own way.

Spark pushes the filters of a query into a reader that overrides `pushFilters`, but then uses that reader for every
DataFrame made from the same load(), also for those without the filter: their rows are wrong, and Python code can't
notice. So a plain load() does not push filters, and this option is for programs that use each load() only once. Always
right is `krappy.spark.table(…).where(condition)`: the keys that the condition demands (`conditions.py`) become options
of another load, which pushes nothing.

In both cases Spark applies every filter itself, too: what is read here has at least all rows that pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import datasource

from krappy.spark.demands import Demand, narrowed
from krappy.spark.table_read import TableReader


class PushdownReader(TableReader):
    """Needs spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        self._keys = narrowed(self._keys, demands(filters))
        return filters  # Spark filters, too


def demands(filters: Iterable[datasource.Filter]) -> Iterator[Demand]:
    """The demands of PySpark's filters on top-level columns."""
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1:
            yield Demand(type(each).__name__, path[0], getattr(each, "value", None))
