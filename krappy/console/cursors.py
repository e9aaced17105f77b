"""Places to go on from, as opaque text: nothing is kept for them, so they never expire."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from krappy.errors import InvalidRequest


def write(place: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def read(text: str, kind: Any) -> Any:
    """Raises InvalidRequest for what `write` did not make."""
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (ValueError, RecursionError):
        raise InvalidRequest("this is no cursor of such a page", field="cursor") from None
