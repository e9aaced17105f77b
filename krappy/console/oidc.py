"""Logins of browsers at the identity provider, from the page to there and back.

What an attempt is known by when its browser comes back is in a cookie, signed and for `LASTS_MS`: nobody can make a
browser finish a login that it has not begun (`state`), nor one that another browser has begun (`verifier`).
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from krappy.console.attempts import WrongToken
from krappy.console.problems import HttpError
from krappy.console.security import PROVIDER, principal_of_claims
from krappy.core.security.oauthbearer import TokenRefused
from krappy.core.security.principal import Principal
from krappy.ports.tokens import ProviderAttempt, ProviderLoginPort, ProviderTrouble

COOKIE = "krappy_login"
LASTS_MS = 300_000


class ProviderLogins:
    """`provider`: None: browsers can't log in there. `secret`: random."""

    def __init__(self, provider: ProviderLoginPort | None, secret: bytes) -> None:
        self._provider = provider
        self._key = sha256(b"krappy console provider login " + secret).digest()

    @property
    def offered(self) -> bool:
        return self._provider is not None

    async def begin(self, now: int) -> tuple[str, str]:
        """(where the browser goes, the cookie's value). `now`: ms by the steady clock. Raises HttpError."""
        if self._provider is None:
            raise HttpError(404, "NOT_FOUND", "there is no identity provider to log in at")
        try:
            where, attempt = await self._provider.begin()
        except ProviderTrouble as error:
            raise _away(error) from None
        told = ".".join((str(now + LASTS_MS), *attempt))
        return where, f"{told}.{self._sign(told)}"

    async def finish(self, code: str, state: str, cookie: str, now: int) -> Principal:
        """Who has logged in. Raises WrongToken, HttpError."""
        attempt = self._read(cookie, now)
        if self._provider is None or attempt is None:
            raise WrongToken("this browser has begun no login at the identity provider, or too long ago: try it again")
        if not hmac.compare_digest(state.encode(errors="replace"), attempt.state.encode()):
            raise WrongToken("this is the end of another login at the identity provider: try it again")
        try:
            said = await self._provider.finish(code, attempt)
        except ProviderTrouble as error:
            raise _away(error) from None
        except TokenRefused as error:
            raise WrongToken(f"the identity provider's token is not good: {error}") from None
        return principal_of_claims(said, PROVIDER)

    def _read(self, cookie: str, now: int) -> ProviderAttempt | None:
        told, _, proof = cookie.rpartition(".")
        if not hmac.compare_digest(proof.encode(errors="replace"), self._sign(told).encode()):
            return None
        until, *attempt = told.split(".")  # it is signed, so it has these
        return ProviderAttempt(*attempt) if now < int(until) else None

    def _sign(self, told: str) -> str:
        return hmac.new(self._key, told.encode(errors="replace"), sha256).hexdigest()


def _away(error: ProviderTrouble) -> HttpError:
    return HttpError(503, "PROVIDER_NOT_AVAILABLE", f"the identity provider is not to be had: {error}")
