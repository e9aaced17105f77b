"""HTTP connections: h11 reads and writes HTTP/1.1, an application (ASGI) answers, this server's bounds hold.

What a peer does must not reach beyond its own connection:

- a request's head has 16 KiB and some seconds; how large a body may be, and how long it may take, is the application's
  to say, for only what it asks for is read: pipelined requests wait in the socket;
- a peer that takes nothing is cut off after a while, also in the middle of an answer;
- answers count in the memory budget, and all of HTTP has a part of it: while that is taken no other answer is made, and
  who takes too long for one is cut off sooner. Probes, which are small, are answered all the same;
- one that sends no more gets the answers to what it has sent; a live view, which would never end, ends then;
- when the broker stops, requests in progress may end and idle connections are closed.

h11 because it is the protocol alone, without a server or a loop around it. HTTP/2 is left to proxies: browsers speak it
over TLS only. h11 and the application are imported, in a thread, with the first connection: a broker whose console
nobody opens does not hold them in memory.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import trio

from krappy.errors import KrappyError
from krappy.server.http_wire import Wire
from krappy.waiting import wait_any

if TYPE_CHECKING:
    import h11

    from krappy.server.server import Server

KEEP_ALIVE_SECONDS = 75.0  # between two requests
HEAD_SECONDS = 20.0  # from the first byte of a request to the end of its head
MAX_HEAD = 16 << 10  # bytes
AHEAD = 64 << 10  # bytes read beyond a request, while its answer is made
ANSWER = 8 << 20  # bytes reckoned for an answer until it is made: a page of 2 MiB, and what it is made of
ROOM_SECONDS = 10.0  # that a request waits for room for its answer
LINGER_SECONDS = 2.0  # for a peer that is still sending what nobody wants, so that it sees its answer
Application = Callable[[Any, Any, Any], Awaitable[None]]
REFUSALS = {
    400: ("Bad request", "INVALID_REQUEST"),
    408: ("Request timed out", "REQUEST_TIMED_OUT"),
    431: ("Head too large", "HEAD_TOO_LARGE"),
    500: ("Internal error", "UNKNOWN_SERVER_ERROR"),
    503: ("Not available now", "THROTTLING_QUOTA_EXCEEDED"),
    505: ("HTTP version not supported", "UNSUPPORTED_VERSION"),
}


class Http:
    """HTTP, for a listener. `load`: imports and makes the application; called once, in a thread."""

    protocol = "http"

    def __init__(self, load: Callable[[], Application]) -> None:
        self._load = load
        self._loading = trio.Lock()
        self._application: Application | None = None

    def connect(self, server: Server, sock: socket.socket, client: str) -> HttpConnection:
        return HttpConnection(self, server, sock, client)

    def refusal(self, error: KrappyError) -> bytes:
        body = problem(503, error.text)
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body

    async def loaded(self) -> Application:
        if self._application is not None:  # a lock takes each in its turn, and each turn may take others' time
            return self._application
        async with self._loading:
            if self._application is None:
                self._application = await trio.to_thread.run_sync(self._import)
            return self._application

    def _import(self) -> Application:
        import h11  # noqa: F401 (so that it is there, and not imported on the event loop)

        return self._load()


def problem(status: int, detail: str) -> bytes:
    """RFC 9457, for what never reaches the application."""
    title, code = REFUSALS[status]
    told = {"type": f"urn:krappy:error:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return json.dumps(told).encode()


class HttpConnection:
    protocol = "http"

    def __init__(self, speech: Http, server: Server, sock: socket.socket, client: str) -> None:
        self._speech = speech
        self._server = server
        self._sock = sock
        self._life = trio.CancelScope()
        self._wire = Wire(server, sock)
        self._opened = trio.current_time()
        self._active = False  # a request is in progress,
        self._idle_since = self._opened  # or when there was none any more
        self._queued_since = math.inf  # when a request began to wait for room for its answer; inf: none does
        self._ending = False  # no more than what is in progress
        self.client = client
        self.requests = 0

    async def serve(self) -> None:
        try:
            with self._life:
                application = await self._speech.loaded()
                await self._talk(application)
        finally:
            self._sock.close()

    def look(self, now: float) -> None:
        """Each of its waits for the peer has a timeout of its own."""

    async def _talk(self, application: Application) -> None:
        from krappy.server.http_exchange import HttpExchange

        try:
            names = [_name(each) for each in (self._sock.getpeername(), self._sock.getsockname())]
        except OSError:
            return  # the peer has left
        conversation = HttpExchange(self._wire, *names)
        while not self._ending and (request := await conversation.next_request()) is not None:
            await self._answer(application, conversation, request)
            if not await conversation.next():
                break
        await conversation.end()

    async def _answer(self, application: Application, conversation: Any, request: h11.Request) -> None:
        """One request. The single place that every HTTP request passes."""
        self.requests += 1
        self._active = True
        pages = self._server.pages
        reckoned = 0

        async def room() -> bool:
            """For the application, before it makes an answer that may be large: whether there is room for it. Waits a
            while; from then on it counts as `ANSWER` until it is there."""
            nonlocal reckoned
            if not await self._room():
                return False
            reckoned = ANSWER
            pages.charge(reckoned)
            return True

        def made() -> None:
            nonlocal reckoned
            pages.credit(reckoned)
            reckoned = 0

        async def send(message: dict[str, Any]) -> None:
            made()
            await conversation.send(message)

        try:
            scope = {**conversation.scope(request), "room": room}
            await application(scope, conversation.receive, send)
            await conversation.finish()
        finally:
            made()
            self._active = False
            self._idle_since = trio.current_time()

    async def _room(self) -> bool:
        """Whether there is room for an answer; waits a while for it."""
        pages = self._server.pages
        if not pages.spent:
            return True
        self._queued_since = trio.current_time()
        pages.waiting += 1
        try:
            return await wait_any([pages.freed], lambda: not pages.spent, ROOM_SECONDS)
        finally:
            pages.waiting -= 1
            self._queued_since = math.inf

    def finish(self) -> None:
        """Requests in progress may end; then the connection does."""
        self._ending = True
        if not self._active:
            self._life.cancel()
            return
        deadline = trio.current_time() + self._server.drain_seconds
        self._life.deadline = deadline
        self._wire.end_by(deadline)

    # --- what the server asks of a connection

    @property
    def received(self) -> int:
        """Bytes, over its life."""
        return self._wire.received

    @property
    def sent(self) -> int:
        """Bytes, over its life."""
        return self._wire.sent

    @property
    def held(self) -> int:
        return self._wire.waiting

    def overdue(self, now: float) -> bool:
        return self._wire.overdue(now)

    def drop(self) -> None:
        self._server.report("peer_stalled", client=self.client, waiting=self.held)
        self._end()

    def waits_since(self, now: float) -> float | None:
        """When it began to wait for its peer, for room, or in vain: one of these gives way when places are short."""
        if not self._active:
            return self._idle_since
        if self._queued_since < now:
            return self._queued_since
        return self._wire.since if self._wire.overdue(now) else None

    def give_way(self, why: str) -> None:
        self._server.report("connection_gave_way", client=self.client, why=why)
        self._end()

    def _end(self) -> None:
        self._life.cancel()
        self._wire.end_by(trio.current_time())

    def describe(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "protocol": self.protocol,
            "seconds": trio.current_time() - self._opened,
            "received_bytes": self.received,
            "sent_bytes": self.sent,
            "requests": self.requests,
            "waiting_bytes": self.held,
            "in_flight_bytes": 0,
            "client_id": None,
            "registrations": [],
        }


def _name(address: Any) -> tuple[str, int]:
    return str(address[0]), int(address[1])


def date() -> bytes:
    return formatdate(usegmt=True).encode()
