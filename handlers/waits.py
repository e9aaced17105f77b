"""How long a request may wait, of either protocol: a peer says it, and may say weeks."""

from __future__ import annotations

LONGEST_MS = 600_000


def bounded_ms(asked_ms: int) -> int:
    """As long as was asked for, or the longest there is. What is negative is no time."""
    return max(0, min(asked_ms, LONGEST_MS))
