"""pushdown=true: filters of a query narrow the keys to read, in Spark's own way.

Spark pushes the filters of a query into a reader that overrides `pushFilters`, but keeps the narrowed reader for every
DataFrame that comes of the same load(), also those without the filter: their answers are wrong, and nothing in Python
sees it. So a plain load() does not push, and this is for those who never use a load() twice. What is always right is
`krappy.spark.table(…).where(condition)`: Spark says what the condition demands of the key (`catalyst.py`, and over
Connect `telling.py`), and that becomes options of another load, which pushes nothing.

Both leave every filter to Spark as well: what is read here is always at least what the filters let through.
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
