"""The notation of messages in the schema, and how the fields of one version are read from it.

Each line has a field: its name, its type, and if necessary the versions that have it, its default and its tag. The
fields of a struct follow it, indented by two:

    topics          []               an array of structs
      name          string           a string in all versions
      topic_id      uuid     13+     from version 13 on; `-12`: up to 12; `3-5`, `4`
      partitions    []int32          an array of numbers
      metadata      bytes?           may be null, and its default is null; `string?7+`: may be null from version 7 on
      leader_epoch  int32    5+  = -1    its default, if the version lacks it or a writer leaves it out
      leader        {}       10+  tag 0  one struct; a tagged field, which is left out when it equals its default
      cursor        {}?              a struct that may be null
    topics          []       once name,topic_id   a set: each element once, by this key
      partitions    []int32  once                 each number once

Types: bool, int8, int16, uint16, int32, int64, float64, uuid (16 bytes), string, bytes, records. Without `=`, a default
is 0, "", b"", an empty array, or a struct of defaults.

`once` marks an array of a request that Kafka treats as a set: the reader gives each element once. Of several elements
with the same key it gives the last, at the position of the first (as Kafka, which puts them into a map); but their own
arrays marked `once` are joined. An array is not marked if Kafka refuses duplicates, or answers by position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

FIXED = {  # types of a fixed width, and their format characters in `struct`
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
UUID_ZERO = bytes(16)
_TYPE = re.compile(r"(\[\])?(\w*|\{\})(\?([\d+-]*))?")


class Versions(NamedTuple):
    """The versions of an API that the codec reads and writes, from `low` to `high`, both included.

    `flexible`: the first flexible version (KIP-482). From there on lengths are varints, every struct ends with tagged
    fields, and messages have request header 2 and response header 1. Versions that Apache Kafka 4 removed (KIP-896) are
    not supported.
    """

    low: int
    high: int
    flexible: int = 1 << 15  # above every version: none is


class Shape(NamedTuple):
    """An API's versions, and the fields of its request and response, in the notation."""

    versions: Versions
    request: str
    response: str


class VersionSpan(NamedTuple):
    """Versions from `low` to `high`, both included."""

    low: int
    high: int

    @classmethod
    def read(cls, text: str | None) -> VersionSpan:
        if not text:
            return ALWAYS
        low, dash, high = text.partition("-")
        if text.endswith("+"):
            return cls(int(text[:-1]), ALWAYS.high)
        return cls(int(low or 0), int(high) if dash else int(low))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high


ALWAYS = VersionSpan(0, 1 << 15)
NEVER = VersionSpan(1, 0)


@dataclass(frozen=True)
class Field:
    """`kind`: a name of FIXED, "string", "bytes", "records" or "struct". `present`, `nullable`: in the version chosen
    by `at`."""

    name: str
    kind: str
    array: bool
    versions: VersionSpan
    nulls: VersionSpan
    default: Any
    tag: int | None
    fields: tuple[Field, ...] = ()
    once: tuple[str, ...] | None = None  # of an array that is a set: the fields of its key; empty: the whole element
    present: bool = True
    nullable: bool = False

    def fresh(self) -> str:
        """Python source of a new default value."""
        if self.default is not None or self.nulls != NEVER:
            return repr(self.default)
        if self.array:
            return "[]"
        return "{" + ", ".join(f"{field.name!r}: {field.fresh()}" for field in self.fields) + "}"


def read(text: str) -> tuple[Field, ...]:
    """The fields of a message in the notation. Raises ValueError for a wrong line."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
    fields, rest = _block(lines, lines[0][0] if lines else 0)
    if rest:
        raise ValueError(f"indented too little: {rest[0][1]!r}")
    return fields


def _block(lines: list[tuple[int, str]], indent: int) -> tuple[tuple[Field, ...], list[tuple[int, str]]]:
    found = []
    while lines and lines[0][0] >= indent:
        depth, line = lines[0]
        if depth != indent:
            raise ValueError(f"indented too far: {line!r}")
        inner, lines = _block(lines[1:], indent + 2)
        found.append(_field(line, inner))
    return tuple(found), lines


def _field(line: str, inner: tuple[Field, ...]) -> Field:
    name, written, *more = line.split()
    match = _TYPE.fullmatch(written)
    versions = default = tag = once = None
    while more:
        word = more.pop(0)
        if word == "=" and more:
            default = more.pop(0)
        elif word == "tag" and more:
            tag = int(more.pop(0))
        elif word == "once":
            once = tuple(more.pop(0).split(",")) if inner and more else ()
        elif versions is None:
            versions = word
        else:
            raise ValueError(f"not a field: {line!r}")
    if match is None:
        raise ValueError(f"not a type: {line!r}")
    array, kind = bool(match[1]), match[2]
    is_struct = kind == "{}" or (array and not kind)
    if is_struct != bool(inner) or not (is_struct or kind in FIXED or kind in ("string", "bytes", "records")):
        raise ValueError(f"an unknown type, or fields missing: {line!r}")
    if once is not None and not (array and set(once) <= {each.name for each in inner} and bool(once) == is_struct):
        raise ValueError(f"once by what? {line!r}")
    nulls = VersionSpan.read(match[4]) if match[3] else NEVER
    value = None if array or is_struct or nulls != NEVER else _default(kind, default)
    return Field(
        name, "struct" if is_struct else kind, array, VersionSpan.read(versions), nulls, value, tag, inner, once
    )


def _default(kind: str, text: str | None) -> Any:
    match kind:
        case "bool":
            return text == "true"
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "uuid":
            return UUID_ZERO
        case "float64":
            return float(text or 0)
    return int(text or 0)


def at(fields: tuple[Field, ...], version: int) -> tuple[Field, ...]:
    """The fields as of one version, with `present` and `nullable` set."""
    return tuple(
        replace(
            field,
            fields=at(field.fields, version),
            present=version in field.versions,
            nullable=version in field.nulls,
        )
        for field in fields
    )


class Source:
    """The lines of a function that is compiled from fields: one of `reading` or `writing`. `flexible`: of a flexible
    version. `names`: what the lines use."""

    def __init__(self, flexible: bool, names: dict[str, Any]) -> None:
        self.flexible = flexible
        self.names = names
        self.lines: list[str] = []
        self.indent = ""
        self.count = 0
        self.run: list[tuple[str, str]] = []  # adjacent numbers that one Struct will take: (letter, variable or value)

    def new(self, prefix: str) -> str:
        """A new variable."""
        self.count += 1
        return f"{prefix}{self.count}"

    def add(self, *lines: str) -> None:
        self.lines += [self.indent + line for line in lines]

    def compiled(self, arguments: str, result: str) -> Any:
        """The function of these arguments that returns `result`."""
        lines = [f"def compiled({arguments}):", *("    " + line for line in self.lines), f"    return {result}"]
        exec("\n".join(lines), self.names)
        return self.names["compiled"]
