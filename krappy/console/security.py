"""Who may send requests, and how requests from other sites' pages in a visitor's name are refused.

- Without a token, the console is only for this machine: it listens on loopback, and the Host header must be a loopback
  name. Else a page that rebinds its own name to 127.0.0.1 (DNS rebinding) could read everything.
- On any other address, a console without a token answers only probes: these need no secret in a cluster, and nothing
  else is open by accident.
- With a token, every request to the API and to /metrics needs it (`Authorization: Bearer`), or the cookie of a login
  (sessions.py). Probes, and the pages themselves, which hold no data, are open.
- On a listener with users (SASL_SSL, SASL_PLAINTEXT), a user's name and password do as well (`Authorization: Basic`),
  and so does a token of an identity provider (`Authorization: Bearer`), or a login there. A session ends with the
  password or the token that it was opened with; with the token also when the wall clock, which may have been set since,
  says that it is over.
- A request from another site's page is refused by the headers that browsers add (`Sec-Fetch-Site`, `Origin`). A request
  that changes something also needs the header `Krappy-Request`: a form or a link can't send it, and a script of another
  site only after a preflight request, which is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
from base64 import b64decode
from collections.abc import Callable, Mapping

from krappy.console.attempts import WrongToken
from krappy.console.problems import HttpError
from krappy.console.sessions import MOST, MOST_OF_ONE, OVER, SESSION_MS, ConsoleSession, Sessions
from krappy.core.security.oauthbearer import OAUTHBEARER, TokenClaims, TokenRefused
from krappy.core.security.principal import TOKEN, Principal
from krappy.ports.logouts import LogoutsPort
from krappy.ports.tokens import TokensPort
from krappy.ports.users import Took, UsersPort, untold

COOKIE = "krappy_session"
HOST_ONLY = "__Host-"  # before names of cookies over TLS: no other host can have set them (RFC 6265bis, section 4.1.3)
CHANGED = "the user's password was changed, or the user deleted"  # why a session has ended
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z.-]+))(?::[0-9]{0,5})?")
HEADER = "krappy-request"
SAFE = ("GET", "HEAD", "OPTIONS")
GUARDED = ("/api/", "/metrics")  # by prefix: a route also takes its path with a line feed behind
PROBES = ("/healthz", "/readyz")
CONSOLE = Principal(name="console", mechanism=TOKEN, listener="HTTP")  # who has the console's token
OPEN = ("/api/v1/login", "/api/v1/login/provider", "/api/v1/openapi.json")  # paths of the API that need no token
PROVIDER = "OIDC"  # the mechanism of one who has logged in at the identity provider

# The headers of every answer. Pages load everything from this server; nothing may be framed, sniffed or run inline.
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        b"connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]


class Guard:
    """`token`: the secret, or empty for none. `local`: only this machine reaches the console. `users`: None: nobody
    logs in with a password. `secret`: random, for the cookies of sessions. `ended`: is told whose session ended before
    its time, and why. `logouts`: tells of those at all brokers of the cluster; None: sessions end
    here alone. `wall_ms`: the wall clock, for when tokens end."""

    def __init__(
        self,
        token: str,
        *,
        local: bool,
        started_ms: int = 0,
        users: Callable[[], UsersPort] | None = None,
        tokens: TokensPort | None = None,
        secret: bytes = b"",
        ended: Callable[[Principal, str], None] = lambda principal, why: None,
        logouts: Callable[[], LogoutsPort] | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._ended = ended
        self._logouts = logouts
        self._wall_ms = wall_ms
        self._token = token.encode()
        self._users = users
        self._tokens = tokens
        self.probes_only = not token and not local and users is None
        self.sessions = Sessions(self._token + secret, started_ms, ended)

    @property
    def asks(self) -> bool:
        return self.has_token or self.has_users

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    @property
    def has_users(self) -> bool:
        return self._users is not None

    def needs_login(self, path: str) -> bool:
        return self.asks and path.startswith(GUARDED) and path not in OPEN

    async def identify(
        self, headers: Mapping[str, str], cookies: Mapping[str, str], now: int, host: str, took: Took = untold
    ) -> Principal | None:
        """Who sends a request; None: somebody who has not logged in. `host`, `took`: as for `UsersPort.check`. Raises
        WrongToken, Overloaded."""
        given = headers.get("authorization", "")
        if not given:
            found = self._session(cookies, now)
            return None if found is None else found.principal
        kind, _, secret = given.partition(" ")
        if kind.lower() == "basic" and self._users is not None:
            user, _, password = _decoded(secret).partition(":")
            return await self.user(user, password, host, took)
        if kind.lower() != "bearer":
            raise WrongToken
        return CONSOLE if self.is_token(secret.strip()) else await self._bearer(secret.strip(), host)

    async def _bearer(self, token: str, host: str) -> Principal:
        """Raises WrongToken."""
        if self._tokens is None:
            raise WrongToken
        try:
            return principal_of_claims(await self._tokens.verify(token, host), OAUTHBEARER)
        except TokenRefused as error:
            raise WrongToken(f"the token is not good: {error}") from None

    async def user(self, name: str, password: str, host: str, took: Took = untold) -> Principal:
        """Raises WrongToken unless it is that user's password; Overloaded."""
        if self._users is None or not await self._users().check(name, password, host, took):
            raise WrongToken("the user or the password is wrong", name)
        return Principal(name=name, mechanism="PLAIN", listener="HTTP")

    def log_in(self, principal: Principal, now: int, lasts: int = SESSION_MS) -> str:
        """The cookie of a new session. `lasts`: ms."""
        most = MOST if principal.name == CONSOLE.name else MOST_OF_ONE  # those who have the token are many people
        marks = ("", "") if self._logouts is None else self._logouts().marks(principal.name)
        return self.sessions.open(now, principal, self.stamp(principal), marks, lasts, most)

    def stamp(self, principal: Principal) -> bytes:
        """The stamp of this user's password, which changes with the password; empty if he has given a token instead."""
        by_token = principal.mechanism in (CONSOLE.mechanism, OAUTHBEARER, PROVIDER)
        return b"" if by_token or self._users is None else self._users().stamp(principal.name)

    def _session(self, cookies: Mapping[str, str], now: int) -> ConsoleSession | None:
        found = self.sessions.find(cookie := cookies.get(COOKIE, ""), now)
        if found is not None and (found.principal.expires_ms or math.inf) <= self._wall_ms():
            self.sessions.close(cookie, now)
            self._ended(found.principal, OVER)
            return None
        if found is not None and found.stamp != self.stamp(found.principal):
            self.sessions.close(cookie, now)
            self._ended(found.principal, CHANGED)
            return None
        if found is not None and self._logouts is not None and self._logouts().ended(found.principal.name, found.marks):
            self.sessions.close(cookie, now)
            return None
        return found

    def check(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        cookies: Mapping[str, str],
        now: int,
        who: Principal | None = None,
    ) -> None:
        """Raises HttpError to refuse a request. `headers`: names in lower case; `now`: ms by the steady clock; `who`:
        as `identify` has found."""
        if self.probes_only:
            if path not in PROBES:
                raise HttpError(
                    403, "NO_TOKEN", "without a console_token, only probes are answered on an address that others reach"
                )
        elif not self.asks:
            self._check_host(headers.get("host"))
        if not path.startswith(GUARDED):
            return
        self._check_site(method, headers)
        if self.asks:
            if path in OPEN:
                return
            if who is None and self._session(cookies, now) is None:
                what = "the console's token" if self._users is None else "a user and a password"
                raise _not_logged_in(f"{what} is needed: in the header Authorization, or POST it to /api/v1/login")
            if headers.get("authorization"):
                return
        if method not in SAFE and HEADER not in headers:
            raise HttpError(
                403, "HEADER_MISSING", "a request that changes something needs the header Krappy-Request: 1"
            )

    def is_token(self, given: str) -> bool:
        return bool(self._token) and hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)

    def is_session(self, headers: Mapping[str, str], cookies: Mapping[str, str], now: int) -> bool:
        """Whether a request that was let in still would be: its session may have ended. Arguments as of `check`."""
        return not self.asks or bool(headers.get("authorization")) or self._session(cookies, now) is not None

    @staticmethod
    def _check_host(host: str | None) -> None:
        if host is None or not is_local(host):
            raise HttpError(
                421,
                "UNKNOWN_HOST",
                "without a console_token the console answers to localhost, 127.0.0.1 and [::1] only",
            )

    @staticmethod
    def _check_site(method: str, headers: Mapping[str, str]) -> None:
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise HttpError(403, "OTHER_SITE", "a page of another site asks for this")
        origin = headers.get("origin")
        if method not in SAFE and origin is not None:
            scheme, _, name = origin.partition("://")
            if scheme not in ("http", "https") or name != headers.get("host"):
                raise HttpError(403, "OTHER_SITE", "a page of another site asks for this")


