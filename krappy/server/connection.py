"""One native connection: bytes to frames, frames to handlers, answers to bytes.

Rules, kept here:

- Frames are dispatched in the order they came. A handler that can answer at once does so inside the read loop; one
  that must wait gets a task of its own, so a waiting poll holds up nobody.
- Every byte of a request counts against the budget until it is answered, every byte of an answer until it is sent.
- Nothing that a peer sends ends more than its own connection, and that only when its framing is broken.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import trio

from krappy.errors import InvalidRequest, KrappyError, ProtocolError, RequestTimeout, ShuttingDown
from krappy.server.budget import FAIR
from krappy.server.session import Session
from krappy.waiting import Later, Signal, wait_any
from krappy.wire.frames import HEADER, check_size
from krappy.wire.messages import REQUESTS, Answer, error_frame, parse, take_id, unpack

if TYPE_CHECKING:
    from krappy.server.server import Server

LARGE = 128 << 10  # a frame of this size gets its own buffer, once the budget has room for it
OUTBOX = 1 << 20  # answers waiting to be sent, beyond which nothing more is read or polled
IN_FLIGHT = 48 << 20  # request bytes of one connection
MAX_TASKS = 2000  # waiting requests of one connection
JOIN = 128 << 10  # small answers are joined up to this size for one send


class Connection:
    def __init__(self, server: Server, sock: socket.socket, client: str) -> None:
        self._server = server
        self._sock = sock
        self.session = Session(server.broker, client, self, server.max_frame)
        self._rest = bytearray()  # the beginning of a frame that is not whole yet
        self._large: memoryview | None = None  # or a buffer of the frame's own size, and how much of it is there
        self._filled = 0
        self._outbox: deque[bytes | memoryview] = deque()
        self.outbox_bytes = 0
        self.in_flight = 0
        self._tasks = 0
        self._reading = False  # inside the read loop: answers are flushed at its end
        self._wake = trio.Event()
        self.changed = Signal()  # fewer answers wait, or fewer requests
        self._nursery: trio.Nursery | None = None  # of waiting requests
        self._life = trio.CancelScope()  # of the whole connection
        self._finishing = False
        self.received = 0  # bytes, over its life
        self.requests = 0

    async def serve(self) -> None:
        """Serves the peer until it leaves, breaks the protocol, or idles too long.

        A peer that leaves gets what its publishes came to, if it still listens; its waiting requests are dropped.
        When the broker stops, they are waited for.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._life = nursery.cancel_scope
                nursery.start_soon(self._write)
                try:
                    async with trio.open_nursery() as tasks:
                        self._nursery = tasks
                        await self._read()
                        if not self._finishing:
                            tasks.cancel_scope.cancel()
                        self.session.close()
                except* KrappyError as broken:
                    self._send(error_frame(0, _first(broken)))
                except* OSError:
                    self._life.cancel()
                self.session.close()
                with trio.move_on_after(self._server.drain_seconds):
                    await wait_any([self.changed], lambda: not self.in_flight and not self.outbox_bytes)
                self._life.cancel()
        finally:
            self.session.close()
            self._server.budget.credit(self.outbox_bytes)
            self._outbox.clear()
            self.outbox_bytes = 0
            self._sock.close()

    def finish(self) -> None:
        """Reads no more; what is in flight is answered, then the connection ends (graceful stop)."""
        self._finishing = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)  # wakes the reader
        self.changed.fire()

    # --- in

    async def _read(self) -> None:
        sock, scratch = self._sock, self._server.scratch
        idle = self._server.idle_seconds
        while not self._finishing:
            large = self._large
            try:
                count = sock.recv_into(scratch if large is None else large[self._filled :])
            except BlockingIOError:
                with trio.move_on_after(idle) as scope:
                    await trio.lowlevel.wait_readable(sock)
                if scope.cancelled_caught:
                    raise RequestTimeout(f"the connection was idle for {idle:g} s") from None
                continue
            if count == 0:
                if self._finishing:
                    return
                if self._rest or large is not None:
                    raise ProtocolError("the connection ended inside a frame") from None
                return
            self.received += count
            self._reading = True
            try:
                if large is None:
                    size = self._take(scratch[:count])
                else:
                    size = 0
                    self._filled += count
                    if self._filled == len(large):
                        self._large = None
                        self._dispatch(int.from_bytes(large[4:8], "big"), large[8:], len(large))
            finally:
                self._reading = False
            self._flush()
            if size:
                await self._make_room_for(size)
            await self._room()

    def _take(self, chunk: memoryview) -> int:
        """Dispatches the whole frames of a chunk and keeps its rest. Returns the size of a large frame begun."""
        if self._rest:
            self._rest += chunk
            data = memoryview(self._rest)
        else:
            data = chunk
        limit, position, held = self._server.max_frame, 0, len(data)
        large = 0
        while held - position >= 8:
            size, kind = HEADER.unpack_from(data, position)
            end = position + check_size(size, limit) + 4
            if end > held:
                large = end - position if end - position > LARGE else 0
                break
            self._dispatch(kind, data[position + 8 : end], end - position)
            position = end
        else:
            if held - position >= 4:
                check_size(int.from_bytes(data[position : position + 4], "big"), limit)
        self._rest = bytearray(data[position:]) if position < held else bytearray()
        return large

    async def _make_room_for(self, size: int) -> None:
        await self._server.budget.reserve(size)
        self._server.budget.credit(size)  # _dispatch charges it; the buffer is there at once
        buffer = bytearray(size)
        self._filled = len(self._rest)
        buffer[: self._filled] = self._rest
        self._rest = bytearray()
        self._large = memoryview(buffer)

    async def _room(self) -> None:
        """Back-pressure: returns when this connection may send more."""
        if self._may_read():
            await trio.lowlevel.checkpoint()
            return
        self._server.budget.stalls += 1
        await wait_any([self.changed, self._server.budget.freed], self._may_read)

    def _may_read(self) -> bool:
        return self._finishing or (
            self.outbox_bytes <= OUTBOX
            and self.in_flight <= IN_FLIGHT
            and self._tasks <= MAX_TASKS
            and (not self._server.budget.spent or self.in_flight + self.outbox_bytes < FAIR)
        )

    # --- requests

    def _dispatch(self, kind: int, body: memoryview, size: int) -> None:
        """Runs one request. The single place that every request of every connection passes."""
        self.requests += 1
        id = 0
        try:
            values = unpack(body)
            id = take_id(values)
            cls = REQUESTS.get(kind)
            if cls is None:
                raise InvalidRequest(f"unknown message type {kind:#x}", type=kind)
            if self._finishing:
                raise ShuttingDown("the broker is shutting down")
            request = parse(cls, values)
            handler, streams = self._server.registry.find(cls)
            answer = handler(self.session, request, Stream(self, id)) if streams else handler(self.session, request)
        except KrappyError as error:
            self._send(error_frame(id, error))
            return
        except Exception as error:
            self._send(error_frame(id, self._server.fault(error, kind)))
            return
        if isinstance(answer, Answer):
            self._send(answer.frame(id))
            return
        self.in_flight += size
        self._server.budget.charge(size)
        if isinstance(answer, Later):
            answer.then(lambda value, error: self._answered(id, size, value, error))
        else:
            self._tasks += 1
            assert self._nursery is not None
            self._nursery.start_soon(self._wait_for, id, size, kind, answer)

    async def _wait_for(self, id: int, size: int, kind: int, answer: Coroutine[Any, Any, Answer]) -> None:
        value: Answer | None = None
        error: Exception | None = None
        try:
            value = await answer
        except KrappyError as refused:
            error = refused
        except Exception as fault:
            error = self._server.fault(fault, kind)
        finally:
            self._tasks -= 1
            self._answered(id, size, value, error)

    def _answered(self, id: int, size: int, value: Answer | None, error: Exception | None) -> None:
        self.in_flight -= size
        self._server.budget.credit(size)
        if value is not None:
            self._send(value.frame(id))
        elif isinstance(error, KrappyError):
            self._send(error_frame(id, error))
        self.changed.fire()

    # --- out

    def _send(self, data: bytes) -> None:
        self._outbox.append(data)
        self.outbox_bytes += len(data)
        self._server.budget.charge(len(data))
        if not self._reading:
            self._wake.set()

    def _flush(self) -> None:
        """Sends what can be sent now; the rest is the writer task's."""
        if self._outbox and not self._wake.is_set():
            with contextlib.suppress(OSError):  # the reader and the writer will meet it too
                self._send_some()
            if self._outbox:
                self._wake.set()

    def _send_some(self) -> None:
        """One pass over the outbox until it is empty or the socket is full. Raises OSError for a dead peer."""
        outbox = self._outbox
        while outbox:
            data = outbox.popleft()
            if len(data) < JOIN and outbox:
                parts, total = [data], len(data)
                while outbox and total + len(outbox[0]) <= JOIN:
                    parts.append(outbox[0])
                    total += len(outbox.popleft())
                data = b"".join(parts)
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                outbox.appendleft(data)
                return
            except OSError:
                outbox.appendleft(data)
                raise
            self.outbox_bytes -= sent
            self._server.budget.credit(sent)
            if sent < len(data):
                outbox.appendleft(memoryview(data)[sent:])
                return

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            before = self.outbox_bytes
            try:
                self._send_some()
            except OSError:
                self._life.cancel()
                return
            if self.outbox_bytes != before:
                self.changed.fire()
            if not self._outbox:
                self._wake = trio.Event()
                continue
            with trio.move_on_after(self._server.stall_seconds) as scope:
                await trio.lowlevel.wait_writable(self._sock)
            if scope.cancelled_caught:
                self._server.report("peer_stalled", client=self.session.client, waiting=self.outbox_bytes)
                self._life.cancel()
                return

    @property
    def ready(self) -> bool:
        return self.outbox_bytes <= OUTBOX

    async def writable(self) -> None:
        """Waits until the peer has taken enough of what it was sent."""
        if self.outbox_bytes > OUTBOX:
            await wait_any([self.changed], lambda: self.outbox_bytes <= OUTBOX)


class Stream:
    """Answers of a streaming handler, one after the other, as fast as the peer takes them."""

    def __init__(self, connection: Connection, id: int) -> None:
        self._connection = connection
        self._id = id

    async def send(self, answer: Answer) -> None:
        await self._connection.writable()
        self._connection._send(answer.frame(self._id))
        await trio.lowlevel.checkpoint()


def _first(group: BaseExceptionGroup[KrappyError]) -> KrappyError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KrappyError)
    return error
