"""Places to go on from, as opaque text: nothing is kept for them, so they never expire."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from krappy.errors import InvalidRequest, UnknownTopic
from krappy.ports import TopicPort

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Offsets = tuple[bytes, dict[int, Offset]] | dict[int, Offset]  # with the id of their topic, or without


def write(place: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def read(text: str, kind: Any) -> Any:
    """Raises InvalidRequest for what `write` did not make."""
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (ValueError, RecursionError):
        raise InvalidRequest("this is no cursor of such a page", field="cursor") from None


def write_offsets(topic: TopicPort, offsets: Mapping[int, int]) -> str:
    """Of a topic's partitions, which mean nothing in another topic that has its name later."""
    return write((topic.id, offsets))


def read_offsets(text: str, topic: TopicPort) -> dict[int, int]:
    """Also of a page of events, which does not say of which topic it is. Raises InvalidRequest, UnknownTopic."""
    found: tuple[bytes, dict[int, int]] | dict[int, int] = read(
        text, tuple[bytes, dict[int, Offset]] | dict[int, Offset]
    )
    if isinstance(found, dict):
        return found
    id, offsets = found
    if id != topic.id:
        raise UnknownTopic(f"the topic '{topic.name}' was deleted, and made anew", topic=topic.name)
    return offsets
