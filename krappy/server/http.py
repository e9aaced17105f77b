"""HTTP connections: h11 reads and writes HTTP/1.1, an application (ASGI) answers, this server's bounds hold.

What a peer does must not reach beyond its own connection:

- a request's head has 16 KiB and some seconds; how large a body may be, and how long it may take, is the application's
  to say, for only what it asks for is read: pipelined requests wait in the socket;
- a peer that takes nothing is cut off after a while, also in the middle of an answer;
- one that sends no more gets the answers to what it has sent; a live view, which would never end, ends then;
- when the broker stops, requests in progress may end and idle connections are closed.

h11 because it is the protocol alone, without a server or a loop around it. HTTP/2 is left to proxies: browsers speak it
over TLS only. h11 and the application are imported, in a thread, with the first connection: a broker whose console
nobody opens does not hold them in memory.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import trio

from krappy.errors import KrappyError
from krappy.server.sockets import has_left

if TYPE_CHECKING:
    import h11

    from krappy.server.server import Server

KEEP_ALIVE_SECONDS = 75.0  # between two requests
HEAD_SECONDS = 20.0  # from the first byte of a request to the end of its head
MAX_HEAD = 16 << 10  # bytes
PIECE = 64 << 10  # bytes that a peer has the server's patience for
AHEAD = 64 << 10  # bytes read beyond a request, while its answer is made
LOOK_SECONDS = 0.25  # between two looks for whether a peer is still there that is not read from
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
        self._wire = Wire(self, sock, server.stall_seconds)
        self._opened = trio.current_time()
        self._active = False  # a request is in progress
        self._ending = False  # no more than what is in progress
        self.client = client
        self.received = 0  # bytes, over its life,
        self.sent = 0
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
        from krappy.server.http_exchange import Conversation

        try:
            names = [_name(each) for each in (self._sock.getpeername(), self._sock.getsockname())]
        except OSError:
            return  # the peer has left
        conversation = Conversation(self._wire, *names)
        while not self._ending and (request := await conversation.next_request()) is not None:
            await self._answer(application, conversation, request)
            if not await conversation.next():
                break
        await conversation.end()

    async def _answer(self, application: Application, conversation: Any, request: h11.Request) -> None:
        """One request. The single place that every HTTP request passes."""
        self.requests += 1
        self._active = True
        try:
            await application(conversation.scope(request), conversation.receive, conversation.send)
            await conversation.finish()
        finally:
            self._active = False

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
    def held(self) -> int:
        return 0  # answers are made as fast as they are taken

    def overdue(self, now: float) -> bool:
        return False

    def drop(self) -> None:
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
            "waiting_bytes": 0,
            "in_flight_bytes": 0,
            "client_id": None,
            "registrations": [],
        }


def _name(address: Any) -> tuple[str, int]:
    return str(address[0]), int(address[1])


class Wire:
    """Bytes from and to the peer, counted, with a limit to the patience for it. An error is the peer's leaving."""

    def __init__(self, connection: HttpConnection, sock: socket.socket, stall_seconds: float) -> None:
        self._stdlib = sock
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._connection = connection
        self._stall_seconds = stall_seconds
        self._deadline = float("inf")
        self._sending: trio.CancelScope | None = None
        self.gone = False  # it takes nothing any more

    def end_by(self, deadline: float) -> None:
        self._deadline = deadline
        if self._sending is not None:
            self._sending.deadline = min(self._sending.deadline, deadline)

    async def receive(self) -> bytes:
        """Empty when the peer sends no more."""
        try:
            data = await self._socket.recv(PIECE)
        except (OSError, trio.ClosedResourceError):
            self.gone = True
            return b""
        self._connection.received += len(data)
        return data

    async def send(self, data: bytes) -> None:
        """Whole, also when the sender is cancelled meanwhile: half of a part of an answer would spoil the rest."""
        rest = memoryview(data)
        while len(rest) and not self.gone:
            piece, rest = rest[:PIECE], rest[PIECE:]
            deadline = min(trio.current_time() + self._stall_seconds, self._deadline)
            with trio.CancelScope(deadline=deadline, shield=True) as self._sending:
                try:
                    while len(piece):
                        sent = await self._socket.send(piece)
                        self._connection.sent += sent
                        piece = piece[sent:]
                except (OSError, trio.ClosedResourceError):
                    pass
            if len(piece):
                self.gone = True
                self._socket.close()  # wakes whoever reads
        await trio.lowlevel.checkpoint_if_cancelled()

    async def until_it_leaves(self) -> None:
        """Although there may be more to read."""
        while not self.gone and not has_left(self._stdlib):
            await trio.sleep(LOOK_SECONDS)

    def send_eof(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.gone = True


def date() -> bytes:
    return formatdate(usegmt=True).encode()
