"""The application: every request to the console passes here.

An ASGI application for `krappy.server.http`. It reaches only the broker and the server, through their ports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from krappy.console import (
    cluster,
    cluster_moves,
    connections,
    events,
    groups,
    health,
    history_api,
    login,
    metrics,
    openapi,
    table,
    tail,
    topics,
    watch,
)
from krappy.console.api import (
    SLASH,
    ApiOperation,
    BodyRoom,
    Call,
    payer_of,
    principal_of,
    read_arguments,
    respond,
    wants_binary,
    who_of,
)
from krappy.console.attempts import Attempts, TooManyAttempts, WrongToken
from krappy.console.history import FigureHistory
from krappy.console.live import OVER, EventStream
from krappy.console.oidc import ProviderLogins
from krappy.console.pacer import Pacer
from krappy.console.paying import HttpPayer
from krappy.console.problems import TITLES, TYPE, HttpError, Problem, problem_of
from krappy.console.security import CHANGED, HEADERS, Guard, read_cookies
from krappy.console.slices import PAUSES, Pauses, encode
from krappy.core.security.operations import CLUSTER_NAME, Grant, Op, Resource
from krappy.core.security.principal import Principal
from krappy.errors import KrappyError
from krappy.ports import BrokerPort, GatewayPort, LookoutPort, ServerPort
from krappy.ports.audit import ASKED, AskedFor
from krappy.ports.tokens import ProviderLoginPort, TokensPort
from krappy.ports.users import UsersPort
from krappy.turns import UserTurns

_OF = (topics, events, table, tail, watch, groups, cluster, cluster_moves, connections, history_api, login, health)
OPERATIONS: tuple[ApiOperation, ...] = tuple(operation for each in _OF for operation in each.routes.operations)
TOGETHER = 32  # requests that are handled at a time, half of them of one user; others wait
MOST_LIVE = 50  # tails and watches that are open at a time
MOST_LIVE_OF_ONE = 20  # those of one user
LOGIN = "/api/v1/login"
READY = "/readyz"
PROBES = ("/healthz", READY)  # answered while the store is still being recovered, and whatever the quotas are
# They are little work. They wait for no turn, neither for one of the console's nor for one of the event loop's, and for
# no room for their answer. Probes must be answered whatever other requests do. A login may wait long for the identity
# provider, and a logout until other brokers are told, and anybody may begin one of them.
SMALL = (*PROBES, LOGIN, "/api/v1/login/provider", "/api/v1/logout")


class Listening(Protocol):
    """Where the broker's listeners are, and what was kept since its start."""

    listening: bool

    secret: bytes  # random

    @property
    def console_users(self) -> Callable[[], UsersPort] | None: ...
    @property
    def console_tokens(self) -> TokensPort | None: ...
    @property
    def provider_login(self) -> ProviderLoginPort | None: ...
    @property
    def addresses(self) -> Mapping[str, str]: ...
    @property
    def history(self) -> FigureHistory: ...
    @property
    def lookout(self) -> LookoutPort: ...
    @property
    def gateway(self) -> GatewayPort | None: ...


class Console:
    """The state that requests share."""

    def __init__(self, broker: BrokerPort, server: ServerPort, listening: Listening) -> None:
        self.broker = broker
        self.server = server
        config = broker.config
        self.guard = Guard(
            config.console_token,
            local=config.console_is_local,
            started_ms=broker.started_ms,
            users=listening.console_users,
            tokens=listening.console_tokens,
            secret=listening.secret,
            ended=lambda principal, why: broker.audit.ended(principal, why),
            logouts=lambda: broker.logouts,
            wall_ms=broker.now_ms,
        )
        self.provider_logins = ProviderLogins(listening.provider_login, listening.secret, server.report)
        self.disk = health.DiskTrial()
        self.attempts = Attempts()
        self.pacer = Pacer()
        self.live = 0
        self.live_of: Counter[str] = Counter()  # by user, or by address
        self.bodies = BodyRoom()
        self.turns = UserTurns(TOGETHER)
        # Held while a page reads many partitions: one of a user does so at a time. The page of another user, which may
        # take a second, is not waited for.
        self.wide = UserTurns(2)
        self._listening = listening
        self._times = server.times("http")

    def refused(self, host: str, why: str, user: str = "") -> None:
        """Reports that somebody at this address did not prove to be `user`."""
        self.server.report("authentication_failed", client=host, mechanism="HTTP", user=user, reason=why)
        self.broker.audit.failed("HTTP", host, user, why)

    def is_listening(self) -> bool:
        return self._listening.listening

    def listening(self) -> dict[str, str]:
        return dict(self._listening.addresses)

    @property
    def history(self) -> FigureHistory:
        return self._listening.history

    @property
    def lookout(self) -> LookoutPort:
        return self._listening.lookout

    @property
    def gateway(self) -> GatewayPort | None:
        return self._listening.gateway

    def took(self, name: str, began: float) -> None:
        self._times.observe(name, perf_counter() - began)


