"""How a client logs a connection in: by SCRAM, which proves that it knows the password, and that the broker does; or by
PLAIN or OAUTHBEARER, which send the password or a token, over TLS alone."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from krappy.clients.security import PASSWORD_FILE, USER, ClientSecurity
from krappy.core.security.oauthbearer import OAUTHBEARER, first_message
from krappy.core.security.scram import ScramClient, ScramRefused
from krappy.errors import AuthenticationFailed, ConfigError

PREFERRED = ("SCRAM-SHA-512", "SCRAM-SHA-256")
PLAIN = "PLAIN"


class ClientLogin:
    """`mechanisms`: those of the broker. Raises AuthenticationFailed when none will do, or there is no user;
    ConfigError when there is no password, or no token."""

    def __init__(self, security: ClientSecurity, mechanisms: Sequence[str]) -> None:
        self._scram: ScramClient | None = None
        if security.has_token:
            self.mechanism, self.first = OAUTHBEARER, _with_token(security, mechanisms)
            return
        user = security.user
        if user is None:
            raise AuthenticationFailed(
                "the broker asks who you are: connect with user= and password= (--user, --password-file), "
                f"or set ${USER} and ${PASSWORD_FILE}; its mechanisms are {', '.join(mechanisms)}"
            )
        wanted = PREFERRED if security.mechanism is None else (security.mechanism,)
        self.mechanism = next((each for each in wanted if each in mechanisms), PLAIN)
        refused = self.mechanism == PLAIN and (PLAIN not in mechanisms or security.context is None)
        if refused or security.mechanism not in (None, self.mechanism):
            has = security.mechanism or f"{', '.join(PREFERRED)}, and {PLAIN} over TLS"
            raise AuthenticationFailed(f"the broker's mechanisms are {', '.join(mechanisms)}; this client has {has}")
        password = security.password()
        if self.mechanism == PLAIN:
            self.first = f"\0{user}\0{password}".encode(errors="surrogateescape")
        else:
            self._scram = ScramClient(self.mechanism, user, password, secrets.token_urlsafe(24))
            self.first = self._scram.first()

    def step(self, data: bytes, *, done: bool) -> bytes:
        """What follows the broker's answer; `done`: it was the last one. Raises AuthenticationFailed when the broker
        has not proved that it knows the user."""
        if self._scram is None:
            if not done:
                raise AuthenticationFailed(f"the broker refuses the token: {data[:200].decode(errors='replace')}")
            return b""
        try:
            answer = self._scram.step(data)
        except ScramRefused as error:
            raise AuthenticationFailed(f"the broker is not to be trusted: {error}") from None
        if done and not self._scram.done:
            raise AuthenticationFailed("the broker has not proved that it knows the user")
        return answer


def _with_token(security: ClientSecurity, mechanisms: Sequence[str]) -> bytes:
    if OAUTHBEARER not in mechanisms or security.context is None:
        raise AuthenticationFailed(
            f"the broker's mechanisms are {', '.join(mechanisms)}; a token is sent by {OAUTHBEARER} over TLS alone"
        )
    try:
        return first_message(security.token())
    except ValueError as error:
        raise ConfigError(f"the token is not valid: {error}") from None
