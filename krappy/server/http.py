"""HTTP connections: each is lent to Hypercorn's protocol code, within this server's bounds.

Hypercorn speaks HTTP/1.1 and HTTP/2 and calls the application (ASGI). Accepting, counting and ending connections stays
with `Server`, for what a peer does must not reach beyond its own connection:

- an error inside a connection ends that connection (in Hypercorn's own worker it would end all);
- a peer that takes nothing is cut off after a while, also in the middle of an answer;
- when the broker stops, requests in progress may end and idle connections are closed.

Hypercorn and the application are imported, in a thread, with the first connection: a broker whose console nobody opens
does not hold them in memory.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from krappy.errors import KrappyError

if TYPE_CHECKING:
    from hypercorn.config import Config

    from krappy.server.server import Server

KEEP_ALIVE_SECONDS = 75.0
PIECE = 64 << 10  # bytes that a peer has the server's patience for
Application = Callable[[Any, Any, Any], Awaitable[None]]


class Http:
    """HTTP, for a listener. `load`: imports and makes the application; called once, in a thread."""

    def __init__(self, load: Callable[[], Application]) -> None:
        self._load = load
        self._loading = trio.Lock()
        self._ready: tuple[Application, Config] | None = None

    def connect(self, server: Server, sock: socket.socket, client: str) -> HttpConnection:
        return HttpConnection(self, server, sock, client)

    def refusal(self, error: KrappyError) -> bytes:
        problem = json.dumps({"title": "Service Unavailable", "status": 503, "detail": error.text}).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        return f"{head}Content-Length: {len(problem)}\r\nConnection: close\r\n\r\n".encode() + problem

    async def loaded(self) -> tuple[Application, Config]:
        async with self._loading:
            if self._ready is None:
                self._ready = await trio.to_thread.run_sync(self._import)
            return self._ready

    def _import(self) -> tuple[Application, Config]:
        import hypercorn.trio.tcp_server  # noqa: F401 (so that it is there, and not imported on the event loop)
        from hypercorn.config import Config

        config = Config()
        config.keep_alive_timeout = KEEP_ALIVE_SECONDS
        config.include_server_header = False
        config.errorlog = None
        return self._load(), config


class HttpConnection:
    protocol = "http"

    def __init__(self, speech: Http, server: Server, sock: socket.socket, client: str) -> None:
        self._speech = speech
        self._server = server
        self._sock = sock
        self._life = trio.CancelScope()
        self._stream: _Stream | None = None
        self._opened = trio.current_time()
        self._active = 0  # requests in progress
        self._ending = False  # no more than what is in progress
        self.client = client
        self.received = 0  # bytes, over its life,
        self.sent = 0
        self.requests = 0

    async def serve(self) -> None:
        try:
            with self._life:
                application, config = await self._speech.loaded()
                await self._lend(application, config)
        finally:
            self._sock.close()

    async def _lend(self, application: Application, config: Config) -> None:
        from hypercorn.trio.tcp_server import TCPServer
        from hypercorn.trio.worker_context import WorkerContext
        from hypercorn.typing import ConnectionState

        self._stream = stream = _Stream(self, self._sock, self._server.stall_seconds)
        run = partial(self._run, application)
        try:
            await TCPServer(run, config, WorkerContext(None), ConnectionState({}), stream).run()  # type: ignore[arg-type]
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # the peer has left
        except* (UnicodeError, ValueError) as error:
            self._server.report("http_connection_ended", client=self.client, reason=repr(error.exceptions[0]))
        # Anything else is a fault that `Server` reports.

    async def _run(
        self, application: Application, scope: Any, receive: Any, send: Any, sync_spawn: Any, call_soon: Any
    ) -> None:
        """One request. The single place that every HTTP request passes."""
        self.requests += 1
        self._active += 1
        try:
            await application(scope, receive, send)
        finally:
            self._active -= 1
            if self._ending and not self._active:
                self._life.cancel()

    def finish(self) -> None:
        """Requests in progress may end; then the connection does."""
        self._end()
        deadline = trio.current_time() + self._server.drain_seconds
        self._life.deadline = deadline
        if self._stream is not None:
            self._stream.end_by(deadline)

    def _end(self) -> None:
        self._ending = True
        if not self._active:
            self._life.cancel()

    def left(self) -> None:
        """The peer sends no more. Hypercorn would keep its side open until the connection had idled for long enough."""
        self._end()

    def closed(self) -> None:
        """Its stream was closed from our side: whatever of Hypercorn still waits for something there ends with it."""
        self._life.cancel()

    # --- what the server asks of a connection

    @property
    def held(self) -> int:
        return 0  # answers are made as fast as they are taken

    def overdue(self, now: float) -> bool:
        return False

    def drop(self) -> None:
        self._life.cancel()

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


class _Stream:
    """What Hypercorn knows of a trio.SocketStream, with a limit to the patience for its peer."""

    def __init__(self, connection: HttpConnection, sock: socket.socket, stall_seconds: float) -> None:
        self.socket = trio.socket.from_stdlib_socket(sock)
        self._inner = trio.SocketStream(self.socket)
        self._connection = connection
        self._stall_seconds = stall_seconds
        self._deadline = float("inf")
        self._sending: trio.CancelScope | None = None

    def end_by(self, deadline: float) -> None:
        self._deadline = deadline
        if self._sending is not None:
            self._sending.deadline = min(self._sending.deadline, deadline)

    async def receive_some(self, max_bytes: int) -> bytes:
        data = bytes(await self._inner.receive_some(max_bytes))
        self._connection.received += len(data)
        if not data:
            self._connection.left()
        return data

    async def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            deadline = min(trio.current_time() + self._stall_seconds, self._deadline)
            with trio.CancelScope(deadline=deadline) as self._sending:
                await self._inner.send_all(piece)
                self._connection.sent += len(piece)
            if self._sending.cancelled_caught:
                await trio.aclose_forcefully(self._inner)
                raise trio.BrokenResourceError("the peer takes nothing")

    async def send_eof(self) -> None:
        with contextlib.suppress(trio.BusyResourceError):
            await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()
        self._connection.closed()
