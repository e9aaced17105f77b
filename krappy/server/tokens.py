"""Checks tokens of an identity provider: JWTs (RFC 7519), with the care that RFC 8725 asks for.

A token counts if the provider has signed it by an algorithm with a public key, it is of `oauth_issuer` and for one of
the audiences, and it is valid now. Nothing of it is believed before its signature was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jwt

from krappy.core.security.oauthbearer import LONGEST_TOKEN, TokenClaims, TokenRefused, read_claims
from krappy.server.provider import Provider
from krappy.server.token_keys import TokenKeys
from krappy.settings.oauth import OauthSettings


class Tokens:
    """Implements `TokensPort`. Raises ConfigError."""

    def __init__(self, settings: OauthSettings, report: Callable[..., None]) -> None:
        self.provider = Provider(settings)
        self._settings = settings
        self._keys = TokenKeys(self.provider.keys, settings.oauth_jwks_refresh_ms / 1000, report)

    async def follow(self) -> None:
        """Follows the provider's keys. Until cancelled."""
        await self._keys.follow()

    @property
    def keys_age(self) -> float:
        return self._keys.age

    async def verify(self, token: str, host: str = "") -> TokenClaims:
        return self.read(await self.claims(token, self._settings.oauth_audiences, host))

    def read(self, claims: Mapping[str, Any]) -> TokenClaims:
        """Raises TokenRefused."""
        return read_claims(claims, self._settings.oauth_subject_claim, self._settings.oauth_groups_claim)

    async def claims(self, token: str, audiences: Sequence[str], host: str = "") -> Mapping[str, Any]:
        """All that a token says. It must be good, and for one of the `audiences`. Raises TokenRefused."""
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise TokenRefused("too long, or no ASCII")
        try:
            header = jwt.get_unverified_header(token)
            key = await self._keys.find(header.get("kid"), str(header.get("alg")), host)
            if key is None:
                raise TokenRefused("the provider has no key of the id, and for the algorithm, that the token names")
            found: dict[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=key.algorithms,
                audience=audiences,
                issuer=self._settings.oauth_issuer,
                leeway=self._settings.oauth_clock_skew_seconds,
                options={"require": ["exp", "iss", "aud"], "verify_sub": False},
            )
            return found
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise TokenRefused(f"{error}"[:200]) from None
