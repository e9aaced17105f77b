"""Requests and responses as dicts, and back. The functions of an API, version and direction are compiled at first use.

Rule of this file: functions that read raise only ProtocolError, whatever the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from krappy.errors import ProtocolError
from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Field, at, read
from krappy.wire.kafka.reading import MOST, Reader, StepReader, compile_reader, compile_step_reader, skip_tags
from krappy.wire.kafka.schema import FIRST_FLEXIBLE, RANGES, TABLE
from krappy.wire.kafka.writing import Part, Writer, compile_writer

# Elements of all arrays and tagged fields of a request together. The limit bounds the memory that a small frame takes
# once it is decoded, and the time to decode it (about 100 ms).
MOST_ELEMENTS = 40_000
MOST_TAGS = 1_000  # tagged fields of a header; Kafka knows one
LONGEST_CLIENT_ID = 249  # characters of a client id; the rest is cut
WRONG = (ProtocolError, struct.error, IndexError, UnicodeDecodeError)  # what readers raise
_ANY_NUMBER = 1 << 31
# librdkafka (at least 2.16) asks for all topics by a null array of four bytes, though in this version it has one byte.
_ALL_TOPICS = bytes(4)

_HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_INT32 = struct.Struct(">i")
_KEYS = {int(key): key for key in ApiKey}


class Header(NamedTuple):
    """The header of a request, whose body begins at `body_at`."""

    api_key: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def parse_header(frame: memoryview) -> Header:
    """The header of a request. `frame`: the bytes after its size. The version need not be a supported one.

    The client id is a string of the old form in flexible versions too (KIP-482). Raises ProtocolError for an unknown
    API, or bytes that are no header.
    """
    try:
        number, version, correlation_id, size = _HEADER.unpack_from(frame, 0)
        key = _KEYS.get(number)
        if key is None:
            raise ProtocolError(f"unknown API key {number}")
        pos = 10
        client_id = None
        if size >= 0:
            pos += size
            if pos > len(frame):
                raise ProtocolError("a request header that ends early")
            client_id = str(frame[10:pos], "utf-8")[:LONGEST_CLIENT_ID]
        elif size != -1:
            raise ProtocolError("a client id of negative length")
        if version >= FIRST_FLEXIBLE[key] and not _is_unknown(key, version):
            tags = frame[pos]
            pos += 1
            if tags:
                pos, _ = skip_tags(frame, pos, len(frame), tags, MOST_TAGS)
    except (struct.error, IndexError):
        raise ProtocolError("a request header that ends early") from None
    except UnicodeDecodeError:
        raise ProtocolError("a client id that is not UTF-8") from None
    return Header(key, version, correlation_id, client_id, pos)


def wants_no_answer(frame: memoryview) -> bool:
    """Whether a Produce request (the bytes after its size) has acks=0. Not if it has a transactional id: transactions
    have answers. Raises ProtocolError."""
    header = parse_header(frame)
    no_id = b"\0" if header.version >= FIRST_FLEXIBLE[ApiKey.PRODUCE] else b"\xff\xff"
    wanted = no_id + b"\0\0"
    return frame[header.body_at : header.body_at + len(wanted)] == wanted


def decode_request(api_key: ApiKey, version: int, body: memoryview) -> dict[str, Any]:
    """The body of a request. Raises ProtocolError."""
    return read_request(api_key, version, body)[0]


def read_request(api_key: ApiKey, version: int, body: memoryview) -> tuple[dict[str, Any], int]:
    """(body of a request, how many elements of arrays and tagged fields it has together).

    The body has every key of the API; a field that the version lacks has its default. Bytes after the last field are
    ignored, as by Kafka: some clients pad. The body of an ApiVersions request of an unknown version is ignored: such a
    request is answered all the same (KIP-511). Raises ProtocolError.
    """
    if _is_unknown(api_key, version):
        return read_request(api_key, 0, memoryview(b""))
    read = _READERS.get((api_key, version, False)) or _reader(api_key, version, False)
    if api_key is ApiKey.METADATA and version >= 11 and len(body) == 7 and body[:4] == _ALL_TOPICS:
        body = body[3:]
    found, _, room = _decoded(read, body, 0, MOST_ELEMENTS, api_key, version)
    return found, MOST_ELEMENTS - room


def read_in_steps(api_key: ApiKey, version: int, body: memoryview) -> Generator[None, None, tuple[dict[str, Any], int]]:
    """As `read_request`, which may take long: a generator, which returns what that returns. Raises ProtocolError."""
    read = _STEP_READERS.get((api_key, version))
    if read is None:
        made = compile_step_reader(_fields(api_key, version, response=False), version >= FIRST_FLEXIBLE[api_key])
        read = _STEP_READERS.setdefault((api_key, version), made)
    try:
        found, _, room = yield from read(body, 0, len(body), MOST_ELEMENTS)
    except WRONG as error:
        raise _no_message(error, api_key, version) from None
    return found, MOST_ELEMENTS - room


def decode_response(api_key: ApiKey, version: int, frame: memoryview) -> tuple[int, dict[str, Any]]:
    """(correlation id, body of a response). `frame`: the bytes after its size. Raises ProtocolError."""
    read = _READERS.get((api_key, version, True)) or _reader(api_key, version, True)
    try:
        correlation_id: int = _INT32.unpack_from(frame, 0)[0]
        pos = 4
        if _has_tags(api_key, version):
            pos, _ = skip_tags(frame, 5, len(frame), frame[4], MOST_TAGS)
    except (struct.error, IndexError):
        raise ProtocolError("a response header that ends early") from None
    found, pos, _ = _decoded(read, frame, pos, _ANY_NUMBER, api_key, version)
    if pos != len(frame):
        raise ProtocolError(f"{api_key.name} version {version}: {len(frame) - pos} bytes too many")
    return correlation_id, found


def encode_response(api_key: ApiKey, version: int, correlation_id: int, body: Mapping[str, Any]) -> list[Part]:
    """A whole response with its size, in parts to be sent in order.

    Records of more than a few bytes are parts as they were given; all other parts are bytes. An ApiVersions response of
    an unknown version is written as version 0 (KIP-511).
    """
    if _is_unknown(api_key, version):
        version = 0
    write = _WRITERS.get((api_key, version, True)) or _writer(api_key, version, True)
    out = bytearray(b"\0\0\0\0" + _INT32.pack(correlation_id))
    if _has_tags(api_key, version):
        out += b"\0"
    return _framed(write, out, body)


def encode_request(
    api_key: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    """A whole request with its size."""
    write = _WRITERS.get((api_key, version, False)) or _writer(api_key, version, False)
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    out = bytearray(b"\0\0\0\0" + _HEADER.pack(api_key, version, correlation_id, size) + name)
    if version >= FIRST_FLEXIBLE[api_key]:
        out += b"\0"
    return b"".join(_framed(write, out, body))


def _is_unknown(api_key: ApiKey, version: int) -> bool:
    """Whether it is ApiVersions in a version that is too new: the one request that is answered all the same."""
    return api_key is ApiKey.API_VERSIONS and version > RANGES[api_key][1]


def _has_tags(api_key: ApiKey, version: int) -> bool:
    """Whether the response header ends with tagged fields; that of ApiVersions never does (KIP-511)."""
    return version >= FIRST_FLEXIBLE[api_key] and api_key is not ApiKey.API_VERSIONS


def _decoded(
    read: Reader, frame: memoryview, pos: int, room: int, api_key: ApiKey, version: int
) -> tuple[dict[str, Any], int, int]:
    """(message, position after its last field, how many more elements it could have had)."""
    try:
        return read(frame, pos, len(frame), room)
    except WRONG as error:
        raise _no_message(error, api_key, version) from None


def _no_message(error: Exception, api_key: ApiKey, version: int) -> ProtocolError:
    if isinstance(error, ProtocolError):
        reason = error.text
    else:
        reason = "a string that is not UTF-8" if isinstance(error, UnicodeDecodeError) else "the frame ends early"
    return ProtocolError(f"{api_key.name} version {version}: {reason}")


def _framed(write: Writer, out: bytearray, body: Mapping[str, Any]) -> list[Part]:
    parts: list[Part] = []
    last = write(out, parts, body)
    if not parts:
        _INT32.pack_into(last, 0, len(last) - 4)
        return [bytes(last)]
    if last:
        parts.append(last)
    _INT32.pack_into(parts[0], 0, sum(map(len, parts)) - 4)
    return [bytes(part) if type(part) is bytearray else part for part in parts]


_READERS: dict[tuple[ApiKey, int, bool], Reader] = {}
_STEP_READERS: dict[tuple[ApiKey, int], StepReader] = {}
_WRITERS: dict[tuple[ApiKey, int, bool], Writer] = {}


def _fields(api_key: ApiKey, version: int, response: bool) -> tuple[Field, ...]:
    low, high = RANGES[api_key]
    if not low <= version <= high:
        raise ProtocolError(f"{api_key.name} version {version} is not spoken, only {low} to {high}")
    shape = TABLE[api_key]
    return at(read(shape.response if response else shape.request), version)


def _reader(api_key: ApiKey, version: int, response: bool) -> Reader:
    fields = _fields(api_key, version, response)
    found = compile_reader(fields, version >= FIRST_FLEXIBLE[api_key], _ANY_NUMBER if response else MOST)
    return _READERS.setdefault((api_key, version, response), found)


def _writer(api_key: ApiKey, version: int, response: bool) -> Writer:
    fields = _fields(api_key, version, response)
    found = compile_writer(fields, version >= FIRST_FLEXIBLE[api_key])
    return _WRITERS.setdefault((api_key, version, response), found)
