"""Handlers of Kafka's requests read and write dicts: a name that the API does not have would be left out in silence.

So every key that a file of handlers/kafka writes out, in a dict or to look something up, must be a field of one of the
APIs that the file serves; in a file that serves none, of any API. Keys in capitals are not fields.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import krappy.handlers.kafka
from krappy.wire.kafka import ApiKey
from krappy.wire.kafka.notation import Field, read
from krappy.wire.kafka.schema import TABLE

PRODUCE = "@serves(ApiKey.PRODUCE)\ndef produce(): ...\n"
FILES = sorted(Path(krappy.handlers.kafka.__file__).parent.glob("*.py"))


def names(fields: tuple[Field, ...]) -> Iterator[str]:
    for field in fields:
        yield field.name
        yield from names(field.fields)


FIELDS = {key: {*names(read(shape.request)), *names(read(shape.response))} for key, shape in TABLE.items()}


def keys(source: str) -> Iterator[tuple[int, str]]:
    """(line, key) of each constant key."""
    for node in ast.walk(ast.parse(source)):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            found = list(node.keys)
        elif isinstance(node, ast.Subscript):
            found = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            found = list(node.args[:1])
        for key in found:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.lineno, key.value


def wrong_keys(file: str, source: str) -> list[str]:
    served = [ApiKey[name] for name in re.findall(r"^@serves\(\s*ApiKey\.(\w+)", source, re.MULTILINE)]
    known = set().union(*(FIELDS[key] for key in served or FIELDS))
    others = (key for key in keys(source) if not key[1].isupper() and "." not in key[1])  # a feature's name has a dot
    return [f"{file}:{line}: {key}" for line, key in others if key not in known]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_is_a_field(path: Path) -> None:
    assert wrong_keys(path.name, path.read_text("utf-8")) == []


def test_the_files_are_found() -> None:
    assert {"produce.py", "fetch.py"} <= {path.name for path in FILES}


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("produce.py", PRODUCE + "x = {'base_ofset': 1}", 1),
        ("produce.py", PRODUCE + "x = {'base_offset': request['acks'], **{'error_code': 1}}", 0),
        ("produce.py", PRODUCE + "x = request['high_watermark']", 1),  # a field of Fetch
        ("sources.py", "x = request['high_watermark']", 0),
        ("sources.py", "x = request.get('max_wait')", 1),
        ("sources.py", "x = {'INT': 1}", 0),
    ],
)
def test_the_rule_catches(file: str, source: str, wrong: int) -> None:
    assert len(wrong_keys(file, source)) == wrong
