"""Wrong tokens and passwords. Each is answered after SECONDS. While MOST of an address wait for that, it may try no
more.

A password is checked in a thread, so many may be in the check before the first is found wrong. At most MOST passwords
of an address are in the check, or were wrong and wait for their answer; a few more may wait for their turn. So there
are MOST guesses in SECONDS over however many connections, and right passwords that come together only wait for each
other.

A token has at least 16 characters, so a good one can't be guessed at any rate that a network allows. This protects a
poor one, too, and shows attempts in the log. A user with the right token is never locked out for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trio import sleep
from trio.lowlevel import ParkingLot

from krappy.console.problems import HttpError
from krappy.hosts import network

SECONDS = 0.5  # until a wrong token is answered
MOST = 10  # tokens and passwords of one address that are checked, or were wrong and wait for their answer
QUEUED = 50  # passwords of one address that wait until they are checked


class WrongToken(HttpError):
    """The given token is not the console's, or the password not the user's. `user`: who it was said to be."""

    def __init__(self, what: str = "this is not the console's token", user: str = "") -> None:
        self.user = user
        super().__init__(401, "NOT_LOGGED_IN", what, WWW_Authenticate='Bearer realm="krappy"')
        self.counted = False  # whether it is among the wrong ones of its address already


class TooManyAttempts(HttpError):
    """Too many wrong tokens of this address wait for their answer: its further ones are not looked at."""


class Attempts:
    """Counts the wrong tokens of each address."""

    def __init__(self) -> None:
        self._wrong: Counter[str] = Counter()  # by address, how many wait for their answer; at most one a connection
        self._checked: Counter[str] = Counter()  # by address, how many are checked now
        self._queues: dict[str, ParkingLot] = {}

    def check(self, address: str) -> None:
        """Call it before a token is checked. Raises TooManyAttempts."""
        if self._wrong[network(address)] >= MOST:
            raise _too_many()

    @asynccontextmanager
    async def checking(self, address: str) -> AsyncIterator[None]:
        """A block that checks a password; waits for its turn. Raises TooManyAttempts."""
        address = network(address)
        while self._wrong[address] + self._checked[address] >= MOST:
            queue = self._queues.setdefault(address, ParkingLot())
            if len(queue) >= QUEUED:
                raise _too_many()
            try:
                await queue.park()
            except BaseException:  # its peer has left
                self._next(address)
                raise
        self._checked[address] += 1
        try:
            yield
        except WrongToken as error:
            self._wrong[address] += 1
            error.counted = True
            raise
        finally:
            self._checked -= Counter((address,))
            self._next(address)

    async def refused(self, address: str, error: WrongToken) -> None:
        """A token was wrong: returns when it may be answered."""
        address = network(address)
        if not error.counted:
            self._wrong[address] += 1
        try:
            await sleep(SECONDS)
        finally:
            self._wrong -= Counter((address,))
            self._next(address)

    def _next(self, address: str) -> None:
        """Lets the next one of those that wait be checked, if there is room."""
        queue = self._queues.get(address)
        if queue is None:
            return
        if self._wrong[address] + self._checked[address] < MOST:
            queue.unpark()
        if not queue:
            del self._queues[address]


def _too_many() -> TooManyAttempts:
    return TooManyAttempts(429, "THROTTLING_QUOTA_EXCEEDED", "too many wrong tokens; try again later", Retry_After="1")
