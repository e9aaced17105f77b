"""Logins of browsers at the identity provider, from the page to there and back.

A signed cookie, valid for `LASTS_MS`, holds what identifies an attempt when its browser comes back. So nobody can make
a browser finish a login that it has not begun (`state`), nor one that another browser has begun (`verifier`). Several
tabs of a browser may log in at the same time: there is a cookie for each of a few attempts, and a further one replaces
the oldest.

Anybody may begin a login, and the provider may be slow. So requests that wait for it take nobody else's turn, and only
a few may wait.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256

import trio

from krappy.console.attempts import WrongToken
from krappy.console.problems import HttpError
from krappy.console.security import PROVIDER, principal_of_claims
from krappy.core.security.oauthbearer import TokenRefused
from krappy.core.security.principal import Principal
from krappy.hosts import network
from krappy.ports.tokens import ProviderAttempt, ProviderLoginPort, ProviderTrouble

COOKIES = tuple(f"krappy_login_{number}" for number in range(4))
LASTS_MS = 300_000
TELL_SECONDS = 60.0  # between two lines of the log about the same trouble
# Requests that may wait for the provider: of all addresses, and of one. One never has more than are left for others.
MOST, MOST_OF_ONE = 32, 8


class ProviderLogins:
    """`provider`: None: browsers can't log in there. `secret`: random. `report`: logs an event by name, with facts."""

    def __init__(self, provider: ProviderLoginPort | None, secret: bytes, report: Callable[..., None]) -> None:
        self._provider = provider
        self._report = report
        self._reported: tuple[str, float] = ("", -math.inf)  # the last trouble, and until when it is not told again
        self._key = sha256(b"krappy console provider login " + secret).digest()
        self._waiting: Counter[str] = Counter()  # by address, how many wait for the provider

    @property
    def offered(self) -> bool:
        return self._provider is not None

    async def begin(self, cookies: Mapping[str, str], now: int, host: str) -> tuple[str, str, str]:
        """(where the browser goes, a cookie's name and value). `cookies`: which it has. `now`: ms by the steady clock.
        `host`: the browser's address. Raises HttpError."""
        if self._provider is None:
            raise HttpError(404, "NOT_FOUND", "there is no identity provider to log in at")
        with self._asking(host):
            where, attempt = await self._provider.begin()
        told = ".".join((str(now + LASTS_MS), *attempt))
        under_way = self._under_way(cookies, now)
        # Two tabs that begin at the same moment know nothing of each other: each takes any of those that are free.
        name = min(COOKIES, key=lambda each: (under_way[each][0] if each in under_way else 0, self._sign(each + told)))
        return where, name, f"{told}.{self._sign(told)}"

    async def finish(self, code: str, state: str, cookies: Mapping[str, str], now: int, host: str) -> Principal:
        """Who has logged in. Raises WrongToken, HttpError."""
        attempts = [attempt for _, attempt in self._under_way(cookies, now).values()]
        if self._provider is None or not attempts:
            raise WrongToken("this browser has begun no login at the identity provider, or too long ago: try it again")
        given = state.encode(errors="replace")
        attempt = next((each for each in attempts if hmac.compare_digest(given, each.state.encode())), None)
        if attempt is None:
            raise WrongToken("this is the end of another login at the identity provider: try it again")
        try:
            with self._asking(host):
                said = await self._provider.finish(code, attempt)
        except TokenRefused as error:
            raise WrongToken(f"the identity provider's token is not good: {error}") from None
        return principal_of_claims(said, PROVIDER)

    def _tell(self, trouble: str) -> None:
        """Logs why a login is not possible. Anybody can ask for one, so the same trouble is logged only now and
        then."""
        now = trio.current_time()
        if trouble != self._reported[0] or now >= self._reported[1]:
            self._report("oidc_login_not_possible", error=trouble)
            self._reported = trouble, now + TELL_SECONDS

    @contextmanager
    def _asking(self, host: str) -> Iterator[None]:
        """A block that sends a request to the provider. Raises HttpError (503)."""
        host = network(host)
        if self._waiting[host] >= min(MOST_OF_ONE, MOST - self._waiting.total()):
            what = "too many logins wait for the identity provider already; try again later"
            raise HttpError(503, "THROTTLING_QUOTA_EXCEEDED", what, Retry_After="1")
        self._waiting[host] += 1
        try:
            yield
        except ProviderTrouble as error:
            self._tell(str(error))
            what = "the identity provider can't be used now; the broker's log says why"  # not to strangers
            raise HttpError(503, "PROVIDER_NOT_AVAILABLE", what) from None
        finally:
            self._waiting -= Counter((host,))

    def _under_way(self, cookies: Mapping[str, str], now: int) -> dict[str, tuple[int, ProviderAttempt]]:
        """By the cookie's name: until when an attempt may be finished (ms by the steady clock), and the attempt."""
        found = {}
        for name in COOKIES:
            told, _, proof = cookies.get(name, "").rpartition(".")
            if hmac.compare_digest(proof.encode(errors="replace"), self._sign(told).encode()):
                until, *attempt = told.split(".")  # it is signed, so it has these
                if now < int(until):
                    found[name] = int(until), ProviderAttempt(*attempt)
        return found

    def _sign(self, told: str) -> str:
        return hmac.new(self._key, told.encode(errors="replace"), sha256).hexdigest()