def principal_of_claims(said: TokenClaims, mechanism: str) -> Principal:
    expires = int(said.expires * 1000)
    return Principal(name=said.user, groups=said.groups, mechanism=mechanism, listener="HTTP", expires_ms=expires)


def _decoded(text: str) -> str:
    """The user-pass of RFC 7617, decoded from base64. Raises WrongToken."""
    try:
        return b64decode(text.strip(), validate=True).decode()
    except ValueError:
        raise WrongToken("the user or the password is wrong") from None


def _not_logged_in(why: str) -> HttpError:
    return HttpError(401, "NOT_LOGGED_IN", why, WWW_Authenticate='Bearer realm="krappy"')


def is_local(host: str) -> bool:
    """Whether a Host header names this machine: "localhost:8092", "127.0.0.1", "[::1]:8092", "krappy.localhost".

    False if it is not a host and port (RFC 9110, section 7.2), such as "localhost:80@evil.example".
    """
    match = HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower().rstrip(".")
    try:
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def read_cookies(headers: Mapping[str, str], scheme: str) -> dict[str, str]:
    """The cookies of a request by name (RFC 6265, section 5.4); the first of a name counts. Over TLS only those that
    this host has set count, named without `HOST_ONLY`.

    In one pass: the standard library's parser takes a second for 15 KB of backslashes (CVE-2024-7592), which anybody
    may send.
    """
    found: dict[str, str] = {}
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.partition("=")
        name = name.strip()
        if scheme != "https":
            found.setdefault(name, value.strip())
        elif name.startswith(HOST_ONLY):
            found.setdefault(name.removeprefix(HOST_ONLY), value.strip())
    return found
