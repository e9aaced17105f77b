"""How a setting is declared: a field of a dataclass, whose metadata has its description and what it may be."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any


def facts(
    doc: str, low: int | None = None, high: int = 2**62, choices: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """A field's metadata. `low`, `high`: the bounds of a number; `low` None: the setting is no number."""
    return {"doc": doc, "low": low, "high": high, "choices": choices}


def setting(default: Any, doc: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata=facts(doc, choices=choices))


def number(default: int, doc: str, low: int = 0, high: int = 2**62) -> Any:
    return field(default=default, metadata=facts(doc, low, high))


def secret(doc: str) -> Any:
    """A text that is shown to nobody."""
    return field(default="", repr=False, metadata=facts(doc))


def is_secret(spec: Field[Any]) -> bool:
    return not spec.repr
