"""The port to the identity provider whose tokens users log in with."""

from __future__ import annotations

from typing import Protocol

from krappy.core.security.oauthbearer import TokenClaims
from krappy.ports.users import Took, untold


class TokensPort(Protocol):
    async def verify(self, token: str, took: Took = untold) -> TokenClaims:
        """What a good token says; `took` is told of the time. Raises TokenRefused."""
