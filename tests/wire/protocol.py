"""Writes the part of PROTOCOL.md that tells of each message, from `messages/`: `make generate`.

A module is a chapter, and what its docstring says after the first sentence begins it. A request's docstring begins its
section; what an answer's says follows the tables. A field's comment is what it means, and begins with its type, as in
`[[topic, offset], …]: …` or `timestamp: …`, where that of the code does not tell it. `examples.py` has the examples.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack

import krappy.wire
from krappy.entries.entry import pack_entry
from krappy.wire import messages
from krappy.wire.frames import ANSWER
from krappy.wire.messages import Answer, Request
from tests.wire.examples import EXAMPLES

DOCUMENT = Path(krappy.wire.__file__).parent / "PROTOCOL.md"
BETWEEN = re.compile(r"(<!-- messages: .*? -->\n).*(<!-- end of the messages -->\n)", re.DOTALL)
CHAPTERS = {
    "publish": "Publishing",
    "consume": "Consuming",
    "groups": "Groups",
    "table": "The table",
    "columns": "The table and the log, by columns",
    "staging": "Staged writes",
    "topics": "Topics",
    "acls": "ACLs",
    "quotas": "Quotas",
    "server": "The broker, and any connection",
}
TYPES = {
    "AclList": "[acl, …]",
    "AclPattern": "any, match, literal or prefixed",
    "AclRow": "acl",
    "BinaryColumn": "column",
    "Bulk": "bin",
    "Column": "str",
    "Columns": "[str, …]",
    "Expect": "offset or -1",
    "HeaderList": "headers",
    "HeadersColumn": "column",
    "I31": "int ≥ 0",
    "I64": "i64",
    "Indexes": "[u32, …]",
    "Millis": "ms",
    "Names": "[str, …]",
    "Least": "offset or -1",
    "Offset": "offset",
    "OffsetList": "[[partition, offset], …]",
    "Order": '"none" or "key"',
    "PositionList": "[[topic, partition, offset], …]",
    "Positive": "int ≥ 1",
    "RangeList": "[[topic, partition, first, last], …]",
    "Start": "start",
    "Timestamp": "timestamp",
    "U32": "u32",
    "bytes": "bin",
    "dict": "map",
    "None": "nil",
}
Told = dict[str, tuple[str, str]]
TOLD = re.compile(r"(\[.*?…\]|\[entry\]|timestamp|int): (.*)", re.DOTALL)


def written(document: str) -> str:
    """The document with its messages written anew."""
    chapters = "\n".join(_chapter(importlib.import_module(f"krappy.wire.messages.{name}")) for name in CHAPTERS)
    assert BETWEEN.search(document) is not None
    return BETWEEN.sub(lambda found: f"{found[1]}\n{chapters}\n{found[2]}", document)


def _chapter(module: ModuleType) -> str:
    _, _, prose = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
    parts = [f"## {CHAPTERS[module.__name__.rpartition('.')[2]]}"]
    if prose:
        parts.append(prose)
    source = inspect.getsource(module)
    told = {node.name: _told(node, source) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    for name in told:
        if issubclass(request := getattr(module, name), Request):
            parts.append(_section(request, messages.ANSWERS[request.kind], told))
    return "\n\n".join(parts) + "\n"


def _told(node: ast.ClassDef, source: str) -> Told:
    """The type and the meaning of each field, from the comment beside it; and the docstring of the class."""
    lines = source.splitlines()
    told = {"": ((ast.get_docstring(node) or "").strip(), "")}
    for field in node.body:
        if not isinstance(field, ast.AnnAssign):
            continue
        assert isinstance(field.target, ast.Name)
        before: list[str] = []
        for line in reversed(lines[: field.lineno - 1]):
            if not line.strip().startswith("#"):
                break
            before.insert(0, line.strip().removeprefix("# "))
        beside = lines[field.end_lineno - 1][field.end_col_offset :].partition("#")[2].strip()  # type: ignore[operator]
        comment = " ".join(before) or beside or f"the {field.target.id}"
        if (found := TOLD.fullmatch(comment)) is not None:
            nil = " or nil" if ast.unparse(field.annotation).endswith("| None") else ""
            told[field.target.id] = found[1] + nil, found[2]
        else:
            told[field.target.id] = type_of(field.annotation), comment
    return told


def type_of(annotation: ast.expr) -> str:
    """A field's type as the document names it."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            left_type = type_of(left)
            return f"{left_type}{',' if ' to ' in left_type else ''} or {type_of(right)}"
        case ast.Subscript(ast.Name("list"), item):
            return f"[{type_of(item)}, …]"
        case ast.Subscript(ast.Name("dict"), _):
            return "map"
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([_, ast.Call(ast.Name("Range"), [low, high])])):
            bounds = [eval(ast.unparse(each)) for each in (low, high)]
            return f"int {bounds[0]} to {bounds[1]}"
        case ast.Name(name):
            return TYPES.get(name, name)
        case ast.Constant(None):
            return "nil"
    raise ValueError(f"a comment must begin with the type of a field that is {ast.unparse(annotation)}")


