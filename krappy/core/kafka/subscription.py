"""The one thing that a broker reads out of a classic member's metadata: which topics it subscribes to.

ConsumerProtocolSubscription begins, in every version, with an int16 version and an array of topic names; what
follows (user data, owned partitions) is between the clients.
"""

from __future__ import annotations

from collections.abc import Iterator


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None for bytes that are not a consumer's subscription."""
    if len(metadata) < 6 or metadata[0] & 0x80:
        return None
    try:
        return frozenset(_names(metadata))
    except (UnicodeDecodeError, ValueError):
        return None


def _names(metadata: bytes) -> Iterator[str]:
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    at = 6
    if count < 0 or count * 2 > len(metadata) - at:
        raise ValueError("more topics than bytes")
    for _ in range(count):
        end = at + 2 + int.from_bytes(metadata[at : at + 2], "big")
        if end > len(metadata):
            raise ValueError("a name is cut")
        yield metadata[at + 2 : end].decode()
        at = end
