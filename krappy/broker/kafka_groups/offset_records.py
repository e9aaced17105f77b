"""Committed offsets of a cluster as Kafka's records: OffsetCommitKey and OffsetCommitValue.

A value has version 3, or 1 if the client said when the offset lapses: only version 1 has a field for that. Version 1
has no field for the leader epoch, which such clients do not know. Version 4 has a field for the topic's id, but tools
that watch groups, such as Burrow, can't read it. So the id is a header of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from krappy.core.kafka.offset import At, Offset
from krappy.errors import ProtocolError, StorageError
from krappy.types import Headers
from krappy.wire.kafka.records import OFFSET_COMMIT_KEY, OFFSET_COMMIT_VALUE, read_record, write_record

TOPIC_ID = "topic-id"  # the header's name
KEYS = (b"\0\0", b"\0\1")  # the versions that these keys begin with. Krappy's own keys begin with letters
PARTITION = 4  # bytes of a key's last field
LATEST_MS = (1 << 63) - 1
AllHeaders = dict[bytes, Headers]  # by key


def is_offset_key(key: bytes) -> bool:
    """Whether it is a key of a committed offset, in Kafka's form."""
    return key.startswith(KEYS)


def key_of_offset(group: str, at: At) -> bytes:
    return _key_start(group, at[0]) + at[1].to_bytes(PARTITION, "big")


@lru_cache(maxsize=256)  # most commits are of the same few groups and topics; a group's name may have 4,000 bytes
def _key_start(group: str, topic: str) -> bytes:
    """A key without its last field, the partition."""
    return write_record(OFFSET_COMMIT_KEY, 1, {"group": group, "topic": topic})[:-PARTITION]


def offset_key(key: bytes) -> tuple[str, At]:
    """(group, topic and partition). Raises StorageError."""
    try:
        found = read_record(OFFSET_COMMIT_KEY, key)[1]
    except ProtocolError as error:
        raise StorageError(f"the key {key!r:.200} can't be read: {error}") from error
    if found["partition"] < 0:
        raise StorageError(f"the key {key!r:.200} can't be read: partition {found['partition']}")
    return found["group"], (found["topic"], found["partition"])


@lru_cache(maxsize=1000)
def _headers(topic_id: bytes) -> Headers:
    return ((TOPIC_ID, topic_id),) if topic_id else ()


def record_of(offset: Offset) -> tuple[bytes, Headers]:
    """Value and headers."""
    fields = {
        "offset": offset.offset,
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "commit_timestamp": offset.committed,
    }
    version = 3
    if offset.expires is not None:
        version, fields["expire_timestamp"] = 1, min(offset.expires, LATEST_MS)
    return write_record(OFFSET_COMMIT_VALUE, version, fields), _headers(offset.topic_id)


def add_offset_rows(
    group: str, offsets: Mapping[At, Offset | None], puts: dict[bytes, bytes], deletes: list[bytes]
) -> AllHeaders:
    """Adds these offsets to what is put and deleted. None: the offset is deleted. Gives the headers of what is put."""
    headers: AllHeaders = {}
    for at, offset in offsets.items():
        key = key_of_offset(group, at)
        if offset is None:
            deletes.append(key)
        else:
            puts[key], told = record_of(offset)
            if told:
                headers[key] = told
    return headers


def offset_in(value: bytes, headers: Headers) -> Offset:
    """Raises StorageError."""
    try:
        found = read_record(OFFSET_COMMIT_VALUE, value)[1]
    except ProtocolError as error:
        raise StorageError(f"a committed offset can't be read: {error}") from error
    expires = found["expire_timestamp"]
    return Offset(
        *(found["offset"], found["leader_epoch"], found["metadata"], found["commit_timestamp"]),
        None if expires < 0 else expires,
        dict(headers).get(TOPIC_ID) or b"",
    )
