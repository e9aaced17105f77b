"""Cursors: positions to go on from, as opaque text. The broker keeps no state for them, so they never expire."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from krappy.errors import InvalidRequest, UnknownTopic
from krappy.ports import TopicPort

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Offsets = tuple[bytes, dict[int, Offset]] | dict[int, Offset]  # by partition, with their topic's id or without


def write(place: Any) -> str:
    """A cursor: opaque text of a value that msgpack can hold."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def read(text: str, kind: Any) -> Any:
    """The value, of the type `kind`, that `write` made a cursor of. Raises InvalidRequest for any other text."""
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (ValueError, RecursionError):
        raise InvalidRequest("this is not a cursor of such a page", field="cursor") from None


def write_offsets(topic: TopicPort, offsets: Mapping[int, int]) -> str:
    """A cursor of offsets by partition. It holds the topic's id: the offsets mean nothing in a topic that is made
    later under the same name."""
    return write((topic.id, offsets))


def read_offsets(text: str, topic: TopicPort) -> dict[int, int]:
    """The offsets by partition of a cursor, also of a page of events, which holds no topic id.

    Raises InvalidRequest; UnknownTopic if the topic was made anew since.
    """
    found: tuple[bytes, dict[int, int]] | dict[int, int] = read(
        text, tuple[bytes, dict[int, Offset]] | dict[int, Offset]
    )
    if isinstance(found, dict):
        return found
    id, offsets = found
    if id != topic.id:
        raise UnknownTopic(f"the topic '{topic.name}' was deleted, and made anew", topic=topic.name)
    return offsets
