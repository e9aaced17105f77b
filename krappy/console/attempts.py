"""Wrong tokens and passwords: each is logged, and answered after SECONDS. While MOST wait for that, their address may
try no more.

A token has at least 16 characters, so a good one can't be guessed at any rate that a network allows. This protects a
poor one, too, and shows attempts in the log. A user with the right token is never locked out for long.
"""

from __future__ import annotations

from collections.abc import Callable

from trio import sleep

from krappy.console.problems import HttpError

SECONDS = 0.5  # until a wrong token is answered
MOST = 10  # of one address that wait for that


class WrongToken(HttpError):
    """The given token is not the console's, or the password not the user's."""

    def __init__(self, what: str = "this is not the console's token") -> None:
        super().__init__(401, "NOT_LOGGED_IN", what, WWW_Authenticate='Bearer realm="krappy"')


class Attempts:
    """Counts the wrong tokens of each address. `report`: logs an event by name, with facts."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._waiting: dict[str, int] = {}  # by address; at most as many as HTTP connections

    def check(self, address: str) -> None:
        """Call it before a token is checked. Raises HttpError (429)."""
        if self._waiting.get(address, 0) >= MOST:
            raise HttpError(429, "THROTTLING_QUOTA_EXCEEDED", "too many wrong tokens; try again later", Retry_After="1")

    async def refused(self, address: str) -> None:
        """A token was wrong: returns when it may be answered."""
        self._report("login_refused", client=address)
        self._waiting[address] = self._waiting.get(address, 0) + 1
        try:
            await sleep(SECONDS)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
