"""Wrong tokens: each is told, and answered after a while; so many of one address wait at a time, and more are refused.

A token can't be guessed at any rate that a network allows, for it has 16 characters; this keeps it so for a poor one,
and lets whoever watches the log see that somebody tries. Who has the right one is never locked out for long.
"""

from __future__ import annotations

from collections.abc import Callable

from trio import sleep

from krappy.console.problems import HttpError

SECONDS = 0.5  # until a wrong token is answered
MOST = 10  # of one address that wait for that


class WrongToken(HttpError):
    """A token was given, and it is not the console's."""

    def __init__(self) -> None:
        told = 'Bearer realm="krappy"'
        super().__init__(401, "NOT_LOGGED_IN", "this is not the console's token", WWW_Authenticate=told)


class Attempts:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._waiting: dict[str, int] = {}  # by address; as many as connections of HTTP at the most

    def check(self, address: str) -> None:
        """Before a token is looked at. Raises Refusal."""
        if self._waiting.get(address, 0) >= MOST:
            raise HttpError(429, "THROTTLING_QUOTA_EXCEEDED", "too many wrong tokens; try again later", Retry_After="1")

    async def refused(self, address: str) -> None:
        """A token was wrong: returns when that may be said."""
        self._report("login_refused", client=address)
        self._waiting[address] = self._waiting.get(address, 0) + 1
        try:
            await sleep(SECONDS)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
