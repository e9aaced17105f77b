"""Sessions of browsers that have logged in: whose they are, what their cookies hold, and which of them are valid.

A cookie holds when its session ends, the session's number, and a signature of both. It is valid while the broker knows
the session: logging out ends it at once, and a broker that was restarted, or has another token, knows none.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from krappy.core.security.principal import ANONYMOUS, Principal
from krappy.ports.logouts import LogoutMarks

SESSION_MS = 12 * 3600 * 1000
OVER = "its time is over"
TOO_MANY = "there are too many sessions"
Ended = Callable[[Principal, str], None]
MOST = 1000  # sessions at a time; one more ends the oldest of the user who has most
MOST_OF_ONE = 100  # sessions of one user; one more ends his oldest


class ConsoleSession(NamedTuple):
    """`until`: its end, in ms by the steady clock. `stamp`: that of the password that its user had. `marks`: those of
    the logouts before it."""

    until: int
    principal: Principal
    stamp: bytes
    marks: LogoutMarks


class Sessions:
    """`secret`: nobody else knows it. `started_ms`: when this broker started; cookies of other starts are invalid.
    `ended`: is told whose session ended, and why."""

    def __init__(self, secret: bytes, started_ms: int, ended: Ended = lambda principal, why: None) -> None:
        self._ended = ended
        self._key = sha256(b"krappy console session %d " % started_ms + secret).digest()
        self._open: dict[int, ConsoleSession] = {}  # by number; the oldest first
        self._number = 0
        self._next = math.inf  # no session ends before this

    def open(
        self,
        now: int,
        principal: Principal = ANONYMOUS,
        stamp: bytes = b"",
        marks: LogoutMarks = ("", ""),
        lasts: int = SESSION_MS,
        most: int = MOST,
    ) -> str:
        """Opens a session; returns its cookie's value. `now`: ms by the steady clock. `lasts`: ms. `most`: how many
        this user may have."""
        self._number += 1
        self._make_room(principal.name, most)
        until = now + lasts
        self._next = min(self._next, until)
        self._open[self._number] = ConsoleSession(until, principal, stamp, marks)
        told = f"{until}.{self._number}"
        return f"{told}.{self._sign(told)}"

    def _make_room(self, name: str, most: int) -> None:
        """Ends sessions until there is room for one of this user. Logins never end sessions of a user who has fewer."""
        while True:
            count = Counter(each.principal.name for each in self._open.values())
            if count[name] >= most:
                whose = name
            elif len(self._open) >= MOST:
                whose = max(count, key=lambda each: (count[each], each == name))
            else:
                return
            oldest = next(number for number, each in self._open.items() if each.principal.name == whose)
            self._ended(self._open.pop(oldest).principal, TOO_MANY)

    def expire(self, now: int) -> None:
        """Ends the sessions whose time is over."""
        if now >= self._next:
            for number in [number for number, each in self._open.items() if each.until <= now]:
                self._ended(self._open.pop(number).principal, OVER)
            self._next = min((each.until for each in self._open.values()), default=math.inf)

    def find(self, cookie: str, now: int) -> ConsoleSession | None:
        """The session of a cookie, if that is valid."""
        number = self._number_of(cookie, now)
        return None if number is None else self._open[number]

    def close(self, cookie: str, now: int) -> int:
        """Ends the session of a cookie; returns how many ended: 1, or 0 if it was not valid."""
        number = self._number_of(cookie, now)
        if number is None:
            return 0
        del self._open[number]
        return 1

    def close_all(self, now: int, principal: Principal | None = None) -> int:
        """Ends all sessions, or all of one user, whatever he has logged in with; returns how many."""
        ended = {
            at: each for at, each in self._open.items() if principal is None or each.principal.name == principal.name
        }
        for number in ended:
            del self._open[number]
        return sum(each.until > now for each in ended.values())

    def _number_of(self, cookie: str, now: int) -> int | None:
        told, _, proof = cookie.rpartition(".")
        if not hmac.compare_digest(proof.encode(errors="replace"), self._sign(told).encode()):
            return None
        number = int(told.partition(".")[2])  # it is signed, so it is a number
        found = self._open.get(number)
        return number if found is not None and found.until > now else None

    def _sign(self, told: str) -> str:
        return hmac.new(self._key, told.encode(errors="replace"), sha256).hexdigest()
