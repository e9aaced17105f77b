"""The JSON documents in the tree's znodes, with Kafka's fields if Kafka has the znode.

Fields that this version does not know stay when a document is rewritten: another tool, or a later version, has put them
there (in KAFKA-14190 topic ids were lost that way).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

_NONE: Any = object()


class Document:
    """A JSON object whose fields are checked as they are read: each method raises ValueError for another type, or a
    field that is not there and has no default."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def of(cls, data: bytes) -> Document:
        """Raises ValueError."""
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        return cls(found)

    def with_fields(self, fields: Mapping[str, Any]) -> bytes:
        return json.dumps({**self.fields, **fields}, separators=(",", ":")).encode()

    def without(self, name: str) -> bytes:
        return Document({key: value for key, value in self.fields.items() if key != name}).with_fields({})

    def more_than(self, known: Collection[str]) -> bytes:
        """All of it, if it has other fields than these; else nothing."""
        return b"" if self.fields.keys() <= set(known) else self.with_fields({})

    def number(self, name: str, default: int = _NONE) -> int:
        found = self._find(name, default)
        if not isinstance(found, int) or isinstance(found, bool):
            raise ValueError(f"'{name}' is not a number")
        return found

    def text(self, name: str, default: str | None = _NONE) -> str | None:
        found = self._find(name, default)
        if found is not None and not isinstance(found, str):
            raise ValueError(f"'{name}' is not a text")
        return found

    def numbers(self, name: str) -> tuple[int, ...]:
        """Empty if the field is missing."""
        return numbers(name, self.fields.get(name, []))

    def mapping(self, name: str) -> dict[str, Any]:
        """Empty if the field is missing."""
        found = self.fields.get(name, {})
        if not isinstance(found, dict):
            raise ValueError(f"'{name}' is not an object")
        return found

    def texts(self, name: str) -> dict[str, str]:
        """Empty if the field is missing."""
        found = self.mapping(name)
        if not all(isinstance(each, str) for each in found.values()):
            raise ValueError(f"'{name}' holds something that is not a text")
        return found

    def _find(self, name: str, default: Any) -> Any:
        found = self.fields.get(name, default)
        if found is _NONE:
            raise ValueError(f"there is no '{name}'")
        return found


def numbers(name: str, found: Any) -> tuple[int, ...]:
    """Raises ValueError unless it is a list of numbers."""
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise ValueError(f"'{name}' is not a list of numbers")
    return tuple(found)
