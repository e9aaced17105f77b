"""SASL mechanisms as the server has them: messages go in; challenges, checks of passwords and users come out. Pure.

A `SaslExchange` is one attempt to log in. Each message of the client gives one of:

- Challenge: what the client is sent, and answers;
- PasswordGiven: a user's name and password (PLAIN), which the caller has to check: it takes some ms;
- BearerToken: a token (OAUTHBEARER), which the caller has to check, and to `refuse` if it is not good;
- Proved: the client is this user.

SaslRefused ends the attempt. Its text is for the log; the client is told the same whatever was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from krappy.core.security.oauthbearer import OAUTHBEARER, REFUSAL, BearerToken, TokenRefused, read_first
from krappy.core.security.scram import HASHES, ScramCredential, ScramRefused, ScramServer

PLAIN = "PLAIN"
MECHANISMS = (*HASHES, PLAIN, OAUTHBEARER)
LONGEST_NAME = 255  # characters of a user's name
LONGEST_PASSWORD = 4096  # bytes of a password, and of a file with one: a line feed at its end counts there
LONGEST_MESSAGE = 64 << 10  # bytes of a client's message: it may have a token


class SaslRefused(Exception):
    pass


class Challenge(NamedTuple):
    data: bytes


class PasswordGiven(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"<PasswordGiven of {self.user!r}>"


class Proved(NamedTuple):
    """`data`: for the client. `groups`: of the user. `expires`: when the proof ends, in seconds since 1970; None:
    never."""

    user: str
    data: bytes = b""
    groups: tuple[str, ...] = ()
    expires: float | None = None


SaslStep = Challenge | PasswordGiven | BearerToken | Proved


class SaslExchange:
    """`find`: gives the credential of a user for a mechanism of SCRAM; it may be one that no password fits."""

    def __init__(self, mechanism: str, find: Callable[[str, str], ScramCredential], nonce: str) -> None:
        self.mechanism = mechanism
        self.refused = False  # a token was not good
        self._scram = None
        if mechanism in HASHES:
            self._scram = ScramServer(mechanism, lambda user: find(user, mechanism), nonce)

    @property
    def user(self) -> str:
        """The user's name, as the client has told it so far; empty: it has not."""
        return "" if self._scram is None else self._scram.user

    def step(self, data: bytes) -> SaslStep:
        """Raises SaslRefused."""
        if len(data) > LONGEST_MESSAGE:
            raise SaslRefused(f"a message of {len(data)} bytes")
        try:
            if self.mechanism == OAUTHBEARER:
                return self._bearer(data)
            if self._scram is None:
                return _plain(data)
            answer = self._scram.step(data)
        except (ScramRefused, TokenRefused) as error:
            raise SaslRefused(str(error)) from None
        return Proved(self._scram.user, answer) if self._scram.proved else Challenge(answer)

    def _bearer(self, data: bytes) -> BearerToken:
        if self.refused:
            raise SaslRefused("the token was refused")
        return read_first(data)

    def refuse(self) -> Challenge:
        """What the client is told of a token that is not good. The attempt ends with its next message."""
        self.refused = True
        return Challenge(REFUSAL)


def _plain(data: bytes) -> PasswordGiven:
    """RFC 4616: the user that it acts for (the same, or none), NUL, its name, NUL, its password."""
    try:
        parts = data.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslRefused("no UTF-8") from None
    if len(parts) != 3:
        raise SaslRefused("not three parts")
    identity, user, password = parts
    if not user or not password or identity not in ("", user) or len(user) > LONGEST_NAME:
        raise SaslRefused("no user, no password, or another authorization identity")
    if len(password.encode()) > LONGEST_PASSWORD:
        raise SaslRefused(f"a password of more than {LONGEST_PASSWORD} bytes")
    return PasswordGiven(user, password)


def read_mechanisms(text: str) -> Sequence[str]:
    """The mechanisms of "SCRAM-SHA-512,PLAIN", each once. Raises ValueError for an unknown one, and for no text."""
    found = list(dict.fromkeys(each.strip().upper() for each in text.split(",")))
    if unknown := [each for each in found if each not in MECHANISMS]:
        raise ValueError(f"'{unknown[0]:.40}' is no mechanism; there are {', '.join(MECHANISMS)}")
    return found
