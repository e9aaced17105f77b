"""Sessions of browsers that have logged in: what their cookies hold, and which of them count.

A cookie says until when its session is, which one it is, and a proof that this broker said so. It counts while the
broker knows of it: logging out ends it at once, and a broker that is started again, or with another token, knows none.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

SESSION_MS = 12 * 3600 * 1000
MOST = 1000  # sessions at a time; with one more the oldest ends


class Sessions:
    """`secret`: the console's token; `started_ms`: of this broker, so that numbers given before mean nothing now."""

    def __init__(self, secret: bytes, started_ms: int) -> None:
        self._key = sha256(b"krappy console session %d " % started_ms + secret).digest()
        self._until: dict[int, int] = {}  # by number, ms since the epoch; the oldest first
        self._number = 0

    def open(self, now: int) -> str:
        """What the cookie of a new one holds."""
        self._number += 1
        while len(self._until) >= MOST:
            del self._until[next(iter(self._until))]
        self._until[self._number] = until = now + SESSION_MS
        told = f"{until}.{self._number}"
        return f"{told}.{self._sign(told)}"

    def holds(self, cookie: str, now: int) -> bool:
        return self._number_of(cookie, now) is not None

    def close(self, cookie: str, now: int) -> int:
        """How many have ended: one, or none when there was no such."""
        number = self._number_of(cookie, now)
        if number is None:
            return 0
        del self._until[number]
        return 1

    def close_all(self, now: int) -> int:
        """How many have ended."""
        count = sum(until > now for until in self._until.values())
        self._until.clear()
        return count

    def _number_of(self, cookie: str, now: int) -> int | None:
        told, _, proof = cookie.rpartition(".")
        if not hmac.compare_digest(proof.encode(errors="replace"), self._sign(told).encode()):
            return None
        number = int(told.partition(".")[2])  # what we have signed is as we wrote it
        return number if self._until.get(number, 0) > now else None

    def _sign(self, told: str) -> str:
        return hmac.new(self._key, told.encode(errors="replace"), sha256).hexdigest()
