"""Numbers of bytes, of milliseconds and of seconds, as people write them: 256M, 1.5GiB, 30s, 7d."""

from __future__ import annotations

import re
from typing import Any

BYTES, MS, SECONDS = "bytes", "ms", "seconds"
# K, M, G and T, also with iB, are powers of 1024, as for the JVM; KB, MB, GB and TB are powers of 1000.
_SIZES = {
    "b": 1,
    **{prefix + end: 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("", "ib")},
    **{prefix + "b": 1000**power for power, prefix in enumerate("kmgt", 1)},
}
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHOWN = {
    BYTES: {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10},
    MS: {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1},
}
UNITS = {
    BYTES: _SIZES,
    MS: _TIMES,
    SECONDS: {name: size // 1000 for name, size in _TIMES.items() if size >= 1000},
}
EXAMPLES = {
    BYTES: "such as 256M, 64KiB or 1.5G",
    MS: "such as 500ms, 30s, 12h or 7d",
    SECONDS: "such as 30s, 5m or 1h",
}
_WRITTEN = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?([a-zA-Z]{1,3})")


def of(name: str) -> str | None:
    """What a setting's number counts, by the setting's name: BYTES, MS, SECONDS, or None."""
    words = re.split(r"[._]", name)
    return BYTES if "bytes" in words else words[-1] if words[-1] in (MS, SECONDS) else None


def read(given: Any, unit: str | None) -> Any:
    """The number of bytes, milliseconds or seconds that a text with a unit tells; anything else as it is. Raises
    ValueError for an unknown unit."""
    found = _WRITTEN.fullmatch(given.strip()) if unit is not None and isinstance(given, str) else None
    if found is None or unit is None:
        return given
    size = UNITS[unit].get(found[2].lower() if unit == BYTES else found[2])
    if size is None:
        raise ValueError(f"'{found[2]}' is no unit: {needed(unit)} is needed")
    whole, _, part = found[1].partition(".")
    return int(whole) * size + (int(part) * size // 10 ** len(part) if part else 0)


def needed(unit: str | None) -> str:
    """What a setting of this unit takes, for errors."""
    return "a whole number" + (f", or one with a unit {EXAMPLES[unit]}" if unit else "")


def shown(number: int, unit: str | None) -> str:
    """The number with the largest unit that divides it; nothing if there is none."""
    for name, size in _SHOWN.get(unit or "", {}).items():
        if 0 < number < 2**62 and number % size == 0:
            return f"{number // size}{' ' if unit == BYTES else ''}{name}"
    return ""
