"""Logs a browser in: it sends the token, or a user's password, once, and gets a cookie that scripts can't read and
other sites can't send."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from krappy.console.api import Call, Routes
from krappy.console.attempts import WrongToken
from krappy.console.security import CONSOLE, COOKIE, read_cookies
from krappy.console.sessions import SESSION_MS
from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource

routes = Routes("login")
MAX_LOGIN = 8192  # bytes of a request's body: anybody may send one


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The console's `token`, or a `user` and the `password`."""

    token: Annotated[str, Meta(max_length=1000)] = ""
    user: Annotated[str, Meta(max_length=255)] = ""
    password: Annotated[str, Meta(max_length=1000)] = ""


class LoggedIn(msgspec.Struct):
    """`needed`: whether the console asks for anything at all. `seconds`: how long the session lasts."""

    needed: bool
    seconds: int


class LogoutQuery(msgspec.Struct, forbid_unknown_fields=True):
    all: Annotated[
        bool,
        Meta(
            description="end every session of every browser; without ALTER on the cluster, of this user alone. With a "
            "bearer token or a password, too"
        ),
    ] = False


class LoggedOut(msgspec.Struct):
    """`ended`: how many sessions ended. Their live views end within 15 seconds."""

    logged_out: bool
    ended: int


@routes.post(
    "/login",
    needs=needs.NOTHING,
    summary="Exchange a token or a password for a cookie",
    max_body=MAX_LOGIN,
)
async def log_in(call: Call, body: Login) -> LoggedIn:
    guard = call.console.guard
    if not guard.asks:
        return LoggedIn(False, 0)
    if body.user:
        principal = await guard.user(body.user, body.password, call.payer.took)
    elif guard.is_token(body.token):
        principal = CONSOLE
    else:
        raise WrongToken
    call.broker.audit.authenticated(replace(principal, host=call.principal.host))
    seconds = SESSION_MS // 1000
    cookie = guard.log_in(principal, call.broker.clock.steady_ms())
    call.set_cookie(_cookie(cookie, seconds, call.request.url.scheme))
    return LoggedIn(True, seconds)


@routes.post("/logout", needs=needs.cluster(Op.ALTER), summary="End this session, or all sessions")
async def log_out(call: Call, query: LogoutQuery) -> LoggedOut:
    sessions, now = call.console.guard.sessions, call.broker.clock.steady_ms()
    cookie = read_cookies(call.request.headers).get(COOKIE, "")
    if query.all:
        everybody = call.access.may(Resource.CLUSTER, CLUSTER_NAME, Op.ALTER)
        ended = sessions.close_all(now, None if everybody else replace(call.principal, host=""))
        if everybody and ended:
            call.broker.audit.changed("sessions", "console", {"open": ended}, None)
    else:
        ended = sessions.close(cookie, now)
    call.set_cookie(_cookie("", 0, call.request.url.scheme))
    return LoggedOut(True, ended)


def _cookie(value: str, seconds: int, scheme: str) -> str:
    """The value of Set-Cookie (RFC 6265). `Secure` only over TLS: else a browser would not send the cookie back."""
    text = f"{COOKIE}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict"
    return text + "; Secure" if scheme == "https" else text
