"""How the brokers of a cluster reach each other: by which listener, and how they prove there who they are."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import trio

from krappy.cluster.streams import Tls
from krappy.core.security.oauthbearer import AFTER_REFUSAL, OAUTHBEARER, first_message
from krappy.core.security.sasl import PLAIN
from krappy.core.security.scram import ScramClient, ScramRefused
from krappy.errors import AuthenticationFailed
from krappy.wire.kafka import ApiKey

Message = dict[str, Any]
Ask = Callable[[ApiKey, Mapping[str, Any]], Awaitable[Message]]


class PeerLogin:
    """A user, and how it logs in. `secret()` gives its password, or a token, which says who the user is. It is called
    for each login, for the secret may change, and raises KrappyError."""

    def __init__(self, mechanism: str, user: str, secret: Callable[[], str]) -> None:
        self.mechanism, self.user = mechanism, user
        self._secret = secret

    async def log_in(self, ask: Ask) -> int:
        """Logs a connection in. `ask` sends a request on it, and returns the answer. Returns the ms after which the
        connection has to be logged in again; 0: never. Raises AuthenticationFailed, and what `ask` does."""
        answer = await ask(ApiKey.SASL_HANDSHAKE, {"mechanism": self.mechanism})
        if answer["error_code"]:
            there = ", ".join(answer["mechanisms"])
            raise AuthenticationFailed(f"it does not let users log in by {self.mechanism}, but by {there or 'nothing'}")
        secret = await trio.to_thread.run_sync(self._secret)
        if self.mechanism == OAUTHBEARER:
            try:
                first = first_message(secret)
            except ValueError as error:
                raise AuthenticationFailed(f"this broker has no token: {error}") from None
            return await self._step(ask, first, lambda data: AFTER_REFUSAL if data else b"")
        if self.mechanism == PLAIN:
            return await self._step(ask, f"\0{self.user}\0{secret}".encode(), lambda data: b"")
        scram = ScramClient(self.mechanism, self.user, secret, secrets.token_urlsafe(24))
        try:
            lifetime_ms = await self._step(ask, scram.first(), scram.step)
        except ScramRefused as error:
            raise AuthenticationFailed(f"it is not to be trusted: {error}") from None
        if not scram.done:
            raise AuthenticationFailed("it has not proved that it knows the user")
        return lifetime_ms

    async def _step(self, ask: Ask, data: bytes, answer_to: Callable[[bytes], bytes]) -> int:
        while True:
            answer = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": data})
            if answer["error_code"]:
                who = "this broker's token" if self.mechanism == OAUTHBEARER else f"the user '{self.user}'"
                raise AuthenticationFailed(f"it does not let {who} in: {answer['error_message']}")
            data = await trio.to_thread.run_sync(answer_to, bytes(answer["auth_bytes"]))  # it takes some ms
            if not data:
                lifetime_ms: int = answer["session_lifetime_ms"]
                return lifetime_ms

    def __repr__(self) -> str:
        return f"<PeerLogin of {self.user!r} by {self.mechanism}>"


class InterBroker(NamedTuple):
    """`listener`: its name. `login` None: a broker need not prove who it is, or its certificate does."""

    listener: str = "PLAINTEXT"
    tls: Tls = None
    login: PeerLogin | None = None
