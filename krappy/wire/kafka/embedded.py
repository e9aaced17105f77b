"""What Kafka's consumers put into the opaque bytes of JoinGroup and SyncGroup: the consumer protocol.

A classic group's coordinator need not read it (the group's leader assigns); tools do, to show a member's topics. Each
blob begins with its version, an int16. A version newer than the newest known is read as that one, and bytes that follow
are left alone, as Kafka's own consumers do (KIP-429, KIP-792, KIP-881 added versions 1 to 3).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from krappy.errors import ProtocolError
from krappy.wire.kafka.notation import at, read
from krappy.wire.kafka.reading import Reader, compile_reader
from krappy.wire.kafka.writing import Writer, compile_writer

NEWEST = 3
PROTOCOL_TYPE = "consumer"  # the protocol type of groups whose members speak this

SUBSCRIPTION = """
topics            []string
user_data         bytes?
owned_partitions  []        1+
  topic           string
  partitions      []int32
generation_id     int32     2+  = -1
rack_id           string?   3+
"""
ASSIGNMENT = """
assigned_partitions  []
  topic              string
  partitions         []int32
user_data            bytes?
"""
_MOST_ELEMENTS = 1 << 17
_VERSION = struct.Struct(">h")


def decode_subscription(data: bytes) -> dict[str, Any]:
    """The metadata of a member's JoinGroup: what it subscribes to, and `version`. Raises ProtocolError."""
    return _decode(SUBSCRIPTION, data)


def decode_assignment(data: bytes) -> dict[str, Any]:
    """The assignment of a member in SyncGroup: its partitions, and `version`. Raises ProtocolError."""
    return _decode(ASSIGNMENT, data)


def encode_subscription(version: int, body: Mapping[str, Any]) -> bytes:
    """The metadata that a member of the classic protocol joins with."""
    return bytes(_writer(SUBSCRIPTION, version)(bytearray(_VERSION.pack(version)), [], body))


def encode_assignment(version: int, body: Mapping[str, Any]) -> bytes:
    """The assignment that a group's leader hands out."""
    return bytes(_writer(ASSIGNMENT, version)(bytearray(_VERSION.pack(version)), [], body))


def _decode(shape: str, data: bytes) -> dict[str, Any]:
    try:
        version: int = _VERSION.unpack_from(data)[0]
        if version < 0:
            raise ProtocolError(f"the consumer protocol has no version {version}")
        found, _end = _reader(shape, min(version, NEWEST))(memoryview(data), 2, len(data), _MOST_ELEMENTS)
    except (struct.error, IndexError):
        raise ProtocolError("the consumer protocol's bytes end early") from None
    except UnicodeDecodeError:
        raise ProtocolError("a topic that is not UTF-8") from None
    return {"version": version, **found}


@cache
def _reader(shape: str, version: int) -> Reader:
    return compile_reader(at(read(shape), version), flexible=False)


@cache
def _writer(shape: str, version: int) -> Writer:
    return compile_writer(at(read(shape), version), flexible=False)
