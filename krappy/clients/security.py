"""How a client trusts the broker and says who it is: TLS; a user's name and a password, or a token.

What a program does not give is taken from the environment, so that programs need not know it: $KRAPPY_TLS (true),
$KRAPPY_CA, $KRAPPY_CERT, $KRAPPY_USER and $KRAPPY_PASSWORD_FILE, or $KRAPPY_TOKEN_FILE.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import TypedDict

from krappy.core.security.oauthbearer import OAUTHBEARER
from krappy.errors import ConfigError
from krappy.tls import client_context

Password = str | os.PathLike[str] | Callable[[], str]  # itself, the file that holds it, or what gives it; a token, too
Certificate = str | tuple[str, str]  # PEM file of a certificate and its key, or one of each
TLS, CA, CERT = "KRAPPY_TLS", "KRAPPY_CA", "KRAPPY_CERT"
USER, PASSWORD_FILE, TOKEN_FILE = "KRAPPY_USER", "KRAPPY_PASSWORD_FILE", "KRAPPY_TOKEN_FILE"


class SecurityOptions(TypedDict, total=False):
    """As `ClientSecurity` explains them."""

    tls: bool | ssl.SSLContext | Callable[[], ssl.SSLContext] | None
    ca: str | os.PathLike[str] | None
    cert: Certificate | None
    user: str | None
    password: Password | None
    mechanism: str | None
    token: Password | None


class ClientOptions(SecurityOptions, total=False):
    """Seconds, as `Link` has them."""

    timeout: float
    keepalive: float


class ClientSecurity:
    """Args:

        tls: True: the connections have TLS; or a context of one's own, or a function that returns one for each
            connection. None: they have it if there is a `ca` or a `cert`; else as $KRAPPY_TLS, $KRAPPY_CA and
            $KRAPPY_CERT say.
        ca: PEM file of the authorities that may vouch for the broker's certificate; None: those of the system.
        cert: PEM file of the client's own certificate and key, or (certificate, key).
        user: who logs in; None: $KRAPPY_USER, with the password in the file $KRAPPY_PASSWORD_FILE.
        password: itself, the path of the file that holds it, or a function that returns it. It is asked for with each
            new connection.
        mechanism: how the user logs in: SCRAM-SHA-512, SCRAM-SHA-256, or PLAIN over TLS; None: by the first of these
            that the broker has.
        token: of an identity provider (a JWT), in place of user and password: itself, the path of the file that holds
            it, or a function that returns it; None: the file $KRAPPY_TOKEN_FILE, if there is no user. It is asked for
            with each new connection, and before each session ends, in the thread or on the event loop that reads the
            connection: a function that has to fetch it should do so before. It is sent over TLS alone.

    Raises ConfigError.
    """

    def __init__(
        self,
        tls: bool | ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: Certificate | None = None,
        user: str | None = None,
        password: Password | None = None,
        mechanism: str | None = None,
        token: Password | None = None,
    ) -> None:
        if user is None and password is not None:
            raise ConfigError("a password without a user: give both")
        if token is not None and (user is not None or mechanism not in (None, OAUTHBEARER)):
            raise ConfigError("a token takes the place of a user, a password and their mechanism: leave these out")
        environ = os.environ
        if tls is None and ca is None and cert is None:
            tls = environ.get(TLS, "").lower() in ("1", "true", "yes") or None
            ca, cert = environ.get(CA) or None, environ.get(CERT) or None
        if user is None and token is None:
            user = environ.get(USER) or None
            file = environ.get(PASSWORD_FILE)
            password = _File(file) if user is not None and file else None
            file = environ.get(TOKEN_FILE)
            token = _File(file) if user is None and file else None
        if user is not None and password is None:
            raise ConfigError(f"a user without a password: give password=, or name its file in ${PASSWORD_FILE}")
        self._context: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None
        if tls is not None and not isinstance(tls, bool):
            self._context = tls
        elif tls or (tls is None and (ca or cert)):
            try:
                self._context = client_context(None if ca is None else os.fspath(ca), cert)
            except (OSError, ValueError) as error:
                raise ConfigError(f"ca={ca!s}, cert={cert!s}: {error}") from None
        self.user, self.mechanism = user, mechanism
        self.is_broker = False  # a broker asks for its own clients
        self._password, self._token = password, token

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context of a new connection; None: it has no TLS."""
        return self._context() if callable(self._context) else self._context

    def password(self) -> str:
        """Raises ConfigError when its file can't be read."""
        return _secret(self._password, "password")

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def token(self) -> str:
        """The token as it is now. Raises ConfigError when it can't be had."""
        try:
            return _secret(self._token, "token").strip()
        except ConfigError:
            raise
        except Exception as error:  # raised by the program's function
            raise ConfigError(f"there is no token: {type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        who = "a token" if self.has_token else f"user {self.user!r}"
        return f"<ClientSecurity {'with' if self._context else 'without'} TLS, {who}>"


def _secret(given: Password | None, what: str) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    if callable(given):
        return given()
    try:
        with open(given, encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the {what}'s file can't be read: {error}") from None


class _File:
    """A path that is no text, which would be the password itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path
