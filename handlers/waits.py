"""How long a request of either protocol may wait at most: a client could ask for weeks."""

from __future__ import annotations

import math

LONGEST_MS = 600_000


def bounded_ms(asked_ms: int, seconds: float = math.inf) -> int:
    """The wait that was asked for, in ms: at least 0, at most `LONGEST_MS` and at most `seconds`."""
    return math.ceil(max(0, min(asked_ms, LONGEST_MS, 1000 * seconds)))
