"""The notation of the schema table, and what it refuses."""

from __future__ import annotations

import pytest

from krappy.errors import ProtocolError
from krappy.wire.kafka.notation import ALWAYS, NEVER, VersionSpan, at, read
from krappy.wire.kafka.reading import compile_reader
from krappy.wire.kafka.writing import compile_writer


def test_a_field_in_all_its_parts() -> None:
    fields = read(
        """
        topics          []       2-4
          name          string?3+
          epochs        []int32  -3
        leader          {}       5+        tag 2
          id            int32    = -1
        auto            bool     1   = true
        """
    )
    topics, leader, auto = fields
    assert (topics.name, topics.kind, topics.array, topics.versions) == ("topics", "struct", True, VersionSpan(2, 4))
    name, epochs = topics.fields
    assert (name.kind, name.array, name.versions, name.nulls) == ("string", False, ALWAYS, VersionSpan(3, ALWAYS.high))
    assert (epochs.kind, epochs.array, epochs.versions, epochs.nulls) == ("int32", True, VersionSpan(0, 3), NEVER)
    assert (leader.kind, leader.array, leader.tag, leader.fresh()) == ("struct", False, 2, "{'id': -1}")
    assert (auto.versions, auto.default, auto.tag) == (VersionSpan(1, 1), True, None)


def test_a_version_of_it() -> None:
    fields = read("a string?2+ 1-3\nb []\n  c uuid -2")
    assert [(at(fields, version)[0].present, at(fields, version)[0].nullable) for version in range(5)] == [
        (False, False),
        (True, False),
        (True, True),
        (True, True),
        (False, True),
    ]
    assert [at(fields, version)[1].fields[0].present for version in (2, 3)] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name text",
        "name string!",
        "name int32 3+ 4+",
        "name int32 =",
        "name int32 = x",
        "name int32 tag",
        "name []",
        "name {}",
        "name int32\n  inner int32",
        "name int32\n    inner int32",
        "  name int32\nother int32",
    ],
)
def test_what_is_not_of_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text)


@pytest.mark.parametrize("flexible", [False, True])
def test_an_array_of_uuids(flexible: bool) -> None:
    """No API here has such an array yet, but Kafka has some."""
    fields = at(read("ids []uuid"), 0)
    given = {"ids": [bytes(16), bytes(range(16))]}
    data = bytes(compile_writer(fields, flexible)(bytearray(), [], given))
    assert data == (b"\3" if flexible else b"\0\0\0\2") + bytes(16) + bytes(range(16)) + b"\0" * flexible
    assert compile_reader(fields, flexible)(memoryview(data), 0, len(data), 2)[:2] == (given, len(data))
    with pytest.raises(ProtocolError, match="too many"):
        compile_reader(fields, flexible)(memoryview(data), 0, len(data), 1)
    with pytest.raises(ProtocolError, match="beyond the end"):
        compile_reader(fields, flexible)(memoryview(data[:32]), 0, 32, 2)
