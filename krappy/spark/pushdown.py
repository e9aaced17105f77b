"""pushdown=true: filters of a query narrow the keys to read, in Spark's own way.

Spark pushes the filters of a query into a reader that overrides `pushFilters`, but then uses that reader for every
DataFrame made from the same load(), also for those without the filter: their rows are wrong, and Python code can't
notice. So a plain load() does not push filters, and this option is for programs that use each load() only once. Always
right is `krappy.spark.table(…).where(condition)`: the keys that the condition demands (`conditions.py`) become options
of another load, which pushes nothing.

In both cases Spark applies every filter itself, too: what is read here has at least all rows that pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import datasource

from krappy.spark.demands import compared
from krappy.spark.keys import Keys
from krappy.spark.table_read import TableReader


class PushdownReader(TableReader):
    """Needs spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        self._keys = narrowed(self._keys, filters)
        return filters  # Spark filters, too


def narrowed(keys: Keys, filters: Iterable[datasource.Filter]) -> Keys:
    """Those of `keys` that pass all filters, or more keys than these."""
    for each in filters:
        if getattr(each, "attribute", None) == ("key",):
            keys &= compared(type(each).__name__, getattr(each, "value", None))
    return keys
