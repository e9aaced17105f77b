"""Kafka's wire protocol: bytes in, dicts out, and back. Pure: no sockets, files or clocks.

A message is a dict with Kafka's own field names in snake_case; structs are dicts, arrays are lists (None when null),
strings are str, `bytes` are bytes, `records` are a memoryview of the frame, uuids are 16 bytes. Tagged fields (KIP-482)
are keys like others. A decoded message has every key of its API; a field that the version lacks has its default. A
writer takes the default for a missing key, and ignores keys that the version lacks. So one dict serves all versions.

    apis.py      the APIs, their supported versions, and the first flexible version of each
    schema/      the fields of all messages, in files by noun, in the notation of notation.py
    reading.py   compiles fields to a function that reads them
    writing.py   compiles fields to a function that writes them
    codec.py     headers, requests and responses
    codes.py     error codes

To add a version: raise the API's range in apis.py, and add the new fields, with their versions, to the schema. To add
an API: give it a key, a range and a first flexible version in apis.py, and a Shape in the file of its noun in schema/.
Nothing else here changes. tests/wire/kafka compares all messages with two other implementations.
"""

from krappy.wire.kafka.apis import FIRST_FLEXIBLE, RANGES, ApiKey
from krappy.wire.kafka.codec import (
    Header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_header,
    read_request,
)
from krappy.wire.kafka.codes import Code, code_for
from krappy.wire.kafka.notation import UUID_ZERO
from krappy.wire.kafka.writing import Part

__all__ = [
    "FIRST_FLEXIBLE",
    "RANGES",
    "UUID_ZERO",
    "ApiKey",
    "Code",
    "Header",
    "Part",
    "code_for",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "parse_header",
    "read_request",
]
