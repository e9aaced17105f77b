"""Learns a query's filters from the Python process that Spark starts to plan it: the only way over Spark Connect.

A query is planned only to learn its filters, and never runs. Spark ends a Python process that raises, and the next one
imports everything anew, so this module imports little.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from krappy.spark.demands import Demand, narrowed, options_of
from krappy.spark.keys import Keys

if TYPE_CHECKING:
    from pyspark.sql import datasource

    from krappy.spark.options import Options

BEGIN, END = "<<krappy-keys:", ":krappy-keys>>"


def demands(filters: Iterable[datasource.Filter]) -> Iterator[Demand]:
    """The demands of PySpark's filters on top-level columns."""
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1:
            yield Demand(type(each).__name__, path[0], getattr(each, "value", None))


class ToldReader(DataSourceReader):
    """pushdown=tell: reads nothing, and raises KeysTold with the keys that its query's filters demand."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options

    def pushFilters(self, filters: list[datasource.Filter]) -> NoReturn:
        raise KeysTold(narrowed(self._options.keys, demands(filters)))

    def partitions(self) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Any:
        return iter(())


class KeysTold(Exception):
    """Not an error: an exception is the only way in which a reader's Python process can tell the program something."""

    def __init__(self, keys: Keys) -> None:
        body = json.dumps(options_of(keys))
        super().__init__(BEGIN + base64.b64encode(body.encode()).decode() + END)


def told(message: str) -> dict[str, str] | None:
    """The key options in the text of an error; None if it has none, or is cut off."""
    match = re.search(re.escape(BEGIN) + "([A-Za-z0-9+/=]*)" + re.escape(END), message)
    if match is None:
        return None
    found: dict[str, str] = json.loads(base64.b64decode(match[1]))
    return found
