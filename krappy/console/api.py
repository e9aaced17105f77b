"""An operation of the API. The signature of its handler describes it; there is no other description to keep in step.

    @routes.get("/topics/{topic}/events", needs=needs.topic(Op.READ), summary="…")
    async def events(call: Call, topic: str, query: EventsQuery) -> EventPage: …

Names in the path are parameters; `query` and `body` are msgspec structs. The returned value is encoded as JSON, or as
msgpack if the request accepts it. The routes and the OpenAPI document are both made from this.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from krappy.console.pacer import PaidPacer
from krappy.console.paying import HttpPayer
from krappy.console.problems import HttpError
from krappy.console.security import read_cookies
from krappy.console.shown import WHOLE, Form, Viewer
from krappy.console.slices import encode_in_slices, pause
from krappy.core.security.operations import CLUSTER_NAME, Need, Op, Resource
from krappy.core.security.principal import Principal
from krappy.hosts import network
from krappy.ports import AccessPort, BrokerPort, GatewayPort, LookoutPort, ServerPort

JSON, MSGPACK = "application/json", "application/msgpack"
BINARY = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
MAX_BODY = 256 << 10  # bytes
MAX_EVENT = 2 << 20  # bytes of a body that holds an event; larger events are for the native clients
LITTLE = 4 << 10  # bytes of a body that is decoded without waiting for a turn
MAX_BODIES = 64 << 20  # bytes of the bodies of all requests in progress
BODY_SECONDS = 30.0
_PATH = re.compile(r"{(\w+)}")
SLASH = "\ue000"  # stands for an encoded slash inside a name, until the path has been matched


class Live(typing.Protocol):
    """A stream of server-sent events; `run` sends until it is over."""

    async def run(self, send: Callable[[str, Any, str | None], Any]) -> None: ...


@dataclass(frozen=True)
class ApiOperation:
    name: str
    method: str
    path: str
    summary: str
    tag: str
    handler: Callable[..., Any]
    status: int
    places: Mapping[str, Any]  # parameters in the path: name -> type
    query: type | None
    body: type | None
    answer: Any
    live: bool
    max_body: int
    large: tuple[str, ...]  # fields of the body that may be larger than others
    needs: tuple[Need, ...]  # the rights that it needs

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")


class Routes:
    """The operations of one noun."""

    def __init__(self, tag: str, prefix: str = "/api/v1") -> None:
        self.tag = tag
        self._prefix = prefix
        self.operations: list[ApiOperation] = []

    def get(self, path: str, *, needs: tuple[Need, ...], summary: str, live: bool = False) -> Callable[[Any], Any]:
        return self._add("GET", path, needs, summary, 200, live)

    def post(
        self,
        path: str,
        *,
        needs: tuple[Need, ...],
        summary: str,
        status: int = 200,
        max_body: int = MAX_BODY,
        large: tuple[str, ...] = (),
    ) -> Callable[[Any], Any]:
        return self._add("POST", path, needs, summary, status, False, max_body, large)

    def patch(self, path: str, *, needs: tuple[Need, ...], summary: str) -> Callable[[Any], Any]:
        return self._add("PATCH", path, needs, summary, 200, False)

    def delete(self, path: str, *, needs: tuple[Need, ...], summary: str) -> Callable[[Any], Any]:
        return self._add("DELETE", path, needs, summary, 200, False)

    def _add(
        self,
        method: str,
        path: str,
        needs: tuple[Need, ...],
        summary: str,
        status: int,
        live: bool,
        max_body: int = MAX_BODY,
        large: tuple[str, ...] = (),
    ) -> Callable[[Any], Any]:
        def register(handler: Callable[..., Any]) -> Callable[..., Any]:
            hints = typing.get_type_hints(handler, include_extras=True)
            names = _PATH.findall(path)
            assert {*inspect.signature(handler).parameters} - {"query", "body"} == {"call", *names}, handler
            self.operations.append(
                ApiOperation(
                    handler.__name__,
                    method,
                    self._prefix + path,
                    summary,
                    self.tag,
                    handler,
                    status,
                    {name: hints[name] for name in names},
                    hints.get("query"),
                    hints.get("body"),
                    hints["return"],
                    live,
                    max_body,
                    large,
                    needs,
                )
            )
            return handler

        return register


def principal_of(scope: Mapping[str, Any]) -> Principal:
    """Who sends the request. Whatever has identified the sender has put the principal into the scope."""
    found: Principal | None = scope.get("principal")
    return found or Principal(listener="HTTP", host=scope["client"][0])


def is_known(console: Any, scope: Mapping[str, Any]) -> bool:
    """Whether who asks has logged in, or nobody needs to."""
    return "principal" in scope or not console.guard.asks


def payer_of(console: Any, scope: Mapping[str, Any], needs: tuple[Need, ...] = ()) -> HttpPayer:
    """Who pays for a request to the console: a user, or the address of one who has not logged in."""
    known, who = is_known(console, scope), principal_of(scope)
    user, host = (who.name, "") if known else ("", who.host)
    return HttpPayer(console.broker.client_quotas, user, host, needs)


def who_of(scope: Mapping[str, Any]) -> str:
    """Whose turns and memory a request takes."""
    return principal_of(scope).owner


class BodyRoom:
    """Memory for the bodies of all requests in progress, MAX_BODIES. One user may take as much as he leaves free: half
    of it, if there is no other user. So nobody who sends large bodies slowly keeps others out."""

    def __init__(self) -> None:
        self._taken = 0
        self._of: Counter[str] = Counter()  # by user, or by the address of one who has not logged in

    def take(self, who: str, size: int) -> bool:
        """Counts `size` bytes more, or less if it is negative. Returns whether there is room for them."""
        who = network(who)
        self._taken += size
        self._of[who] += size
        if not self._of[who]:
            del self._of[who]
        return self._of[who] <= MAX_BODIES - self._taken


class Call:
    """One request, as its handler sees it."""

    def __init__(self, console: Any, request: Request, binary: bool, needs: tuple[Need, ...] = ()) -> None:
        """`needs`: those of the operation."""
        self.console = console
        self.request = request
        self.binary = binary  # the answer will be msgpack
        self.packed = False  # the body is msgpack
        self._cookie: str | None = None
        self._taken = 0
        self.payer = payer_of(console, request.scope, needs)

    @property
    def broker(self) -> BrokerPort:
        return self.console.broker  # type: ignore[no-any-return]

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return principal_of(self.request.scope)

    @property
    def who(self) -> str:
        """See `who_of`."""
        return who_of(self.request.scope)

    @property
    def may_know_why(self) -> bool:
        """Whether an answer that anybody may get may name the broker's topics and folders to the one who asks now."""
        known = is_known(self.console, self.request.scope) and not self.console.guard.probes_only
        return known and self.access.may(Resource.CLUSTER, CLUSTER_NAME, Op.DESCRIBE)

    def stands(self) -> bool:
        """Whether who asks would still be let in: the session, the password or the token may be over."""
        found: Callable[[], bool] | None = self.request.scope.get("stands")
        return found is None or found()

    @property
    def cookies(self) -> Mapping[str, str]:
        return read_cookies(self.request.headers, self.request.url.scheme)

    @property
    def access(self) -> AccessPort:
        return self.broker.access(self.principal, self.payer)

    @property
    def lookout(self) -> LookoutPort:
        return self.console.lookout  # type: ignore[no-any-return]

    @property
    def pacer(self) -> PaidPacer:
        """The pacer for the work of a live view."""
        return PaidPacer(self.console.pacer, self.payer, self.who)

    @property
    def gateway(self) -> GatewayPort | None:
        """The way to the partitions that other brokers lead; None if this broker is alone."""
        return self.console.gateway  # type: ignore[no-any-return]

    @property
    def server(self) -> ServerPort:
        return self.console.server  # type: ignore[no-any-return]

    def viewer(self, keys: Form = "auto", values: Form = "auto", limit: int = WHOLE) -> Viewer:
        return Viewer(binary=self.binary, keys=keys, values=values, limit=limit)

    def set_cookie(self, cookie: str) -> None:
        """`cookie`: the value of the answer's Set-Cookie header."""
        self._cookie = cookie

    @property
    def headers(self) -> dict[str, str]:
        return {} if self._cookie is None else {"set-cookie": self._cookie}

    def take(self, size: int) -> None:
        """Counts bytes of the body. Raises HttpError (503) if there is no room for them (`BodyRoom`)."""
        self._taken += size
        if not self.console.bodies.take(self.who, size):
            raise HttpError(
                503,
                "THROTTLING_QUOTA_EXCEEDED",
                "bodies of other requests in progress take the memory that is for yours; ask again later",
                connection="close",
                Retry_After="1",
            )

    async def room(self) -> None:
        """Waits until there is memory for an answer. Raises HttpError (503) if there is none in time."""
        await room(self.request.scope)

    def release(self) -> None:
        """The body is not needed any more."""
        self.console.bodies.take(self.who, -self._taken)
        self._taken = 0

    async def pause(self) -> None:
        """See `slices.pause`."""
        await pause()


