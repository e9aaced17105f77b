"""The ports to the identity provider whose tokens users log in with."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from krappy.core.security.oauthbearer import TokenClaims


class ProviderTrouble(Exception):
    """The identity provider does not answer, or not as it has to."""


class ProviderRefusal(ProviderTrouble):
    """It says that it was asked for what it does not give (400)."""


class TokensPort(Protocol):
    @property
    def keys_age(self) -> float:
        """Seconds since the provider's keys were read; infinite: they never were."""

    async def verify(self, token: str, host: str = "") -> TokenClaims:
        """What a good token says. It takes the event loop's time. `host`: the address that it comes from. Raises
        TokenRefused."""


class ProviderAttempt(NamedTuple):
    """What a browser that goes to log in at the provider has to bring back (`state`), what the token has to have
    (`nonce`), and the proof that it is the same browser (`verifier`, RFC 7636). Letters, digits, - and _ alone."""

    state: str
    nonce: str
    verifier: str


class ProviderLoginPort(Protocol):
    async def begin(self) -> tuple[str, ProviderAttempt]:
        """(where the browser goes, what it is to remember). Raises ProviderTrouble."""

    async def finish(self, code: str, attempt: ProviderAttempt) -> TokenClaims:
        """Who has logged in there, and until when. Raises ProviderTrouble, TokenRefused."""
