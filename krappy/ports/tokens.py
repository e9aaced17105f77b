"""The ports to the identity provider whose tokens users log in with."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from krappy.core.security.oauthbearer import TokenClaims


class ProviderTrouble(Exception):
    """The identity provider does not answer, or not as it must."""


class ProviderRefusal(ProviderTrouble):
    """The identity provider refuses what it was asked for (400)."""


class TokensPort(Protocol):
    @property
    def keys_age(self) -> float:
        """Seconds since the provider's keys were read; infinite: they never were."""

    async def verify(self, token: str, host: str = "") -> TokenClaims:
        """What a good token says. To check it takes time on the event loop. `host`: the address that it comes from.
        Raises TokenRefused."""


class ProviderAttempt(NamedTuple):
    """One login of a browser at the provider. `state`: what the browser has to bring back. `nonce`: what the token has
    to have. `verifier`: the proof that it is the same browser (RFC 7636). All have only letters, digits, - and _."""

    state: str
    nonce: str
    verifier: str


class ProviderLoginPort(Protocol):
    async def begin(self) -> tuple[str, ProviderAttempt]:
        """(where the browser goes, what it is to remember). Raises ProviderTrouble."""

    async def finish(self, code: str, attempt: ProviderAttempt) -> TokenClaims:
        """Who has logged in there, and until when. Raises ProviderTrouble, TokenRefused."""