async def room(scope: Any) -> None:
    """Waits until there is memory for an answer to the request (ASGI). Raises HttpError (503)."""
    if not await scope["room"]():
        detail = "other answers take all the memory that is for answers; ask again later"
        raise HttpError(503, "THROTTLING_QUOTA_EXCEEDED", detail, Retry_After="1")


def wants_binary(accept: str) -> bool:
    """Whether an Accept header names msgpack, and not JSON before it."""
    for each in accept.split(","):
        kind = each.partition(";")[0].strip().lower()
        if kind in BINARY:
            return True
        if kind == JSON:
            return False
    return False


async def read_arguments(operation: ApiOperation, call: Call) -> dict[str, Any]:
    """The arguments for the operation's handler; waits for the body. Raises HttpError."""
    arguments: dict[str, Any] = {}
    for name, kind in operation.places.items():
        text = call.request.path_params[name].replace(SLASH, "/")
        arguments[name] = _convert(text, kind, f"'{name}' in the path")
    if operation.query is not None:
        arguments["query"] = _read_query(operation.query, call.request)
    elif call.request.query_params:
        raise HttpError(400, "INVALID_REQUEST", "this takes no parameters")
    if operation.body is not None:
        arguments["body"] = await _read_body(operation, call)
    return arguments


async def respond(operation: ApiOperation, call: Call, value: Any) -> Response:
    kind = MSGPACK if call.binary else JSON
    await call.pause()
    body = await encode_in_slices(value, binary=call.binary)
    await call.pause()  # it is copied as it is sent
    return Response(body, operation.status, call.headers, kind)


