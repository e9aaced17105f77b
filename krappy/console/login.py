"""Logs a browser in: it sends the token, a user's password, or what the identity provider has given it, once, and gets
a cookie that scripts can't read and other sites can't send."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.attempts import WrongToken
from krappy.console.oidc import LASTS_MS
from krappy.console.problems import HttpError
from krappy.console.security import CONSOLE, COOKIE, HOST_ONLY
from krappy.console.sessions import SESSION_MS
from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.errors import ConnectionLost, StorageError

routes = Routes("login")
MAX_LOGIN = 8192  # bytes of a request's body: anybody may send one


class LoginWays(msgspec.Struct):
    """How to log in: with the console's token, with a user's password, or at the identity provider."""

    token: bool
    password: bool
    provider: bool


class ProviderBegun(msgspec.Struct):
    """`location`: where the browser goes. The provider sends it back to the console's first page, with a `code` and a
    `state`."""

    location: str


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The console's `token`; or a `user` and the `password`; or the `code` and the `state` that the identity provider
    has given the browser."""

    token: Annotated[str, Meta(max_length=1000)] = ""
    user: Annotated[str, Meta(max_length=255)] = ""
    password: Annotated[str, Meta(max_length=1000)] = ""
    code: Annotated[str, Meta(max_length=4096)] = ""
    state: Annotated[str, Meta(max_length=255)] = ""

    def __repr__(self) -> str:
        return f"<Login of {self.user!r}>"


class LoggedIn(msgspec.Struct):
    """`needed`: whether the console asks for anything at all. `seconds`: how long the session lasts."""

    needed: bool
    seconds: int


class LogoutQuery(msgspec.Struct, forbid_unknown_fields=True):
    all: Annotated[
        bool,
        Meta(
            description="end every session of every browser at all brokers; without ALTER on the cluster, only those "
            "of this user. A request with a bearer token or a password may ask for it, too"
        ),
    ] = False


class LoggedOut(msgspec.Struct):
    """`ended`: how many sessions ended, at this broker. Their live views end within a second."""

    logged_out: bool
    ended: int


@routes.get("/login", needs=needs.NOTHING, summary="How to log in")
async def ways(call: Call) -> LoginWays:
    guard = call.console.guard
    return LoginWays(guard.has_token, guard.has_users, call.console.provider_logins.offered)


@routes.post("/login/provider", needs=needs.NOTHING, summary="Begin a login at the identity provider")
async def begin(call: Call) -> ProviderBegun:
    logins, now = call.console.provider_logins, call.broker.clock.steady_ms()
    location, name, value = await logins.begin(call.cookies, now, call.principal.host)
    call.set_cookie(_cookie(value, LASTS_MS // 1000, call.request.url.scheme, name))
    return ProviderBegun(location)


@routes.post(
    "/login",
    needs=needs.NOTHING,
    summary="Exchange a token, a password or the code of an identity provider for a cookie",
    max_body=MAX_LOGIN,
)
async def log_in(call: Call, body: Login) -> LoggedIn:
    guard = call.console.guard
    if not guard.asks:
        return LoggedIn(False, 0)
    now = call.broker.clock.steady_ms()
    lasts = SESSION_MS
    if body.code:
        logins, host = call.console.provider_logins, call.principal.host
        principal = await logins.finish(body.code, body.state, call.cookies, now, host)
        lasts = min(lasts, (principal.expires_ms or 0) - call.broker.now_ms())
        if lasts <= 0:
            raise WrongToken("the identity provider's token is over already: do the clocks differ?")
    elif body.user:
        async with call.console.attempts.checking(call.principal.host):
            principal = await guard.user(body.user, body.password, call.principal.host, call.payer.took)
    elif guard.is_token(body.token):
        principal = CONSOLE
    else:
        raise WrongToken
    call.broker.audit.authenticated(replace(principal, host=call.principal.host))
    seconds = lasts // 1000
    cookie = guard.log_in(principal, now, lasts)
    call.set_cookie(_cookie(cookie, seconds, call.request.url.scheme))
    return LoggedIn(True, seconds)


@routes.post("/logout", needs=needs.cluster(Op.ALTER), summary="End this session, or all sessions")
async def log_out(call: Call, query: LogoutQuery) -> LoggedOut:
    sessions, now = call.console.guard.sessions, call.broker.clock.steady_ms()
    cookie = call.cookies.get(COOKIE, "")
    if query.all:
        everybody = call.access.may(Resource.CLUSTER, CLUSTER_NAME, Op.ALTER)
        ended = sessions.close_all(now, None if everybody else replace(call.principal, host=""))
        if everybody:  # also if nobody is logged in here: at other brokers they may be
            call.broker.audit.changed("sessions", "console", {"open": ended}, None)
        try:
            await call.broker.logouts.end(None if everybody else call.principal.name)
        except (StorageError, ConnectionLost) as error:
            what = "sessions at this broker have ended; those at others end as soon as it can be stored"
            raise HttpError(503, error.name, what) from None
    else:
        ended = sessions.close(cookie, now)
    call.set_cookie(_cookie("", 0, call.request.url.scheme))
    return LoggedOut(True, ended)


def _cookie(value: str, seconds: int, scheme: str, name: str = COOKIE) -> str:
    """The value of Set-Cookie (RFC 6265). `Secure`, and for this host alone, only over TLS: else a browser would not
    send the cookie back."""
    text = f"{name}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict"
    return f"{HOST_ONLY}{text}; Secure" if scheme == "https" else text
