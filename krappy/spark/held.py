"""A snapshot that the broker holds, as text: mode=snapshot returns it, and the option `snapshot` takes it."""

from __future__ import annotations

import base64
import json

from krappy.blocking import KeyRange, Snapshot
from krappy.errors import ConfigError


def to_text(held: Snapshot) -> str:
    """A snapshot as the value of the option `snapshot`: its ranges are in it, so that planning asks no broker."""
    parts = [[each.partition, _text(each.start), _text(each.end)] for each in held.ranges]
    return json.dumps({"id": held.id, "topic": held.topic, "offsets": list(held.offsets.items()), "ranges": parts})


def from_text(text: str) -> Snapshot:
    """The snapshot of a text that `to_text` made. Raises ConfigError for any other text."""
    try:
        found = json.loads(text)
        parts = [KeyRange(partition, _bytes(start), _bytes(end)) for partition, start, end in found["ranges"]]
        return Snapshot(found["id"], found["topic"], dict(found["offsets"]), parts)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"option snapshot={text!r:.80}: give the column `snapshot` of a read with mode=snapshot, or use "
            "krappy.spark.table(…).snapshot()"
        ) from None


def _text(key: bytes | None) -> str | None:
    return None if key is None else base64.b64encode(key).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
