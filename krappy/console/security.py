"""Who may send requests, and how requests from other sites' pages in a visitor's name are refused.

- Without a token, the console is only for this machine: it listens on loopback, and the Host header must be a loopback
  name. Else a page that rebinds its own name to 127.0.0.1 (DNS rebinding) could read everything.
- On any other address, a console without a token answers only probes: these need no secret in a cluster, and nothing
  else is open by accident.
- With a token, every request to the API and to /metrics needs it (`Authorization: Bearer`), or the cookie of a login
  (sessions.py). Probes, and the pages themselves, which hold no data, are open.
- A request from another site's page is refused by the headers that browsers add (`Sec-Fetch-Site`, `Origin`). A request
  that changes something also needs the header `Krappy-Request`: a form or a link can't send it, and a script of another
  site only after a preflight request, which is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping

from krappy.console.attempts import WrongToken
from krappy.console.problems import HttpError
from krappy.console.sessions import Sessions

COOKIE = "krappy_session"
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z.-]+))(?::[0-9]{0,5})?")
HEADER = "krappy-request"
SAFE = ("GET", "HEAD", "OPTIONS")
PROBES = ("/healthz", "/readyz")
OPEN = ("/api/v1/login", "/api/v1/openapi.json")  # paths of the API that need no token

# Of every answer. Pages load everything from this server; nothing may be framed, sniffed or run inline.
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
    """`token`: the secret, or empty for none. `local`: only this machine reaches the console."""

    def __init__(self, token: str, *, local: bool, started_ms: int = 0) -> None:
        self._token = token.encode()
        self._probes_only = not token and not local
        self.sessions = Sessions(self._token, started_ms)

    @property
    def asks(self) -> bool:
        return bool(self._token)

    def check(self, method: str, path: str, headers: Mapping[str, str], cookies: Mapping[str, str], now: int) -> None:
        """Raises HttpError to refuse a request. `headers`: names in lower case; `now`: ms by the steady clock."""
        if self._probes_only:
            if path not in PROBES:
                raise HttpError(
                    403, "NO_TOKEN", "without a console_token, only probes are answered on an address that others reach"
                )
        elif not self.asks:
            self._check_host(headers.get("host"))
        if not path.startswith(("/api/", "/metrics")):  # by prefix: a route also takes its path with a line feed behind
            return
        self._check_site(method, headers)
        if self.asks:
            if path in OPEN:
                return
            given = headers.get("authorization", "")
            if given:
                kind, _, secret = given.partition(" ")
                if kind.lower() != "bearer" or not self.is_token(secret.strip()):
                    raise WrongToken
                return
            if not self.sessions.holds(cookies.get(COOKIE, ""), now):
                raise _not_logged_in(
                    "the console's token is needed: Authorization: Bearer, or POST it to /api/v1/login"
                )
        if method not in SAFE and HEADER not in headers:
            raise HttpError(
                403, "HEADER_MISSING", "a request that changes something needs the header Krappy-Request: 1"
            )

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self._token)

    def is_session(self, headers: Mapping[str, str], cookies: Mapping[str, str], now: int) -> bool:
        """Whether a request that was let in still would be: its session may have ended. Arguments as of `check`."""
        return not self.asks or "authorization" in headers or self.sessions.holds(cookies.get(COOKIE, ""), now)

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


def read_cookies(headers: Mapping[str, str]) -> dict[str, str]:
    """The cookies of a request by name (RFC 6265, section 5.4); the first of a name counts.

    In one pass: the standard library's parser takes a second for 15 KB of backslashes (CVE-2024-7592), which anybody
    may send.
    """
    found: dict[str, str] = {}
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.partition("=")
        found.setdefault(name.strip(), value.strip())
    return found
