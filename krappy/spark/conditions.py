"""Which keys a condition demands: the one way to learn it, of text and of Columns, with Spark Connect and without.

    table.where("key = 'u1' AND offset > 0")        table.where((table.key == "u1") & (table["offset"] > 0))

Spark is not asked. Over Connect it tells no program how it understands a condition. In the program's own JVM it does,
but only by plans, which differ from version to version. So a condition is read here as calls (`condition_text.py`),
whether it is text, a node of a Column in the JVM, or a Connect Column's message (`Expression` in Spark's
spark/connect/expressions.proto). These are alike from PySpark 4.0 to 4.3. Keys are narrowed only by what means the same
under all settings of the session: comparisons of the column `key` with literals. Spark compares these byte by byte,
whether it casts the text or the bytes. All else, and what is unknown here, narrows nothing. Spark applies the whole
condition to the rows in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from krappy.spark.condition_text import COMPARED, DEEPEST, Function, Literal, Name, read
from krappy.spark.demands import compared
from krappy.spark.keys import NONE, Keys

if TYPE_CHECKING:
    from pyspark.sql import Column

KEY = Name("key")
MOST_PARTS = 1_000  # conditions joined by OR; more of them narrow nothing
KINDS = {
    "=": "EqualTo",
    "==": "EqualTo",
    "<=>": "EqualNullSafe",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
}
KEYS = {"string": (str, type(None)), "binary": (str, bytes, type(None))}
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}  # 'u1' < key
assert tuple(KINDS) == COMPARED


def keys(condition: Column | str, key_type: str, client: Any = None) -> Keys:
    """The keys of a table with `key_type` for which the condition may hold, or more keys than these.

    `client`: that of a session of Spark Connect, which some Columns need to become a message.
    """
    given: Any = condition
    if isinstance(given, str):
        said = read(given)
    elif hasattr(given, "_jc"):
        said = _whole(_of_node(given._jc.node()), _of_node)
    else:
        said = _whole(_of_message(given.to_plan(client)), _of_message)
    return _keys(said, key_type).as_range()


def _whole(said: Any, opened: Callable[[Any], Any], left: int = DEEPEST) -> Any:
    """A call with its arguments opened, too, and the arguments of these; None if they are too deep. A chain of ANDs, or
    of ORs, becomes one call, because as operators a long chain is a deep tree."""
    if not isinstance(said, Function):
        return said
    if not left:
        return None
    parts, waiting = [], said.arguments[::-1]
    while waiting:
        part = opened(waiting.pop())
        if isinstance(part, Function) and part.name == said.name and part.name in ("and", "or"):
            waiting += part.arguments[::-1]
        else:
            parts.append(_whole(part, opened, left - 1))
    return Function(said.name, parts)


def _keys(said: Any, key_type: str) -> Keys:
    name, arguments = said if isinstance(said, Function) else ("", [])
    if name == "and":
        return reduce(and_, [_keys(each, key_type) for each in arguments], Keys())
    if name == "or" and len(arguments) <= MOST_PARTS:
        return reduce(or_, [_keys(each, key_type) for each in arguments], NONE)
    if arguments[1:] == [KEY] and name in KINDS and isinstance(arguments[0], Literal):
        name, arguments = TURNED.get(name, name), arguments[::-1]
    if arguments[:1] != [KEY] or not all(_is_literal(each, key_type) for each in arguments[1:]):
        return Keys()
    values = [each.value for each in arguments[1:]]
    if name == "in":
        return compared("In", values)
    if name == "isnull" and not values:
        return compared("IsNull")
    if name in KINDS and len(values) == 1:
        return compared(KINDS[name], values[0])
    if name in ("like", "startswith") and len(values) == 1 and key_type == "string":
        return _prefix(values[0], name == "like")
    return Keys()


def _prefix(text: str | None, pattern: bool) -> Keys:
    """The keys that begin with a text. `pattern`: the text is a pattern of LIKE."""
    if not pattern or text is None:
        return compared("StringStartsWith", text)
    plain = text.removesuffix("%")
    return Keys() if plain == text or {*"%_\\"} & {*plain} else compared("StringStartsWith", plain)


def _is_literal(given: Any, key_type: str) -> bool:
    """Whether it is NULL, text, or bytes that are not compared with text keys: Spark might cast these to text."""
    return isinstance(given, Literal) and isinstance(given.value, KEYS[key_type])


def _of_node(node: Any) -> Any:
    """A node (org.apache.spark.sql.internal.ColumnNode) as a call of nodes, a name, a literal, or None."""
    if isinstance(node, Function | Name | Literal | None):  # in a condition that is text
        return node
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedFunction" and not node.isDistinct():
        some = node.arguments()
        return Function(node.functionName().lower(), [some.apply(at) for at in range(some.size())])
    if kind == "UnresolvedAttribute" and not node.planId().isDefined():
        return Name(node.sql().lower())
    if kind == "Literal":
        value = node.value()
        return Literal(bytes(value) if isinstance(value, bytearray) else value)
    return read(node.expression()) if kind == "SqlExpression" else None


def _of_message(expression: Any) -> Any:
    """The same for a message. One with a field that is unknown here is None."""
    if isinstance(expression, Function | Name | Literal | None):
        return expression
    kind = expression.WhichOneof("expr_type")
    fields = {} if kind is None else _fields(getattr(expression, kind))
    if kind == "unresolved_function" and set(fields) == {"function_name", "arguments"}:
        return Function(fields["function_name"].lower(), list(fields["arguments"]))
    if kind == "unresolved_attribute" and set(fields) == {"unparsed_identifier"}:
        return Name(fields["unparsed_identifier"].lower())
    if kind == "literal" and (set(fields) == {"null"} or set(fields) in ({"string"}, {"binary"})):
        return Literal(fields.get("string", fields.get("binary")))
    return read(fields["expression"]) if kind == "expression_string" and set(fields) == {"expression"} else None


def _fields(message: Any) -> dict[str, Any]:
    """The fields that a message has, without flags that are false."""
    return {field.name: value for field, value in message.ListFields() if value is not False}
