"""OAUTHBEARER (RFC 7628), as Kafka has it (KIP-255): the messages of both halves, and what a token says of its user.
Without IO; the token's signature is checked elsewhere.

A client sends its token in one message. A token that is refused is answered with `REFUSAL`; the client sends one more
message, and is told that it has failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

OAUTHBEARER = "OAUTHBEARER"
REFUSAL = b'{"status":"invalid_token"}'  # RFC 7628, section 3.2.2
AFTER_REFUSAL = b"\x01"  # what a client answers to a refusal
LONGEST_TOKEN = 48 << 10  # characters
LONGEST_NAME = 255  # characters of a user or a group
MOST_GROUPS = 256  # of a user
LAST = 1e12  # seconds since 1970: no token ends later
_FIRST = re.compile(r"n,(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01", re.DOTALL)
_BEARER = re.compile(r"bearer +([-._~+/A-Za-z0-9]+=*)", re.IGNORECASE)


class TokenRefused(Exception):
    """The text is for the log, and has nothing of the token."""


class BearerToken(NamedTuple):
    """`identity`: the user that the client says it is, as the message has it; empty: it does not say."""

    token: str
    identity: str = ""

    def __repr__(self) -> str:
        return "<BearerToken>"

    def is_of(self, user: str) -> bool:
        return self.identity in ("", user.replace("=", "=3D").replace(",", "=2C"))


class TokenClaims(NamedTuple):
    """What a valid token says. `expires`: seconds since 1970."""

    user: str
    groups: tuple[str, ...]
    expires: float


def first_message(token: str) -> bytes:
    """The client's first message. Raises ValueError for what can't be a token."""
    if _BEARER.fullmatch(f"bearer {token}") is None:
        raise ValueError("a token has letters, digits and - . _ ~ + / alone")
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def read_first(data: bytes) -> BearerToken:
    """What the client's first message has. Keys other than `auth` are extensions (KIP-342), and are ignored. Raises
    TokenRefused."""
    try:
        found = _FIRST.fullmatch(data.decode())
    except UnicodeDecodeError:
        raise TokenRefused("no UTF-8") from None
    if found is None:
        raise TokenRefused("no message of OAUTHBEARER, or one that asks for channel binding")
    pairs = [pair.partition("=")[::2] for pair in found[2].split("\x01")[:-1]]
    given = [value for name, value in pairs if name == "auth"]
    token = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    if token is None or len(token[1]) > LONGEST_TOKEN:
        raise TokenRefused("no bearer token, or too long a one")
    return BearerToken(token[1], found[1] or "")


def read_claims(claims: Mapping[str, Any], subject: str, groups: str) -> TokenClaims:
    """Reads the claims of a token (RFC 7519, section 4) whose `exp` was checked. `subject`, `groups`: the names of the
    claims for the user and for the groups; a name with dots may also be a path into claims within claims. Without the
    claim for groups the user has none. A token whose groups can't be read is refused, since an ACL may deny something
    to one of them. Raises TokenRefused."""
    user, named = _claim(claims, subject), _claim(claims, groups)
    if not _is_name(user):
        raise TokenRefused(f"its claim {subject} is no name of a user")
    if named is None:
        named = []
    elif isinstance(named, str):
        named = [named]
    if not isinstance(named, list) or len(named) > MOST_GROUPS or not all(map(_is_name, named)):
        raise TokenRefused(f"its claim {groups} is no list of names")
    try:
        return TokenClaims(user, tuple(sorted(set(named))), min(float(claims["exp"]), LAST))
    except (KeyError, ValueError, TypeError, OverflowError):
        raise TokenRefused("its claim exp is no time") from None


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    found: Any = claims
    for part in (name,) if name in claims else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()
