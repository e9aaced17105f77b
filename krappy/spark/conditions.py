"""Reads off a condition made of Columns which keys it demands, for clients of Spark Connect, without any request.

    (table.key == "u1") & (table["offset"] > 0)      table.key.isin("u1", "u2")

Only conditions that mean the same under all settings of the session narrow the keys: `==`, `<=>` and `in` of the column
`key` with literals of its own type, so that Spark casts neither, and these joined by `and` and `or`. A message with a
field that is unknown here narrows nothing. The condition is the message that the client sends, `Expression` in Spark's
spark/connect/expressions.proto, which is the same from PySpark 4.0 to 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from krappy.spark.demands import Demand, either, narrowed
from krappy.spark.keys import Keys

if TYPE_CHECKING:
    from pyspark.sql import Column

KINDS = {"==": "EqualTo", "<=>": "EqualNullSafe", "in": "In"}


def keys(condition: Column | str, key_type: str, client: Any = None) -> Keys | None:
    """The exact keys that a condition names, for a table with `key_type`; None if it names none, or is not understood.

    `client`: the session's, which some Columns need to become a message.
    """
    from pyspark.sql.connect.column import Column as Written

    if not isinstance(condition, Written):
        return None
    found = narrowed(Keys(), _demands(condition.to_plan(client), "string" if key_type == "string" else "binary"))
    return None if found.exact is None else found


def _demands(expression: Any, literal: str) -> Iterator[Demand]:
    if expression.WhichOneof("expr_type") != "unresolved_function":
        return
    function = _fields(expression.unresolved_function)
    if set(function) != {"function_name", "arguments"}:
        return
    name, arguments = function["function_name"], function["arguments"]
    if name == "and":
        for each in arguments:
            yield from _demands(each, literal)
    elif name == "or":
        yield either(_demands(each, literal) for each in arguments)
    elif name in KINDS and len(arguments) >= 2 and _is_key(arguments[0]):
        values = _literals(arguments[1:], literal)
        if values is not None and (name == "in" or len(values) == 1):
            yield Demand(KINDS[name], "key", values if name == "in" else values[0])


def _is_key(expression: Any) -> bool:
    """Whether it is the column `key`: of no certain DataFrame, and not `KEY`, which may be another column by the
    session's settings."""
    if expression.WhichOneof("expr_type") != "unresolved_attribute":
        return False
    return _fields(expression.unresolved_attribute) == {"unparsed_identifier": "key"}


def _literals(expressions: Sequence[Any], kind: str) -> list[Any] | None:
    """The values of literals of that kind; None if one is not such a literal."""
    found = []
    for each in expressions:
        fields = _fields(each.literal) if each.WhichOneof("expr_type") == "literal" else {}
        if set(fields) != {kind}:
            return None
        found.append(fields[kind])
    return found


def _fields(message: Any) -> dict[str, Any]:
    """The fields that a message has, without flags that are false."""
    return {field.name: value for field, value in message.ListFields() if value is not False}
