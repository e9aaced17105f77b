"""The bytes of one HTTP connection: counted, charged to the budgets, and sent with a timeout."""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from krappy.server.sockets import has_left, readable
from krappy.tls import TlsSocket

if TYPE_CHECKING:
    from krappy.server.server import Server

PIECE = 64 << 10  # bytes that a peer has to take within `stall_seconds`
LOOK_SECONDS = 0.25  # between two checks whether a peer has left that is not read from
GRACE = 3.0  # seconds that a peer may take for an answer while memory is short
SLOWEST = 256 << 10  # bytes per second at which it has to take a large answer while memory is short, after `GRACE`


class TlsStream:
    """A TlsSocket with the methods of trio's sockets that `Wire` uses."""

    def __init__(self, sock: TlsSocket, turn: Callable[[], Awaitable[None]]) -> None:
        """`turn`: returns when it may decrypt what has come."""
        self._sock, self._turn = sock, turn

    async def recv(self, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            await self._turn()
            try:
                return self._sock.recv(size)
            except BlockingIOError:
                await readable(self._sock)

    async def send(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._sock.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


class Wire:
    """Bytes from and to the peer. An OSError counts as the peer having left: it raises none."""

    def __init__(self, server: Server, sock: socket.socket, whose: str) -> None:
        self._stdlib = sock
        self._socket: TlsStream | trio.socket.SocketType = (
            TlsStream(sock, self._turn) if isinstance(sock, TlsSocket) else trio.socket.from_stdlib_socket(sock)
        )
        self.scheme = "https" if isinstance(sock, TlsSocket) else "http"
        self._budget, self._pages, self._turns = server.budget, server.pages, server.turns
        self.whose = whose  # the answers are: a user's, or an address's; nothing is being sent when it changes
        self._stall_seconds = server.stall_seconds
        self._deadline = math.inf
        self._sending: trio.CancelScope | None = None
        self._size = 0  # bytes of the part of an answer that is being sent
        self.received = 0  # bytes since the connection began
        self.sent = 0
        self.waiting = 0  # bytes of answers that the peer has not taken yet
        self.since = math.inf  # when the sending of this part of an answer began; inf: nothing is being sent
        self.asked_since = math.inf  # when it began to wait for more of a request that has begun; inf: it does not
        self.gone = False  # the peer has left, or was cut off

    def end_by(self, deadline: float) -> None:
        self._deadline = deadline
        if self._sending is not None:
            self._sending.deadline = min(self._sending.deadline, deadline)

    def overdue(self, now: float) -> bool:
        """Whether the peer takes longer for an answer than it may while memory is short."""
        return bool(self.waiting) and now - self.since > GRACE + self._size / SLOWEST

    @property
    def waits_since(self) -> float:
        """When it began to wait for the peer to send the rest of a request, or to take a part of an answer; inf: it
        does not."""
        return min(self.asked_since, self.since if self.waiting else math.inf)

    async def _turn(self) -> None:
        """Waits for its turn to decrypt if this round of the event loop has lasted for long."""
        if self._turns.crowded:
            await self._turns.next(self.whose)

    async def receive_body(self) -> bytes:
        """Like `receive`, for the rest of a request, which the peer must send before it can be answered."""
        self.asked_since = trio.current_time()
        try:
            return await self.receive()
        finally:
            self.asked_since = math.inf

    async def receive(self, size: int = PIECE) -> bytes:
        """Up to `size` bytes, more than 0, and `PIECE` at most; empty when the peer sends no more."""
        try:
            data = await self._socket.recv(min(size, PIECE))
        except (OSError, trio.ClosedResourceError):
            self.gone = True
            return b""
        self.received += len(data)
        return data

    async def send(self, data: bytes) -> None:
        """Sends all of `data`, even when it is cancelled meanwhile: half a part of an answer would spoil the rest."""
        rest = memoryview(data)
        self._wait_for(len(data))
        self._size, self.since = len(data), trio.current_time()
        try:
            while len(rest) and not self.gone:
                piece, rest = rest[:PIECE], rest[PIECE:]
                await self._send_piece(piece)
        finally:
            self._wait_for(-self.waiting)
            self.since = math.inf
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _send_piece(self, piece: memoryview) -> None:
        deadline = min(trio.current_time() + self._stall_seconds, self._deadline)
        with trio.CancelScope(deadline=deadline, shield=True) as self._sending:
            try:
                while len(piece):
                    sent = await self._socket.send(piece)
                    self.sent += sent
                    self._wait_for(-sent)
                    piece = piece[sent:]
            except (OSError, trio.ClosedResourceError):
                pass
        if len(piece):
            self.gone = True
            self._socket.close()  # wakes a task that reads

    def _wait_for(self, size: int) -> None:
        """`size` more bytes wait for the peer; a negative size: fewer."""
        self.waiting += size
        if size > 0:
            self._budget.charge(size)
            self._pages.charge_to(self.whose, size)
        elif size:
            self._budget.credit(-size)
            self._pages.credit_to(self.whose, -size)

    async def until_it_leaves(self) -> None:
        """Waits until the peer has left, without reading."""
        while not self.gone and not has_left(self._stdlib):
            await trio.sleep(LOOK_SECONDS)

    def send_eof(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.gone = True