def _read_query(kind: Any, request: Request) -> Any:
    given: dict[str, Any] = {}
    many = _lists(kind)
    for name, value in request.query_params.multi_items():  # one pass: a peer may send thousands of names
        if name in many:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise HttpError(400, "INVALID_REQUEST", f"the parameter '{name:.80}' is given more than once")
        else:
            given[name] = value
    return _convert(given, kind, "the parameters")


def _lists(kind: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind) if _is_list(field.type)}


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(_is_list(each) for each in get_args(kind))


def _convert(given: Any, kind: Any, what: str) -> Any:
    try:
        return msgspec.convert(given, kind, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise HttpError(400, "INVALID_REQUEST", f"{what}: {error}") from None


async def _read_body(operation: ApiOperation, call: Call) -> Any:
    request, limit = call.request, operation.max_body
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON and media not in BINARY:
        raise HttpError(415, "UNSUPPORTED_MEDIA_TYPE", f"the body must be {JSON} or {MSGPACK}, not '{media:.80}'")
    data = bytearray()
    with trio.move_on_after(BODY_SECONDS) as scope:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                call.take(len(chunk))
                data += chunk
                if len(data) > limit:
                    raise HttpError(413, "MESSAGE_TOO_LARGE", f"a body of more than {limit} bytes", connection="close")
    if scope.cancelled_caught:
        raise HttpError(
            408, "REQUEST_TIMED_OUT", f"the body did not come within {BODY_SECONDS:g} s", connection="close"
        )
    await call.payer.wrote(len(data))
    call.packed = media != JSON
    try:
        if len(data) > LITTLE:
            await call.pause()
        if len(data) > MAX_BODY:
            _check_parts(data, operation, call.packed)
            await call.pause()
        return _decode(data, operation.body, call.packed)
    except (ValueError, RecursionError) as error:  # msgspec's, and UnicodeDecodeError
        raise HttpError(400, "INVALID_REQUEST", f"the body: {error}") from None


def _decode(data: bytearray, kind: Any, packed: bool) -> Any:
    return msgspec.msgpack.decode(data, type=kind) if packed else msgspec.json.decode(data, type=kind)


def _check_parts(data: bytearray, operation: ApiOperation, packed: bool) -> None:
    """Raises HttpError (413) if a field that is not in `operation.large` is large; ValueError if it can't be decoded.

    A megabyte of small objects takes twenty times as long to decode as one of text, so only fields that are decoded to
    few objects may be large, and the first unknown one is refused. This check skips over the objects, which is fast.
    """
    parts = _decode(data, _parts(operation.body), packed)
    for name in parts.__struct_fields__:
        if name not in operation.large and len(getattr(parts, name)) > MAX_BODY:
            raise HttpError(413, "MESSAGE_TOO_LARGE", f"'{name}' of the body has more than {MAX_BODY} bytes")


@cache
def _parts(kind: Any) -> Any:
    """A struct type with the fields of `kind`, which are not decoded."""
    raw = [(field.name, msgspec.Raw, msgspec.Raw()) for field in msgspec.structs.fields(kind)]
    return msgspec.defstruct(f"{kind.__name__}Parts", raw, forbid_unknown_fields=True)
