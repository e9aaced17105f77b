"""Filters of a query that narrow the keys to read.

Spark pushes the filters of a query into a reader that overrides `pushFilters`, but keeps the narrowed reader for every
DataFrame that comes of the same load(), also those without the filter: their answers are wrong, and nothing in Python
sees it. So a plain load() does not push. What does, and is right:

- `krappy.spark.table(…).where(condition)` has Spark plan a load of its own with the condition, which is thrown away as
  soon as its reader was told the filters. What they say of the key becomes options of another load, which pushes
  nothing; and Spark filters its rows by the whole condition.
- `pushdown=true` takes Spark's way, for those who never use a load() twice.

Both leave every filter to Spark as well: what is read here is always at least what the filters let through.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from krappy.spark.keys import NONE, Keys
from krappy.spark.options import Options
from krappy.spark.table_read import TableReader

BEGIN, END = "<<krappy-keys:", ":krappy-keys>>"


def narrowed(keys: Keys, filters: Iterable[Any]) -> Keys:
    """The keys that all of these filters let through, at least. Unknown filters narrow nothing."""
    for each in filters:
        if getattr(each, "attribute", None) == ("key",):
            keys &= _of(each)
    return keys


def _of(each: Any) -> Keys:
    """A table has no key that is null."""
    name: str = type(each).__name__
    value: Any = getattr(each, "value", None)
    if name == "In":
        found = [_key(item) for item in value if item is not None]
        return Keys() if None in found else Keys(exact=tuple(dict.fromkeys(key for key in found if key is not None)))
    if name in ("EqualTo", "EqualNullSafe", "IsNull") and value is None:
        return NONE
    key = _key(value)
    if key is None:
        return Keys()
    made = {
        "EqualTo": Keys(exact=(key,)),
        "EqualNullSafe": Keys(exact=(key,)),
        "GreaterThan": Keys(start=key + b"\0"),
        "GreaterThanOrEqual": Keys(start=key),
        "LessThan": Keys(end=key),
        "LessThanOrEqual": Keys(end=key + b"\0"),
        "StringStartsWith": Keys(prefix=key),
    }
    return made.get(name, Keys())


def _key(value: Any) -> bytes | None:
    """A filter's value as a key: text is ordered as its UTF-8 is, in Spark as here. None: neither text nor bytes."""
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


class PushdownReader(TableReader):
    """pushdown=true: Spark's own way. Needs spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        self._keys = narrowed(self._keys, filters)
        return filters  # Spark filters, too


class ToldReader(TableReader):
    """pushdown=tell: reads nothing, and raises what the filters of its query say of the key."""

    def __init__(self, schema: StructType, options: Options) -> None:
        super().__init__(schema, options)

    def pushFilters(self, filters: list[datasource.Filter]) -> NoReturn:
        raise KeysTold(narrowed(self._options.keys, filters))

    def partitions(self) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Any:
        return iter(())


class KeysTold(Exception):
    """Not an error: the way in which a reader's Python process can say something to the program that plans a query."""

    def __init__(self, keys: Keys) -> None:
        body = json.dumps(options_of(keys))
        super().__init__(BEGIN + base64.b64encode(body.encode()).decode() + END)


def told(message: str) -> dict[str, str] | None:
    """The key options in the text of an error; None: it has none, or not whole."""
    match = re.search(re.escape(BEGIN) + "([A-Za-z0-9+/=]*)" + re.escape(END), message)
    if match is None:
        return None
    found: dict[str, str] = json.loads(base64.b64decode(match[1]))
    return found


def options_of(keys: Keys) -> dict[str, str]:
    """Keys as options."""
    given: dict[str, str] = {}
    if keys.exact is not None:
        given["keys"] = json.dumps([_written(key) for key in keys.exact])
    for name, key in (("keyPrefix", keys.prefix), ("keyFrom", keys.start), ("keyTo", keys.end)):
        if key is not None:
            given[name] = _written(key)
    return {**given, "keyEncoding": "base64"} if given else {}


def _written(key: bytes) -> str:
    return base64.b64encode(key).decode()
