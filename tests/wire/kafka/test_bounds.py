"""Bytes that lie about what follows: refused by ProtocolError, before anything is made of them."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import pytest

from krappy.errors import ProtocolError
from krappy.wire.kafka import (
    RANGES,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
    read_request,
)
from krappy.wire.kafka.codec import LONGEST_CLIENT_ID, MOST_ELEMENTS, MOST_TAGS, wants_no_answer
from krappy.wire.kafka.notation import at, read
from krappy.wire.kafka.reading import MOST, compile_reader
from tests.wire.kafka.samples import KINDS, Kind

ONE_PARTITION = "ffff 0001 00000001 00000001 0001 61 00000001 00000000"  # a Produce up to the length of the records
# (what is wrong, API, version, the body, what the error says of it)
WRONG = [
    ("more topics than bytes", ApiKey.METADATA, 4, "7fffffff", "beyond the end"),
    ("a topic too many", ApiKey.METADATA, 4, "00000002 0001 61 00", "ends early"),
    ("a negative count", ApiKey.METADATA, 4, "fffffffe 00", "a negative length"),
    ("null, before it was allowed", ApiKey.METADATA, 0, "ffffffff", "null"),
    ("a name that is null", ApiKey.METADATA, 4, "00000001 ffff 00", "null"),
    ("a name that is beyond the frame", ApiKey.METADATA, 4, "00000001 0005 6161 00", "beyond the end"),
    ("a name of negative length", ApiKey.METADATA, 4, "00000001 8000 00", "null"),
    ("a name that is not UTF-8", ApiKey.METADATA, 4, "00000001 0002 c328 00", "not UTF-8"),
    ("half of a surrogate pair", ApiKey.METADATA, 4, "00000001 0003 eda080 00", "not UTF-8"),
    ("nothing", ApiKey.METADATA, 4, "", "ends early"),
    ("a count as varint, beyond the frame", ApiKey.METADATA, 9, "ffffffff0f 00 00 00 00", "beyond the end"),
    ("a varint of more than 32 bits", ApiKey.METADATA, 9, "ffffffff7f 00 00 00 00", "varint"),
    ("a varint of six bytes", ApiKey.METADATA, 9, "808080808000 00 00 00 00", "varint"),
    ("a varint that is cut", ApiKey.METADATA, 9, "ffff", "ends early"),
    ("a compact name that is null", ApiKey.METADATA, 9, "02 00 00 00 00 00 00", "null"),
    ("more tagged fields than bytes", ApiKey.METADATA, 9, "00 00 00 00 ff01", "ends early"),
    ("a tagged field beyond the frame", ApiKey.METADATA, 9, "00 00 00 00 01 05 ffffffff0f", "beyond the end"),
    ("records beyond the frame", ApiKey.PRODUCE, 7, ONE_PARTITION + "7fffffff", "beyond"),
    ("records of a negative length", ApiKey.PRODUCE, 7, ONE_PARTITION + "80000000", "neg"),
    ("partitions as numbers, too many", ApiKey.OFFSET_FETCH, 1, "0001 67 00000001 0001 74 20000000 00000000", "beyond"),
    ("a struct that is cut", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, "01 00000001 01 02 74 0000", "ends early"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "version", "body", "text"), [case[1:] for case in WRONG], ids=[c[0] for c in WRONG])
def test_wrong_bytes(key: ApiKey, version: int, body: str, text: str) -> None:
    with pytest.raises(ProtocolError, match=text) as error:
        decode_request(key, version, memoryview(bytes.fromhex(body)))
    assert error.value.text.startswith(f"{key.name} version {version}: ")


def test_a_tagged_field_of_another_size_than_it_says() -> None:
    fetch = Kind(ApiKey.FETCH, 12, False)
    body = fetch.encode({"cluster_id": "abc"})
    assert body.endswith(bytes.fromhex("01 00 04 04616263"))
    for size, inner in ((3, "04616263"), (5, "0461626300"), (4, "03616263")):
        with pytest.raises(ProtocolError):
            fetch.decode(body[:-7] + bytes([1, 0, size]) + bytes.fromhex(inner))


def test_a_string_of_a_flexible_version_has_the_old_limit() -> None:
    heartbeat = Kind(ApiKey.HEARTBEAT, 4, False)
    assert heartbeat.decode(heartbeat.encode({"group_id": "g" * 32767}))["group_id"] == "g" * 32767
    with pytest.raises(ValueError, match="32768 bytes"):
        heartbeat.encode({"group_id": "g" * 32768})
    with pytest.raises(ProtocolError, match="too long"):
        heartbeat.decode(bytes.fromhex("818002") + b"g" * 32768 + bytes(4) + b"\1\0\0")


def test_nothing_is_allocated_for_a_count_that_does_not_fit() -> None:
    bodies = [(kind, b"\x7f" * 64) for kind in KINDS if not kind.response]
    bodies += [(kind, b"\xff\xff\xff\xff\x07" * 12) for kind in KINDS if not kind.response]
    for kind, body in bodies:  # compile first
        with contextlib.suppress(ProtocolError):  # some requests have no fields, and pass over what they are given
            kind.decode(body)
    tracemalloc.start()
    try:
        for kind, body in bodies:
            with contextlib.suppress(ProtocolError):
                kind.decode(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_array_of_a_request_has_so_many_elements_and_no_more() -> None:
    """A name of no letters is one byte on the wire, and a dict of hundreds of bytes in memory."""
    kind = Kind(ApiKey.METADATA, 9, False)
    kind.decode(kind.encode({"topics": [{"name": ""}] * MOST}))
    with pytest.raises(ProtocolError, match="too many elements"):
        kind.decode(kind.encode({"topics": [{"name": ""}] * (MOST + 1)}))


def test_the_elements_of_all_arrays_count_together() -> None:
    kind, numbers = Kind(ApiKey.OFFSET_FETCH, 1, False), [0] * (MOST_ELEMENTS // 4 - 1)
    topics = [{"name": f"{number}", "partition_indexes": numbers} for number in range(4)]
    kind.decode(kind.encode({"topics": topics}))
    topics[3] = {"name": "3", "partition_indexes": [*numbers, 0]}
    with pytest.raises(ProtocolError, match="too many elements"):
        kind.decode(kind.encode({"topics": topics}))


def tags(number: int) -> bytes:
    """`number` tagged fields of an unknown tag, without a value: two bytes each."""
    assert 128 <= number < 1 << 21
    return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14]) + b"\x05\0" * number


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [(ApiKey.METADATA, 12, "01 00 00"), (ApiKey.FETCH, 16, "ffffffff" + "00" * 17 + "01 01 01")],
    ids=["with unknown tags only", "with tags of its own"],
)
def test_tagged_fields_count_as_elements(key: ApiKey, version: int, fields: str) -> None:
    """A frame has room for millions of them."""
    body = bytes.fromhex(fields)
    assert read_request(key, version, memoryview(body + tags(MOST_ELEMENTS)))[1] == MOST_ELEMENTS
    with pytest.raises(ProtocolError, match="too many tagged fields"):
        decode_request(key, version, memoryview(body + tags(MOST_ELEMENTS + 1)))


def test_tagged_fields_of_a_header() -> None:
    start = HEADER.pack(3, 12, 1, -1)
    assert parse_header(memoryview(start + tags(MOST_TAGS))).body_at == 10 + len(tags(MOST_TAGS))
    with pytest.raises(ProtocolError, match="too many tagged fields"):
        parse_header(memoryview(start + tags(MOST_TAGS + 1)))


def test_tagged_fields_of_all_structs_count_together() -> None:
    kind = Kind(ApiKey.METADATA, 12, False)
    one = kind.encode({"topics": [{"name": ""}]})
    assert one.startswith(b"\2" + bytes(16) + b"\1\0")
    topic = one[1:18] + tags(MOST_ELEMENTS // 2 - 1)
    assert kind.decode(b"\3" + topic * 2 + one[19:])
    topic = one[1:18] + tags(MOST_ELEMENTS // 2)
    with pytest.raises(ProtocolError, match="too many tagged fields"):
        kind.decode(b"\3" + topic * 2 + one[19:])


def test_a_response_may_have_more() -> None:
    kind = Kind(ApiKey.LIST_GROUPS, 0, True)
    found = kind.decode(kind.encode({"groups": [{"group_id": ""}] * (MOST_ELEMENTS + 1)}))
    assert len(found["groups"]) == MOST_ELEMENTS + 1


def test_an_element_of_no_bytes_is_not_compiled() -> None:
    """Else any number of them would fit into no bytes."""
    fields = at(read("a []\n  b int32 5+"), 4)
    with pytest.raises(ValueError, match="an element of no bytes"):
        compile_reader(fields, flexible=False)
    assert compile_reader(fields, flexible=True)(memoryview(b"\2\0\0"), 0, 3, 9) == ({"a": [{"b": 0}]}, 3, 8)


# --- headers


HEADER = struct.Struct(">hhih")


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"", "ends early"),
        (HEADER.pack(3, 4, 1, -1)[:9], "ends early"),
        (HEADER.pack(3, 4, 1, 1), "ends early"),
        (HEADER.pack(3, 4, 1, -2), "negative"),
        (HEADER.pack(3, 4, 1, 2) + b"\xc3\x28", "UTF-8"),
        (HEADER.pack(3, 9, 1, -1), "ends early"),
        (HEADER.pack(3, 9, 1, -1) + b"\x01\x00\x05", "beyond the end"),
        (HEADER.pack(71, 0, 1, -1), "unknown API key 71"),
        (HEADER.pack(-1, 0, 1, -1), "unknown API key -1"),
    ],
)
def test_invalid_headers(frame: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        parse_header(memoryview(frame))


def test_headers() -> None:
    assert parse_header(memoryview(HEADER.pack(3, 4, -7, -1))) == (ApiKey.METADATA, 4, -7, None, 10)
    assert parse_header(memoryview(HEADER.pack(3, 4, 0, 0) + b"body")) == (ApiKey.METADATA, 4, 0, "", 10)
    flexible = HEADER.pack(3, 9, 0, 1) + b"c" + bytes.fromhex("02 00 01 ff 07 00") + b"body"
    header = parse_header(memoryview(flexible))
    assert flexible[header.body_at :] == b"body"
    assert tuple(header) == (ApiKey.METADATA, 9, 0, "c", 17)


@pytest.mark.parametrize("version", range(RANGES[ApiKey.PRODUCE][0], RANGES[ApiKey.PRODUCE][1] + 1))
def test_a_produce_that_wants_no_answer(version: int) -> None:
    for acks, id in ((0, None), (1, None), (-1, None), (0, "id"), (0, "")):
        body: dict[str, object] = {"transactional_id": id, "acks": acks, "timeout_ms": 0, "topic_data": []}
        frame = encode_request(ApiKey.PRODUCE, version, 1, "client", body)[4:]
        assert wants_no_answer(memoryview(frame)) == (acks == 0 and id is None)


def test_of_a_long_client_id_only_the_beginning_is_read() -> None:
    """Each of thousands of connections keeps the client id of its last request."""
    header = parse_header(memoryview(HEADER.pack(3, 4, 1, 32767) + b"c" * 32767 + b"body"))
    assert (header.client_id, header.body_at) == ("c" * LONGEST_CLIENT_ID, 10 + 32767)


@pytest.mark.parametrize("version", [-1, -32768, 14, 32767])
def test_a_version_that_is_not_spoken(version: int) -> None:
    header = parse_header(memoryview(HEADER.pack(3, version, 1, -1) + b"\0\0\0"))
    assert header[:2] == (ApiKey.METADATA, version)
    with pytest.raises(ProtocolError, match=r"is not spoken, only 0 to 13"):
        decode_request(ApiKey.METADATA, version, memoryview(b"\0\0"))
    with pytest.raises(ProtocolError, match="is not spoken"):
        decode_response(ApiKey.METADATA, version, memoryview(bytes(9)))


@pytest.mark.parametrize("rest", [b"", b"\0\0", b"\xff\xff\xff", b"\x03\x09\xff whatever"])
def test_api_versions_of_an_unknown_version_is_read_and_answered_as_version_0(rest: bytes) -> None:
    """KIP-511: this is how a newer client learns what an older broker speaks."""
    newest = RANGES[ApiKey.API_VERSIONS][1]
    for version in (newest + 1, 32767):
        header = parse_header(memoryview(HEADER.pack(18, version, 5, -1) + rest))
        assert header[:4] == (ApiKey.API_VERSIONS, version, 5, None)
        assert decode_request(ApiKey.API_VERSIONS, version, memoryview(rest))["client_software_name"] == ""
        body = {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": newest}]}
        frame = b"".join(encode_response(ApiKey.API_VERSIONS, version, 5, body))
        assert decode_response(ApiKey.API_VERSIONS, 0, memoryview(frame)[4:])[1]["error_code"] == 35
    with pytest.raises(ProtocolError, match="is not spoken"):
        decode_request(ApiKey.API_VERSIONS, -1, memoryview(b""))
