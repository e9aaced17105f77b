"""A response in parts: records go through as they were given, and everything else is bytes around them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from krappy.wire.kafka import ApiKey, Part, decode_response, encode_response
from krappy.wire.kafka.writing import INLINE


class InFile:
    """Stands for bytes of a file that nobody has read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def fetched(version: int, *records: Any) -> list[Part]:
    partitions = [{"partition_index": index, "records": each} for index, each in enumerate(records)]
    return encode_response(ApiKey.FETCH, version, 7, {"responses": [{"topic": "t", "partitions": partitions}]})


def records_of(version: int, parts: list[Part]) -> list[bytes | None]:
    """The records that a client reads, with zeros for those that are in files."""
    data = b"".join(bytes(part.size) if isinstance(part, InFile) else part for part in parts)
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    _, found = decode_response(ApiKey.FETCH, version, memoryview(data)[4:])
    every = [partition["records"] for partition in found["responses"][0]["partitions"]]
    return [None if each is None else bytes(each) for each in every]


@pytest.mark.parametrize("version", [4, 12])
def test_long_records_are_parts_of_their_own(version: int) -> None:
    view, whole, file = memoryview(bytes(range(250)) * 40), b"\xaa" * 5000, InFile(100_000)
    parts = fetched(version, view, file, whole)
    assert [type(part) for part in parts] == [bytes, memoryview, bytes, InFile, bytes, bytes] + [bytes] * (version > 11)
    assert parts[1] is view
    assert parts[3] is file
    assert parts[5] is whole
    assert records_of(version, parts) == [bytes(view), bytes(file.size), whole]


@pytest.mark.parametrize("version", [4, 12])
def test_a_list_of_buffers_is_the_records_of_one_partition(version: int) -> None:
    buffers = [b"\xaa" * 3000, memoryview(b"\xbb" * 10), InFile(5)]
    parts = fetched(version, buffers, [])
    assert parts[1:4] == buffers
    assert records_of(version, parts) == [b"\xaa" * 3000 + b"\xbb" * 10 + bytes(5), b""]


@pytest.mark.parametrize("version", [4, 12])
def test_short_records_are_copied_but_files_are_not(version: int) -> None:
    short = bytes(range(100))
    parts = fetched(
        version, short, memoryview(short), bytearray(short), [short, memoryview(short)], None, b"", InFile(0)
    )
    assert len(parts) == 1
    assert records_of(version, parts) == [short, short, short, short * 2, None, b"", b""]
    file = InFile(1)
    assert fetched(version, short, file)[1] is file
    edge = b"\xcc" * (INLINE + 1)
    assert fetched(version, edge)[1] is edge


def test_a_part_does_not_change_with_the_buffer_that_it_was_given_as() -> None:
    records = bytearray(5000)
    parts = fetched(4, records)
    records[0] = 1
    assert parts[1] == bytes(5000)


def test_records_that_are_read_are_a_view_of_the_frame() -> None:
    frame = memoryview(b"".join(fetched(12, b"\xaa" * 5000)))
    found = decode_response(ApiKey.FETCH, 12, frame[4:])[1]["responses"][0]["partitions"][0]["records"]
    assert isinstance(found, memoryview)
    assert found.obj is frame.obj
