"""HTTP connections: h11 parses HTTP/1.1, an application (ASGI) answers, and the server's bounds apply.

A peer can affect only its own connection:

- A request's head may have 16 KiB and `HEADERS` lines, and take some seconds. Requests begin in turns, by address, a
  few in a round of the event loop (`StrangerSteps`): each takes a ms or so, and hundreds may come together. Parts of a
  body that comes in chunks are parsed likewise: there may be thousands of trailers behind it.
- The application bounds the size and the time of a body: only what it asks for is read. Pipelined requests wait in the
  socket: beyond a request that is being answered, `AHEAD` bytes are held at most, however many came before it.
- A peer that takes nothing is cut off after a while, also in the middle of an answer.
- Answers count against the memory budget, and HTTP has a share of it. While the share is spent, no large answer is
  made, and a peer that takes too long for its answer is cut off sooner. Probes, which are small, are always answered.
- A peer that has closed its sending side still gets its answers; but a live view, which would never end, ends then.
- When the broker stops, requests in progress may end, and idle connections are closed.

h11 is used because it is the protocol alone, without a server or an event loop. HTTP/2 is left to proxies. The first
connection imports h11 and the application, in a thread, so a broker whose console is not used does not hold them in
memory.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import KrappyError
from krappy.hosts import host_of, network
from krappy.ports import ConnectionFacts
from krappy.server.http_wire import Wire
from krappy.server.pages import ANSWER
from krappy.server.places import HTTP
from krappy.server.sockets import endpoint
from krappy.tls import TlsSocket
from krappy.wire import mistaken

if TYPE_CHECKING:
    import h11

    from krappy.server.http_exchange import HttpExchange
    from krappy.server.server import Server

KEEP_ALIVE_SECONDS = 75.0  # between two requests
HEAD_SECONDS = 20.0  # from the first byte of a request to the end of its head
MAX_HEAD = 16 << 10  # bytes
HEADERS = 250  # of a request: each takes time, in several places
AHEAD = 64 << 10  # bytes held beyond a request, while its answer is made
ROOM_SECONDS = 10.0  # for which a request waits for room for its answer
LINGER_SECONDS = 2.0  # for which the rest of an unwanted body is read, so that the peer sees its answer
Application = Callable[[Any, Any, Any], Awaitable[None]]
REFUSALS = {
    400: ("Bad request", "INVALID_REQUEST"),
    408: ("Request timed out", "REQUEST_TIMED_OUT"),
    431: ("Head too large", "HEAD_TOO_LARGE"),
    500: ("Internal error", "UNKNOWN_SERVER_ERROR"),
    501: ("Not implemented", "INVALID_REQUEST"),
    503: ("Not available now", "THROTTLING_QUOTA_EXCEEDED"),
    505: ("HTTP version not supported", "UNSUPPORTED_VERSION"),
}


class Http:
    """HTTP on a listener. `load` imports and makes the application; it is called once, in a thread. `protocol`: the
    name under which its connections take their places (see `places`)."""

    def __init__(self, load: Callable[[], Application], protocol: str = HTTP) -> None:
        self.protocol = protocol
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
        if self._application is not None:  # without the lock, for which connections would queue
            return self._application
        async with self._loading:
            if self._application is None:
                self._application = await trio.to_thread.run_sync(self._import)
            return self._application

    def _import(self) -> Application:
        import h11  # noqa: F401 (here, so that it is not imported on the event loop)

        return self._load()


def problem(status: int, detail: str) -> bytes:
    """The body of an error (RFC 9457), for a request that does not reach the application."""
    title, code = REFUSALS[status]
    told = {"type": f"urn:krappy:error:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return json.dumps(told).encode()


class HttpConnection:
    reserved_for = ""  # the application bounds bodies

    def __init__(self, speech: Http, server: Server, sock: socket.socket, client: str) -> None:
        self._speech = speech
        self.protocol = speech.protocol
        self._server = server
        self._sock = sock
        self._life = trio.CancelScope()
        self._wire = Wire(server, sock, network(host_of(client)))
        self._opened = trio.current_time()
        self._active = False  # a request is in progress
        self._idle_since = self._opened  # when the last request ended
        self._queued_since = math.inf  # when a request began to wait for room for its answer; inf: none does
        self._ending = False  # no further request begins
        self.client = client
        self.requests = 0

    async def serve(self) -> None:
        try:
            with self._life:
                if isinstance(self._sock, TlsSocket) and not await self._server.handshakes.greet(
                    self._sock, self.client, self._took
                ):
                    return
                application = await self._speech.loaded()
                await self._talk(application)
        finally:
            self._sock.close()

    def _took(self, seconds: float) -> None:
        """Counts the time of a step of the handshake for the peer's address."""
        quotas = self._server.broker.client_quotas
        if quotas.timed:
            quotas.spend(QuotaKey.REQUEST, Payer(host=host_of(self.client)), 100 * seconds)

    def look(self, now: float) -> None:
        """Does nothing: each wait for the peer has a timeout of its own."""

    async def _talk(self, application: Application) -> None:
        from krappy.server.http_exchange import HttpExchange

        try:
            names = [endpoint(each) for each in (self._sock.getpeername(), self._sock.getsockname())]
        except OSError:
            return  # the peer has left
        conversation = HttpExchange(self._wire, self._server.heads, *names)
        while not self._ending and (request := await conversation.next_request()) is not None:
            await self._answer(application, conversation, request)
            if not await conversation.next():
                break
        if conversation.spoken:  # the peer may not be able to read what it was told
            reason = f"no request of HTTP's{mistaken.told(conversation.spoken)}"
            self._server.report("http_connection_ended", client=self.client, reason=reason)
        await conversation.end()

    async def _answer(self, application: Application, conversation: HttpExchange, request: h11.Request) -> None:
        """Answers one request. Every HTTP request passes here, and nowhere else."""
        self.requests += 1
        self._active = True
        if self._server.broker.stillness.was:
            await self._server.broker.stillness.until_told()
        pages = self._server.pages
        reckoned = 0

        async def room() -> bool:
            """The application calls it before it makes an answer that may be large. It waits for room, up to
            `ROOM_SECONDS`, and charges `ANSWER` bytes until the answer is made. False: there was no room."""
            nonlocal reckoned
            if not await self._room():
                return False
            reckoned = ANSWER
            return True

        def made() -> None:
            nonlocal reckoned
            if reckoned:
                pages.credit_to(self._wire.whose, reckoned)
            reckoned = 0

        async def send(message: dict[str, Any]) -> None:
            made()
            await conversation.send(message)

        def is_of(who: str) -> None:
            """The application calls it once it knows who asks, before it calls `room`."""
            self._wire.whose = who

        is_of(network(host_of(self.client)))
        try:
            scope = {**conversation.scope(request), "room": room, "is_of": is_of}
            await application(scope, conversation.receive, send)
            await conversation.finish()
        finally:
            made()
            self._active = False
            self._idle_since = trio.current_time()

    async def _room(self) -> bool:
        """Waits for room for an answer, up to `ROOM_SECONDS`. Returns whether there is room, which is then charged."""
        self._queued_since = trio.current_time()
        try:
            return await self._server.pages.take_room(self._wire.whose, ROOM_SECONDS)
        finally:
            self._queued_since = math.inf

    def finish(self) -> None:
        """Ends the connection once its request in progress, if any, has ended; at the latest after `drain_seconds`."""
        self._ending = True
        if not self._active:
            self._life.cancel()
            return
        deadline = trio.current_time() + self._server.drain_seconds
        self._life.deadline = deadline
        self._wire.end_by(deadline)

    # --- for the server

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

    @property
    def sock(self) -> socket.socket:
        return self._sock

    def overdue(self, now: float) -> bool:
        return self._wire.overdue(now)

    def drop(self) -> None:
        self._server.report("peer_stalled", client=self.client, waiting=self.held)
        self._end()

    def waits_since(self, now: float) -> float | None:
        """When it began to wait for its peer or for room; None: it works. One that waits gives way when places are
        short."""
        if not self._active:
            return self._idle_since
        if self._queued_since < now:
            return self._queued_since
        since = self._wire.waits_since
        return None if since == math.inf else since

    def give_way(self, why: str) -> None:
        self._server.report("connection_gave_way", client=self.client, why=why)
        self._end()

    def _end(self) -> None:
        self._life.cancel()
        self._wire.end_by(trio.current_time())

    def describe(self) -> ConnectionFacts:
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


def date() -> bytes:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()).encode()  # in C's locale, as it is at the start