class PathOperations:
    """The operations on one path (ASGI)."""

    def __init__(self, console: Console, operations: Mapping[str, ApiOperation]) -> None:
        self._console = console
        self._operations = operations

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        method = "GET" if request.method == "HEAD" else request.method
        operation = self._operations.get(method)
        if operation is None or (operation.live and request.method == "HEAD"):  # it would never end
            allowed = ", ".join(self._operations)
            raise HttpError(
                405, "METHOD_NOT_ALLOWED", f"{request.method} is not for this path: {allowed}", Allow=allowed
            )
        if not self._console.broker.opened and operation.path not in PROBES:
            raise HttpError(503, "NOT_READY", "the store is being recovered", Retry_After="1")
        call = Call(self._console, request, wants_binary(request.headers.get("accept", "")), operation.needs)
        if operation.path not in PROBES:
            call.payer.check(live=operation.live)
        ASKED.set(AskedFor(call, operation.name))
        began = perf_counter()
        try:
            try:
                arguments = await read_arguments(operation, call)  # without a turn: the peer may be slow
                if not operation.live:
                    await call.payer.begin(mutates=_mutates(operation, arguments))
                if operation.path not in SMALL:
                    await call.room()
                async with nullcontext() if operation.path in SMALL else self._console.turns.one(call.who):
                    if not call.stands():  # the peer may have taken its time
                        raise HttpError(401, "NOT_LOGGED_IN", OVER)
                    if operation.path not in SMALL:
                        await call.pause()  # hundreds may come together
                    version = call.access.version
                    found = await call.payer.timed(operation.handler(call, **arguments))
                    if call.access.version != version:  # it may have waited, and read what came since
                        _check_reads(call, operation, arguments)
            finally:
                call.release()
            if not operation.live:
                response = await respond(operation, call, found)
                call.payer.read(len(response.body))
        finally:
            call.payer.end()
        if operation.live:
            await self._stream(call, _grants(operation, arguments), found, scope, receive, send)
            return
        del found, arguments  # the peer may be slow, and these take several times as much memory as the answer
        self._console.took(operation.name, began)
        await response(scope, receive, send)

    async def _stream(
        self, call: Call, grants: Sequence[Grant], found: Any, scope: Any, receive: Any, send: Any
    ) -> None:
        console = self._console
        if console.live >= MOST_LIVE:
            raise HttpError(503, "THROTTLING_QUOTA_EXCEEDED", f"{MOST_LIVE} live views are open, which is the limit")
        who = call.who
        most = MOST_LIVE - console.live  # as many as are left for all others
        if who == str(call.principal):  # else it is an address, which may be that of many people
            most = min(most, MOST_LIVE_OF_ONE)
        if console.live_of[who] >= most:
            what = f"{console.live_of[who]} live views of {who} are open, which is the limit for one"
            raise HttpError(503, "THROTTLING_QUOTA_EXCEEDED", what)
        console.live += 1
        console.live_of[who] += 1
        try:
            hold = partial(call.access.hold, grants)
            stream = EventStream(found, call.pacer, call.stands, hold, call.payer, binary=call.binary)
            await stream(scope, receive, send)
        finally:
            console.live -= 1
            console.live_of -= Counter((who,))


def _grants(operation: ApiOperation, arguments: Mapping[str, Any]) -> list[Grant]:
    """The rights that an operation needs to the topic in its path, or to the cluster; a live view, until it ends."""
    named = {Resource.TOPIC: arguments.get("topic"), Resource.CLUSTER: CLUSTER_NAME}
    return [Grant(need.resource, name, need.op) for need in operation.needs if (name := named.get(need.resource))]


