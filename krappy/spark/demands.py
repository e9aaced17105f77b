"""Turns comparisons of the key into the keys that they demand, and keys into options."""

from __future__ import annotations

import base64
import json
from typing import Any

from krappy.spark.keys import NONE, Keys

REPLACED = "\ufffd"


def compared(kind: str, value: Any = None) -> Keys:
    """The keys that pass a filter, or more keys than these; all, if the filter is unknown.

    `kind`: the filter's name in `pyspark.sql.datasource`. No key of a table is null, so `= NULL` and IS NULL let none
    through.
    """
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
