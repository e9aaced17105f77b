"""Large requests are unpacked as any other, except for those that would take many times their size."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import msgpack
import pytest

from krappy.errors import InvalidRequest, ProtocolError
from krappy.wire import messages as m
from krappy.wire.schema import SMALL, TooMuch, parse, take_id, unpack, unpack_request

LARGE: list[dict[str, Any]] = [
    {"id": 1, "handle": 7, "partition": 0, "records": b"r" * (3 * SMALL), "expect": None},
    {"id": 1, "handle": 7, "partition": 0, "records": b"r" * (3 * SMALL), "expect": [[0, -1], [1, 5]]},
    {"id": 2**63 - 1, "handle": 1, "payload": b"p" * SMALL, "key": b"k" * SMALL, "headers": [["h", b"v" * 1000]]},
    {"id": 1, "text": "é" * SMALL, "number": -1.5, "deep": [[[{"x": None}]]], "more": b"\0" * 70_000, "last": True},
    {f"field {number}": b"x" * SMALL for number in range(15)},
]


@pytest.mark.parametrize("values", LARGE, ids=range(len(LARGE)))
def test_a_large_request_is_unpacked_as_any_other(values: dict[str, Any]) -> None:
    body = msgpack.packb(values)
    assert unpack_request(body) == unpack(body) == values
    assert unpack_request(memoryview(body)) == values


@pytest.mark.parametrize(
    "filler", [b"\x80", b"\x90", b"\xc0", b"\x91", b"\xa1x", b"\xc4\x01x"], ids=lambda data: data.hex()
)
def test_a_field_of_many_small_values_is_refused_by_name(filler: bytes) -> None:
    count = 2 * SMALL
    body = b"\x83\xa2id\x05\xa5topic\xa1t\xa4keys\xdd" + struct.pack(">I", count) + filler * count
    values = unpack_request(body)
    assert take_id(values) == 5
    assert isinstance(values["keys"], TooMuch)
    with pytest.raises(InvalidRequest, match=r"'keys' is wrong: over 1048576 bytes of values"):
        parse(m.MultiGet, values)


@pytest.mark.parametrize(
    "head",
    [b"", b"\x81", b"\x81\xa2id", b"\xc0", b"\x91", b"\xdc\x00\x01", b"\xdf\xff\xff\xff\xff", b"\x81\xc1",
     b"\x81\x01\x01", b"\x81\xa2id\xc6\xff\xff\xff\xff", b"\x81\xa2id\xdb\xff\xff\xff\xff",
     b"\x81\xa2id\xdb\x00\x00\x00\x02\xff\xff", b"\x82\xa2id\x01\xa1x\xc1", b"\xde\xff\xff"],
    ids=bytes.hex,
)  # fmt: skip
def test_only_a_protocol_error_leaves_it(head: bytes) -> None:
    for tail in (bytes(2 * SMALL), b"\xff" * 2 * SMALL, b"\x91" * 2 * SMALL, b"\xa1x" * SMALL):
        with pytest.raises(ProtocolError):
            take_id(unpack_request(head + tail))


def test_random_damage_to_a_large_request() -> None:
    random = Random(3)
    whole = bytearray(msgpack.packb(LARGE[1]))
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            data[random.choice([random.randrange(60), random.randrange(len(data))])] = random.getrandbits(8)
        try:
            found = unpack_request(bytes(data))
        except ProtocolError:
            continue
        assert TooMuch in map(type, found.values()) or found == unpack(bytes(data))
