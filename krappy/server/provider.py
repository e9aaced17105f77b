"""What a broker reads at its identity provider: the public keys, and the discovery document (OpenID Connect Discovery).

Rules, kept here:

- Only https, http to this machine itself, and, for keys, a file. No redirect is followed.
- An answer has at most `LONGEST` bytes, and must be complete within `SECONDS`, however slowly those of its head or its
  body come: else it would hold a thread.
- The discovery document is read seldom, whatever browsers ask for.
- Codes of logins, which anybody may send, have threads of their own: they keep nobody from reading keys.
"""

from __future__ import annotations

import json
import math
import ssl
import urllib.request
from collections.abc import Mapping
from functools import partial
from http.client import HTTPException, HTTPResponse
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

import trio

from krappy.errors import ConfigError
from krappy.ports.tokens import ProviderRefusal, ProviderTrouble
from krappy.settings.oauth import OauthSettings, check_url
from krappy.tls import client_context

LONGEST = 1 << 20  # bytes of an answer
SECONDS = 10.0  # for one request
FRESH = 600.0  # seconds for which the discovery document counts
PAUSE = 5.0  # seconds after which the document is asked for again, if that has failed
TOGETHER = 4  # requests at a time, without those with a code
CODES = 16  # requests with a code at a time
DISCOVERY = "/.well-known/openid-configuration"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # so that it is an HTTPError


class TimelyFile:
    """A socket's file that is read until some moment: the `timeout` of a socket bounds each wait alone."""

    def __init__(self, file: Any, sock: Any, until: float) -> None:
        self._file, self._sock, self._until = file, sock, until

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def readinto(self, buffer: Any) -> Any:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("its answer comes too slowly")
        self._sock.settimeout(left)
        return self._file.readinto(buffer)


class TimelyResponse(HTTPResponse):
    def __init__(self, sock: Any, *given: Any, until: float, **more: Any) -> None:
        super().__init__(sock, *given, **more)
        buffered: Any = type(self.fp)
        self.fp = buffered(TimelyFile(self.fp.detach(), sock, until))


class _Timely(urllib.request.AbstractHTTPHandler):
    def do_open(self, http_class: Any, req: Any, **given: Any) -> Any:
        until = monotonic() + SECONDS

        def connection(*args: Any, **more: Any) -> Any:
            made = http_class(*args, **more)
            made.response_class = partial(TimelyResponse, until=until)
            return made

        return super().do_open(connection, req, **given)


class _Http(_Timely, urllib.request.HTTPHandler):
    pass


class _Https(_Timely, urllib.request.HTTPSHandler):
    pass


class Provider:
    """Raises ConfigError when the authorities of `oauth_ca` can't be read."""

    def __init__(self, settings: OauthSettings) -> None:
        self._settings = settings
        self._together = trio.CapacityLimiter(TOGETHER)
        self._codes = trio.CapacityLimiter(CODES)
        self._discovering = trio.Lock()
        self._discovered: Mapping[str, Any] | ProviderTrouble = {}
        self._until = -math.inf  # when that is asked for again
        try:
            context = client_context(settings.oauth_ca or None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"oauth_ca: {settings.oauth_ca}: {error}", setting="oauth_ca") from None
        # Without the proxy for http: by http only this machine itself is asked.
        proxies = {name: url for name, url in urllib.request.getproxies().items() if name != "http"}
        self._opener = urllib.request.build_opener(
            _NoRedirects, urllib.request.ProxyHandler(proxies), _Http, _Https(context=context)
        )

    async def keys(self) -> bytes:
        """A JWK set, as its owner wrote it. Raises ProviderTrouble."""
        url = self._settings.oauth_jwks_url
        return await self.read(url or self.endpoint(await self.discovered(), "jwks_uri"))

    async def discovered(self) -> Mapping[str, Any]:
        """Raises ProviderTrouble."""
        async with self._discovering:
            if trio.current_time() >= self._until:
                try:
                    self._discovered, fresh = await self._discover(), FRESH
                except ProviderTrouble as error:
                    self._discovered, fresh = error, PAUSE
                self._until = trio.current_time() + fresh
        if isinstance(self._discovered, ProviderTrouble):
            raise ProviderTrouble(str(self._discovered))
        return self._discovered

    async def _discover(self) -> Mapping[str, Any]:
        issuer = self._settings.oauth_issuer
        found = as_object(await self.read(issuer.rstrip("/") + DISCOVERY))
        if found.get("issuer") != issuer:  # section 4.3: else one provider could pass for another
            raise ProviderTrouble(f"its discovery document is of the issuer {found.get('issuer')!s:.200}")
        return found

    @staticmethod
    def endpoint(discovered: Mapping[str, Any], name: str) -> str:
        """A URL of the discovery document. Raises ProviderTrouble."""
        url = str(discovered.get(name, ""))
        try:
            check_url(name, url)
        except ConfigError as error:
            raise ProviderTrouble(f"its discovery document: {error.text}") from None
        return url

    async def read(self, url: str, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
        """The answer of a URL; with `data`, the answer to a POST. Raises ProviderTrouble."""
        where = url.partition("?")[0]
        request = partial(self._read, url, data, {"Accept": "application/json", **(headers or {})})
        limiter = self._together if data is None else self._codes
        with trio.move_on_after(SECONDS):
            try:
                return await trio.to_thread.run_sync(request, abandon_on_cancel=True, limiter=limiter)
            except HTTPError as error:
                with error:
                    if error.code == 400:  # which a stranger is told
                        raise ProviderRefusal(f"the provider answers 400 {error.reason}") from None
                    raise ProviderTrouble(f"{where} answers {error.code} {error.reason}") from None
            except (OSError, HTTPException, ValueError) as error:
                raise ProviderTrouble(f"{where}: {_why(error)}") from None
        raise ProviderTrouble(f"{where} does not answer in {SECONDS:g} s")

    def _read(self, url: str, data: bytes | None, headers: dict[str, str]) -> bytes:
        parts = urlsplit(url)
        if parts.scheme == "file":
            with open(unquote(parts.path), "rb") as file:
                found: bytes = file.read(LONGEST + 1)
        else:
            with self._opener.open(urllib.request.Request(url, data, headers), timeout=SECONDS) as answer:
                found = answer.read(LONGEST + 1)
        if len(found) > LONGEST:
            raise ValueError(f"more than {LONGEST} bytes")
        return found


def _why(error: Exception) -> Any:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not good: {reason.verify_message} "
            "(trusted are the authorities in oauth_ca; if it is not set, the system's)"
        )
    return reason


def as_object(data: bytes) -> dict[str, Any]:
    """The JSON object that an answer is. Raises ProviderTrouble."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProviderTrouble("its answer is no JSON object")
    return found
