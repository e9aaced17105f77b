"""Reads what classic consumers put into their group messages: their subscriptions, and the assignments of their leader.

ConsumerProtocolSubscription and ConsumerProtocolAssignment (Kafka's schemas of these names) begin with an int16
version; a newer version only adds fields at the end. To the classic protocol itself they are opaque bytes. The broker
needs the topics for the retention of offsets, and all fields when a group moves to KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NamedPartition = tuple[str, int]  # topic, index


class Subscription(NamedTuple):
    """A member's subscription. `owned`: the partitions that it still has (KIP-429; none for an eager one). `rack`:
    KIP-881."""

    topics: frozenset[str]
    owned: frozenset[NamedPartition] = frozenset()
    rack: str | None = None


class Assignment(NamedTuple):
    partitions: frozenset[NamedPartition]
    custom: bool = False  # whether it has user data, which only the assignor that made it understands


def subscription(metadata: bytes) -> Subscription | None:
    """None for bytes that are not a consumer's subscription."""
    try:
        reader = _Reader(metadata)
        version = reader.version()
        topics = frozenset(reader.text() for _ in range(reader.count(2)))
        reader.skip_bytes()
        owned = frozenset(reader.partitions()) if version >= 1 else frozenset()
        if version >= 2:
            reader.number(4)  # the generation in which it owned them
        rack = reader.nullable_text() if version >= 3 else None
    except ValueError:  # UnicodeDecodeError is one
        return None
    return Subscription(topics, owned, rack or None)


def assignment(data: bytes) -> Assignment | None:
    """None for bytes that are not a consumer's assignment. Empty bytes assign nothing."""
    if not data:
        return Assignment(frozenset())
    try:
        reader = _Reader(data)
        reader.version()
        found = frozenset(reader.partitions())
        return Assignment(found, reader.skip_bytes() > 0)
    except ValueError:
        return None


def encode_assignment(partitions: Iterable[NamedPartition], version: int = 0) -> bytes:
    """The bytes of an assignment without user data, for `assignment` to read."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    parts = [version.to_bytes(2, "big"), len(topics).to_bytes(4, "big")]
    for topic, indexes in topics.items():
        name = topic.encode()
        parts += [len(name).to_bytes(2, "big"), name, len(indexes).to_bytes(4, "big")]
        parts += [index.to_bytes(4, "big") for index in indexes]
    return b"".join([*parts, b"\xff\xff\xff\xff"])


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None for bytes that do not begin as a consumer's subscription does."""
    try:
        reader = _Reader(metadata)
        reader.version()
        return frozenset(reader.text() for _ in range(reader.count(2)))
    except ValueError:
        return None


class _Reader:
    """Reads fields in order. Every method raises ValueError if the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ValueError("it ends too early")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def version(self) -> int:
        version = self.number(2)
        if version < 0:
            raise ValueError("a negative version")
        return version

    def count(self, least: int) -> int:
        """The number of elements of an array; each takes at least `least` bytes."""
        count = self.number(4)
        if count < 0 or count * least > len(self._data) - self._at:
            raise ValueError("more elements than bytes")
        return count

    def text(self) -> str:
        return self._take(self.number(2)).decode()

    def nullable_text(self) -> str | None:
        size = self.number(2)
        return None if size == -1 else self._take(size).decode()

    def skip_bytes(self) -> int:
        """Skips a byte string; returns its size, 0 for null."""
        size = self.number(4)
        if size != -1:
            self._take(size)
        return max(size, 0)

    def partitions(self) -> list[NamedPartition]:
        found = []
        for _ in range(self.count(6)):
            topic = self.text()
            found += [(topic, self.number(4)) for _ in range(self.count(4))]
        return found
