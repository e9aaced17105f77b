"""Kafka's wire protocol: bytes in, dicts out, and back. Pure: no sockets, files or clocks.

A message is a dict with Kafka's own field names in snake_case; structs are dicts, arrays are lists (None when null),
strings are str, `bytes` are bytes, `records` are a memoryview of the frame, uuids are 16 bytes. Tagged fields (KIP-482)
are keys like others. A decoded message has every key of its API; a field that the version lacks has its default. A
writer takes the default for a missing key, and ignores keys that the version lacks. So one dict serves all versions.

    apis.py      the APIs
    schema/      their versions and the fields of their messages, in files by noun, in the notation of notation.py
    reading.py   compiles fields to a function that reads them
    writing.py   compiles fields to a function that writes them
    codec.py     headers, requests and responses
    codes.py     error codes

To add a version: raise the API's `Versions` in the schema, and add the new fields, with their versions. To add an API:
give it a key in apis.py, and a Shape in the file of its noun in schema/. Nothing else here changes. tests/wire/kafka
compares all messages with two other implementations. One of them, kio, reads requests faster, but four bytes can end
a process that reads with it (`python -m tests.bench_kafka_codec --hostile`), so it is only an oracle.
"""

from krappy.wire.kafka.apis import ApiKey as ApiKey
from krappy.wire.kafka.codec import Header as Header
from krappy.wire.kafka.codec import decode_request as decode_request
from krappy.wire.kafka.codec import decode_response as decode_response
from krappy.wire.kafka.codec import encode_request as encode_request
from krappy.wire.kafka.codec import encode_response as encode_response
from krappy.wire.kafka.codec import parse_header as parse_header
from krappy.wire.kafka.codec import read_request as read_request
from krappy.wire.kafka.codes import Code as Code
from krappy.wire.kafka.codes import code_for as code_for
from krappy.wire.kafka.notation import UUID_ZERO as UUID_ZERO
from krappy.wire.kafka.schema import RANGES as RANGES
from krappy.wire.kafka.writing import Part as Part
