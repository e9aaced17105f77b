"""What the filters of a query demand of keys, however Spark tells of them; and keys as options."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from krappy.spark.keys import NONE, Keys

REPLACED = "\ufffd"


class Demand(NamedTuple):
    """One filter: the name of its kind, as `pyspark.sql.datasource` and `org.apache.spark.sql.sources` both have it; or
    `EITHER`, whose value is a list of lists of demands, one of which holds as a whole."""

    kind: str
    column: str
    value: Any = None


EITHER = "Or"


def either(sides: Iterable[Iterable[Demand]]) -> Demand:
    return Demand(EITHER, "key", [list(side) for side in sides])


def narrowed(keys: Keys, demands: Iterable[Demand]) -> Keys:
    """The keys that all of these filters let through, at least. Unknown filters narrow nothing."""
    for each in demands:
        if each.column == "key":
            keys &= _of(each)
    return keys


def _of(each: Demand) -> Keys:
    """A table has no key that is null."""
    kind, value = each.kind, each.value
    if kind == EITHER:
        return reduce(or_, (narrowed(Keys(), side) for side in value), NONE)
    if kind == "In":
        found = [_key(item) for item in value if item is not None]
        return Keys() if None in found else Keys(exact=tuple(dict.fromkeys(key for key in found if key is not None)))
    if kind in ("EqualTo", "EqualNullSafe", "IsNull") and value is None:
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
    return made.get(kind, Keys())


def _key(value: Any) -> bytes | None:
    """A filter's value as a key: text is ordered as its UTF-8 is, in Spark as here.

    None: neither text nor bytes, or text that may have been something else, since Spark tells of it in place of bytes
    that are not UTF-8, as in `key < CAST(x'ff' AS STRING)`.
    """
    if isinstance(value, str):
        return None if REPLACED in value else value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


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
