"""Kafka's records of the topic `__consumer_offsets`: schemas and bytes of a committed offset's key and value.

A key or value begins with its version (int16); then come the schema's fields in that version. Kafka's own tools, and
programs that watch the lag of groups, read these records.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from krappy.errors import ProtocolError
from krappy.wire.kafka.notation import Versions, at, read
from krappy.wire.kafka.reading import Reader, compile_reader
from krappy.wire.kafka.writing import Writer, compile_writer


class RecordShape(NamedTuple):
    """A key's or value's versions, and its fields in the notation."""

    versions: Versions
    fields: str


OFFSET_COMMIT_KEY, OFFSET_COMMIT_VALUE = "OffsetCommitKey", "OffsetCommitValue"
TABLE = {
    OFFSET_COMMIT_KEY: RecordShape(
        Versions(0, 1),
        """
        group      string
        topic      string
        partition  int32
        """,
    ),
    OFFSET_COMMIT_VALUE: RecordShape(
        Versions(0, 4, flexible=4),
        """
        offset            int64
        leader_epoch      int32   3+  = -1
        metadata          string
        commit_timestamp  int64
        expire_timestamp  int64   1   = -1
        topic_id          uuid    4+  tag 0
        """,
    ),
}
_MOST_TAGS = 1_000  # unknown tagged fields of a value
_VERSION = struct.Struct(">h")
_READERS: dict[tuple[str, int], Reader] = {}
_WRITERS: dict[tuple[str, int], Writer] = {}


def write_record(schema: str, version: int, fields: Mapping[str, Any]) -> bytes:
    """A key or value in a version of its schema. A field that is missing has its default."""
    write = _WRITERS.get((schema, version)) or _writer(schema, version)
    return bytes(write(bytearray(_VERSION.pack(version)), [], fields))


def read_record(schema: str, data: bytes) -> tuple[int, dict[str, Any]]:
    """(version, fields) of a key or value; a field that the version lacks has its default. Raises ProtocolError."""
    try:
        [version] = _VERSION.unpack_from(data)
        reader = _READERS.get((schema, version)) or _reader(schema, version)
        found, end, _ = reader(memoryview(data), _VERSION.size, len(data), _MOST_TAGS)
    except ProtocolError as error:
        reason = error.text
    except (struct.error, IndexError):
        reason = "it ends early"
    except UnicodeDecodeError:
        reason = "a string that is not UTF-8"
    else:
        if end == len(data):
            return version, found
        reason = f"{len(data) - end} bytes too many"
    raise ProtocolError(f"no {schema}: {reason}") from None


def _writer(schema: str, version: int) -> Writer:
    return _WRITERS.setdefault((schema, version), compile_writer(*_fields(schema, version)))


def _reader(schema: str, version: int) -> Reader:
    return _READERS.setdefault((schema, version), compile_reader(*_fields(schema, version)))


def _fields(schema: str, version: int) -> tuple[Any, bool]:
    """(the fields, whether the version is a flexible one)."""
    (low, high, flexible), fields = TABLE[schema]
    if not low <= version <= high:
        raise ProtocolError(f"version {version} is not known, only {low} to {high}")
    return at(read(fields), version), version >= flexible
