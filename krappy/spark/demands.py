"""Turns what a condition demands into keys, and keys into options."""

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
    """One filter. `kind`: its name in `pyspark.sql.datasource`; or `EITHER`, whose value is a list of lists of demands:
    all demands of at least one list hold."""

    kind: str
    column: str
    value: Any = None


EITHER = "Or"


def either(sides: Iterable[Iterable[Demand]]) -> Demand:
    """A demand that holds if all demands of at least one side do."""
    return Demand(EITHER, "key", [list(side) for side in sides])


def narrowed(keys: Keys, demands: Iterable[Demand]) -> Keys:
    """Those of `keys` that pass all filters, or more keys than these. Unknown filters narrow nothing."""
    for each in demands:
        if each.column == "key":
            keys &= _of(each)
    return keys


def _of(each: Demand) -> Keys:
    """The keys that pass one filter. No key of a table is null, so `= NULL` and IS NULL let none through."""
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
    """A filter's value as a key: Spark, too, orders text as its UTF-8.

    None if the value is neither text nor bytes, or is text with U+FFFD, which Spark shows in place of bytes that are
    not UTF-8, as in `key < CAST(x'ff' AS STRING)`.
    """
    if isinstance(value, str):
        return None if REPLACED in value else value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def options_of(keys: Keys) -> dict[str, str]:
    """The options that stand for `keys`; none for all keys."""
    given: dict[str, str] = {}
    if keys.exact is not None:
        given["keys"] = json.dumps([_written(key) for key in keys.exact])
    for name, key in (("keyPrefix", keys.prefix), ("keyFrom", keys.start), ("keyTo", keys.end)):
        if key is not None:
            given[name] = _written(key)
    return {**given, "keyEncoding": "base64"} if given else {}


def _written(key: bytes) -> str:
    return base64.b64encode(key).decode()
