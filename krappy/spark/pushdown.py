"""pushdown=true: filters of a query narrow the keys to read, in Spark's own way.

Spark pushes the filters of a query into a reader that overrides `pushFilters`, but then uses that reader for every
DataFrame made from the same load(), also for those without the filter: their rows are wrong, and Python code can't
notice. So a plain load() does not push filters, and this option is for programs that use each load() only once. Always
right is `krappy.spark.table(…).where(condition)`: Spark says which keys the condition demands (`catalyst.py`, over
Connect `telling.py`), and these become options of another load, which pushes nothing.

In both cases Spark applies every filter itself, too: what is read here has at least all rows that pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import datasource

from krappy.spark.demands import narrowed
from krappy.spark.table_read import TableReader
from krappy.spark.telling import demands


class PushdownReader(TableReader):
    """Needs spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        self._keys = narrowed(self._keys, demands(filters))
        return filters  # Spark filters, too
