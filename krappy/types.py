"""The values that all parts of Krappy share. Immutable, and simple enough for tests to use as they are.

Units, everywhere: offsets and partitions are ints, timestamps are milliseconds since the epoch (UTC), sizes are
bytes, durations are milliseconds (`*_ms`) unless a name says seconds.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

EARLIEST = -2  # timestamps by which ListOffsets means the two ends of a log
LATEST = -1
NO_TIMESTAMP = -1  # the timestamp of an event whose producer gave none, as in Kafka
ABSENT = -1  # as an expected offset: "this key must have no value now"

Compression = Literal["gzip", "snappy", "lz4", "zstd"]  # of record batches, by the names that producers use
Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One event as a producer gives it. A key with `value` None is a tombstone. `timestamp` None means now;
    NO_TIMESTAMP means that the event has none."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


class Event(NamedTuple):
    """One event as a consumer gets it. `deliveries` counts from 1; only a native group raises it. `leader_epoch`: its
    partition's when it was written; -1: not known. After an unclean election another event may have the same offset;
    the epoch tells them apart."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    deliveries: int = 1
    leader_epoch: int = -1

    @property
    def time(self) -> datetime:
        """The timestamp in UTC; the nearest datetime there is, if it is out of datetime's range."""
        try:
            return datetime.fromtimestamp(self.timestamp / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return (datetime.max if self.timestamp > 0 else datetime.min).replace(tzinfo=UTC)


class Entry(NamedTuple):
    """What a table holds for a key: its latest value, or the tombstone that deleted it (`value` is None). `key` and
    `value` are bytes, `offset` and `timestamp` those of the key's latest event."""

    key: bytes
    value: bytes | None
    partition: int
    offset: int
    timestamp: int
    headers: Headers = ()

    @property
    def deleted(self) -> bool:
        return self.value is None


class Receipt(NamedTuple):
    """The partition and offset of an acknowledged event, which is on disk (with `durability = "fsync"`)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class FilePart:
    """Bytes of an open file, to be sent to a peer without being read into memory."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: Any, position: int, size: int) -> None:
        self.file = file  # has a descriptor `fd`, which stays open as long as the object exists
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def after(self, count: int) -> FilePart:
        """The part without its first `count` bytes."""
        return FilePart(self.file, self.position + count, self.size - count)


class Span(NamedTuple):
    """Whole record batches read from a log: their bytes, the offset after them, how many records they hold."""

    data: Any  # bytes-like
    next_offset: int
    records: int


def dead_letter_topic(topic: str, group: str, named: str | None = None) -> str:
    """Where a native group's dead letters of a topic go. `named`: the topic that its member has named for them."""
    return f"{topic}.{group}.dead" if named is None else named


def text_id(id: bytes) -> str:
    """An id of 16 bytes as Kafka writes it: 22 characters of base64url."""
    return base64.urlsafe_b64encode(id).rstrip(b"=").decode()


def id_of(text: str) -> bytes:
    """The inverse of `text_id`. Raises ValueError for a text that it does not write."""
    try:
        found = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not an id") from error
    if len(found) != 16 or text_id(found) != text:
        raise ValueError(f"{text!r} is not an id")
    return found
