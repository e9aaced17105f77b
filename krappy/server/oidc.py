"""How browsers log in at the identity provider: the authorization code flow of OpenID Connect, with PKCE (RFC 7636).

The browser goes to the provider, and comes back to the console's page with a code. The broker exchanges the code for an
ID token, and checks that like any token: the provider must have signed it, for the console and this attempt (`nonce`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote_plus, urlencode

from krappy.core.security.oauthbearer import TokenClaims, TokenRefused
from krappy.errors import ConfigError
from krappy.ports.tokens import ProviderAttempt, ProviderRefusal, ProviderTrouble
from krappy.server.provider import as_object
from krappy.server.tokens import Tokens
from krappy.settings.oauth import OauthSettings

FORM = "application/x-www-form-urlencoded"


class ProviderLogin:
    """Implements `ProviderLoginPort`."""

    def __init__(self, tokens: Tokens, settings: OauthSettings) -> None:
        self._tokens = tokens
        self._provider = tokens.provider
        self._settings = settings
        self._client = settings.console_oidc_client_id

    async def begin(self) -> tuple[str, ProviderAttempt]:
        attempt = ProviderAttempt(*(secrets.token_urlsafe(32) for _ in ProviderAttempt._fields))
        where = self._provider.endpoint(await self._provider.discovered(), "authorization_endpoint")
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": self._settings.console_oidc_redirect,
            "scope": self._settings.console_oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{where}{'&' if '?' in where else '?'}{urlencode(asked)}", attempt

    async def finish(self, code: str, attempt: ProviderAttempt) -> TokenClaims:
        where = self._provider.endpoint(await self._provider.discovered(), "token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.console_oidc_redirect,
            "client_id": self._client,
            "code_verifier": attempt.verifier,
        }
        headers = {"Content-Type": FORM, **self._shown()}
        try:
            answer = as_object(await self._provider.read(where, urlencode(form).encode(), headers))
        except ProviderRefusal as error:  # for a guessed code, too: RFC 6749, section 5.2
            raise TokenRefused(f"no token for this code: {error}") from None
        claims = await self._tokens.claims(str(answer.get("id_token", "")), [self._client])
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(errors="replace"), attempt.nonce.encode()):
            raise TokenRefused("an ID token of another login")
        if claims.get("azp", self._client) != self._client:  # OpenID Connect Core, section 3.1.3.7
            raise TokenRefused("an ID token for another client")
        return self._tokens.read(claims)

    def _shown(self) -> dict[str, str]:
        """How the console authenticates at the provider (RFC 6749, section 2.3.1). Raises ProviderTrouble."""
        file = self._settings.console_oidc_secret_file
        if not file:
            return {}
        try:
            secret = read_secret_file(file)
        except ConfigError as error:
            raise ProviderTrouble(error.text) from None
        pair = f"{quote_plus(self._client)}:{quote_plus(secret)}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def read_secret_file(file: str) -> str:
    """Raises ConfigError."""
    name = "console_oidc_secret_file"
    try:
        with open(file, encoding="utf-8") as opened:
            found = opened.read(4096).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {file} can't be read: {error}", setting=name) from None
    if not found:
        raise ConfigError(f"{name}: {file} is empty", setting=name)
    return found