def _section(request: type[Request], answer: type[Answer], told: dict[str, Told]) -> str:
    asked, answered = told[request.__name__], told[answer.__name__]
    parts = [f"### {request.__name__} ({request.kind}), answered by {answer.__name__}", asked[""][0]]
    if request.table:
        rows = [
            f"| `{name}` | {asked[name][0]} | {_default(default)} | {asked[name][1]} |"
            for name, _, _, default in request.table
        ]
        parts.append("\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows]))
    else:
        parts.append(f"`{request.__name__}` has no fields but `id`.")
    if answer.table:
        rows = [f"| `{name}` | {' | '.join(answered[name])} |" for name, *_ in answer.table]
        parts.append("\n".join([f"| `{answer.__name__}` | type | meaning |", "|---|---|---|", *rows]))
    else:
        parts.append(f"`{answer.__name__}` has no fields but `id`.")
    if answered[""][0]:
        parts.append(answered[""][0])
    for name, fields in EXAMPLES:
        if name in (request.__name__, answer.__name__):
            parts.append(f"```frame\n{example(name, fields)}```")
    return "\n\n".join(parts)


def _default(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(value) if isinstance(value, int) else "required"


def as_packed(items: list[Any]) -> list[bytes]:
    """Keys, entries and nils as bytes, in the form that they have in a Raw field."""
    return [
        pack_entry(item[0], item[1], item[2], item[3]) if type(item) is list else msgpack.packb(item) for item in items
    ]


def class_of(name: str) -> type[Request] | type[Answer]:
    found: type[Request] | type[Answer] = getattr(messages, name)
    return found


def frame_of(name: str, fields: dict[str, Any]) -> bytes:
    cls = class_of(name)
    given = {field: value for field, value in fields.items() if field != "id"}
    if cls.raw is not None:
        given[cls.raw] = as_packed(given[cls.raw])
    return cls(**given).frame(fields["id"])


def example(name: str, fields: dict[str, Any]) -> str:
    """The title of an example, and its bytes, with their meaning beside them."""
    data = frame_of(name, fields)
    answer = issubclass(class_of(name), Answer)
    kind = int.from_bytes(data[4:8], "big") & ~ANSWER
    pieces = [
        (data[:4], f"size {len(data) - 4}"),
        (data[4:8], f"type {kind}{', an answer' if answer else ''}"),
    ]
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(data))
    unpacker.feed(data[8:])
    count, at = unpacker.read_map_header(), unpacker.tell()
    pieces.append((data[8 : 8 + at], f"map of {count}"))
    for _ in range(count):
        field = unpacker.unpack()
        unpacker.skip()
        end = unpacker.tell()
        pieces.append((data[8 + at : 8 + end], f"{field}: {_shown(fields[field])}"))
        at = end
    rows = []
    for octets, meaning in pieces:
        lines = textwrap.wrap(octets.hex(" "), 3 * 20 - 1)
        rows += [(lines[0], meaning), *((line, "") for line in lines[1:])]
    width = max(len(octets) for octets, _ in rows)
    return f"{name} {fields}\n" + "".join(f"{octets:<{width}}   {meaning}".rstrip() + "\n" for octets, meaning in rows)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _default(value)
    shown = str(value) if not isinstance(value, str | bytes) else repr(value)
    return shown if len(shown) <= 42 else shown[:41] + "…"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8")), "utf-8")
    print(f"krappy/wire/{DOCUMENT.name}")  # noqa: T201