def _check_reads(call: Call, operation: ApiOperation, arguments: Mapping[str, Any]) -> None:
    """Raises AuthorizationFailed unless what an operation has read may be read now."""
    for grant in _grants(operation, arguments):
        if grant.op is Op.READ:
            call.access.check(*grant)


def _mutates(operation: ApiOperation, arguments: Mapping[str, Any]) -> bool:
    """Whether the operation waits in line for controller_mutation_rate. A change of a topic does if it adds
    partitions."""
    if operation.name == "alter_topic":
        return arguments["body"].partitions is not None
    return operation.name in ("create_topic", "delete_topic")


class App:
    """The ASGI application: `await app(scope, receive, send)` for each request."""

    def __init__(self, console: Console) -> None:
        self._console = console
        paths: dict[str, dict[str, ApiOperation]] = {}
        for operation in OPERATIONS:
            paths.setdefault(operation.path, {})[operation.method] = operation
        document = encode(openapi.document(OPERATIONS), binary=False)
        self._router = Router(
            [
                Route("/api/v1/openapi.json", _Paid(console, "openapi", _Fixed(document, "application/json"))),
                Route("/metrics", _Paid(console, "metrics", metrics.Metrics(console))),
                *(Route(path, PathOperations(console, operations)) for path, operations in paths.items()),
                Mount("/", _Paid(console, "pages", _Pages(packages=[("krappy.console", "static")], html=True))),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started = False

        async def harden(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message.get("headers", ()))
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers + HEADERS}
            await send(message)

        ASKED.set(None)  # the connection's request before this one may have been somebody else's
        try:
            await self._handle(scope, receive, harden)
        except Exception as error:
            if isinstance(error, WrongToken):
                self._console.refused(scope["client"][0], error.problem.detail, error.user)
                await self._console.attempts.refused(scope["client"][0], error)
            elif isinstance(error, TooManyAttempts):
                self._console.refused(scope["client"][0], error.problem.detail)
            if started or isinstance(error, ClientDisconnect):
                if not isinstance(error, ClientDisconnect | KrappyError | HttpError):
                    self._console.server.fault(error, 0)
                return
            problem, headers = self._problem(error)
            binary = wants_binary(Request(scope).headers.get("accept", ""))
            kind = "application/problem+msgpack" if binary else "application/problem+json"
            response = Response(encode(problem, binary=binary), problem.status, headers, kind)
            await response(scope, receive, harden)
        finally:
            if self._console.broker.opened and self._console.broker.client_quotas.timed:
                payer_of(self._console, scope).took(scope["parsed"]())

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        scope["path"] = _path(scope["raw_path"])
        request = Request(scope)
        path = scope["path"]
        if not path.startswith("/"):  # "*", or the host and port of CONNECT
            raise HTTPException(404)
        if self._console.guard.asks and ("authorization" in request.headers or path == LOGIN):
            self._console.attempts.check(scope["client"][0])
        now, guard = self._console.broker.clock.steady_ms(), self._console.guard
        cookies = read_cookies(request.headers, scope["scheme"])
        guard.sessions.expire(now)
        who = None
        if guard.needs_login(path):
            if not self._console.broker.opened:
                raise HttpError(503, "NOT_READY", "the store is being recovered", Retry_After="1")
            who = await self._identify(request, cookies, now)
        elif path == READY and guard.asks and self._console.broker.opened:
            who = await self._identify_prober(request, cookies, now)
        if who is not None:
            scope["principal"] = replace(who, host=scope["client"][0])
            scope["stands"] = self._standing(scope["principal"], request.headers, cookies)
            if request.headers.get("authorization"):
                self._console.broker.audit.authenticated(scope["principal"])
        whose = who_of(scope)
        scope["is_of"](whose)
        PAUSES.set(Pauses() if path in SMALL else Pauses(partial(self._console.server.turn, whose)))
        guard.check(request.method, path, request.headers, cookies, now, who)
        await self._router(scope, receive, send)

    async def _identify(self, request: Request, cookies: Mapping[str, str], now: int) -> Principal | None:
        """As `Guard.identify`, with bounds for an address that tries many times."""
        guard, host = self._console.guard, request.scope["client"][0]
        payer = HttpPayer(self._console.broker.client_quotas, "", host)
        payer.check()
        by_password = request.headers.get("authorization", "").lower().startswith("basic")
        async with self._console.attempts.checking(host) if by_password else nullcontext():
            return await payer.timed(guard.identify(request.headers, cookies, now, host, payer.took))

    async def _identify_prober(self, request: Request, cookies: Mapping[str, str], now: int) -> Principal | None:
        """As `_identify`; but whoever can't be identified is a stranger, who is answered, too."""
        try:
            return await self._identify(request, cookies, now)
        except WrongToken as error:
            host = request.scope["client"][0]
            self._console.refused(host, error.problem.detail, error.user)
            await self._console.attempts.refused(host, error)
        except (HttpError, KrappyError):
            pass  # it can't be checked now: there are too many
        return None

    def _standing(self, who: Principal, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Callable[[], bool]:
        """Tells later whether this peer, who has just been let in, still would be."""
        broker, guard = self._console.broker, self._console.guard
        stamp = guard.stamp(who)
        expires = math.inf if who.expires_ms is None else who.expires_ms
        until = broker.clock.steady_ms() + expires - broker.now_ms()  # a wall clock that is set back changes nothing

        def stands() -> bool:
            is_over = broker.now_ms() >= expires or broker.clock.steady_ms() >= until
            if is_over or not guard.is_session(headers, cookies, broker.clock.steady_ms()):
                return False
            if guard.stamp(who) != stamp:
                broker.audit.ended(who, CHANGED)
                return False
            return True

        return stands

    def _problem(self, error: Exception) -> tuple[Problem, dict[str, str]]:
        if isinstance(error, HttpError):
            return error.problem, error.headers
        if isinstance(error, KrappyError):
            problem = problem_of(error)
            return problem, {"Retry-After": "1"} if problem.status == 503 else {}
        if isinstance(error, HTTPException):
            code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "BAD_REQUEST")
            status = error.status_code if error.status_code in TITLES else 400
            return Problem(TYPE + code, TITLES[status], status, "there is nothing here", code), {}
        self._console.server.fault(error, 0)
        detail = "an internal error of the broker; its log has the traceback"
        return Problem(TYPE + "UNKNOWN_SERVER_ERROR", TITLES[500], 500, detail, "UNKNOWN_SERVER_ERROR"), {}


class _Sender(NamedTuple):
    principal: Principal


class _Paid:
    """Serves what is no operation of the API (ASGI). Its time counts for request_percentage, too. `name`: of what is
    asked for, in the audit log."""

    def __init__(self, console: Console, name: str, app: Any) -> None:
        self._console = console
        self._name = name
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        ASKED.set(AskedFor(_Sender(principal_of(scope)), self._name))
        payer = payer_of(self._console, scope)
        payer.check()
        await payer.timed(self._app(scope, receive, send))


class _Fixed:
    def __init__(self, body: bytes, media_type: str) -> None:
        self._body = body
        self._media_type = media_type

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise HttpError(405, "METHOD_NOT_ALLOWED", "this can only be read", Allow="GET")
        await Response(self._body, media_type=self._media_type)(scope, receive, send)


class _Pages(StaticFiles):
    """The pages. A browser asks each time whether they have changed (ETag), so an update is seen at once. They are
    small, so each is sent whole: a Range header is ignored, as RFC 9110 (section 14.2) allows."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        whole = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": whole}, receive, send)

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "no-cache"
        response.headers["accept-ranges"] = "none"
        return response


def _path(raw: bytes) -> str:
    """The decoded path, in which SLASH stands for an encoded slash: a group may have one in its name."""
    text = raw.decode("latin-1").replace("%2F", SLASH_ENCODED).replace("%2f", SLASH_ENCODED)
    return unquote(text)


SLASH_ENCODED = "".join(f"%{byte:02X}" for byte in SLASH.encode())


def application(broker: BrokerPort, server: ServerPort, listening: Listening) -> App:
    """The console of a broker. `listening`: the addresses of its listeners, and whether all are open."""
    return App(Console(broker, server, listening))
