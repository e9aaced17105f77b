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
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

import trio

from krappy.errors import InvalidRequest, KrappyError, Overloaded, ProtocolError, RequestTimeout, ShuttingDown
from krappy.server.budget import FAIR
from krappy.server.session import Session
from krappy.waiting import Later, Signal, wait_any
from krappy.wire.frames import HEADER, check_size
from krappy.wire.large import unpack_request
from krappy.wire.messages import REQUESTS, Answer, error_frame, parse, take_id

if TYPE_CHECKING:
    from krappy.server.server import Server

LARGE = 128 << 10  # a frame beyond this gets a buffer of its own, once the budget has room for it
OUTBOX = 1 << 20  # answers waiting to be sent, beyond which nothing more is read or polled
IN_FLIGHT = 48 << 20  # request bytes of one connection
MAX_TASKS = 2000  # waiting requests of one connection
FAIR_TASKS = 8  # and how many it may have although the server has too many
TASK = 4 << 10  # bytes that a waiting request counts for beside its own when it has a task,
LATER = 1 << 10  # and when it has none
JOIN = 128 << 10  # small answers are joined up to this size for one send
GRACE = 3.0  # seconds that a peer may keep memory waiting while it is short,
SLOWEST = 4 << 20  # and for a large frame the bytes a second that it has to come in beyond that


class Connection:
    def __init__(self, server: Server, sock: socket.socket, client: str) -> None:
        self._server = server
        self._sock = sock
        self.session = Session(server.broker, client, self, server.max_frame, server.allowance)
        self._rest = bytearray()  # the beginning of a frame that is not whole yet
        self._held_back = False  # there may be whole frames in it, which wait for answers to be taken
        self._large: bytearray | None = None  # or a large frame's own buffer,
        self._filled = 0  # how much of it is there,
        self._wanted = 0  # and the size of the whole frame
        self._large_since = 0.0  # when room was made for it
        self._stuck_since = 0.0  # when the peer last took something, while answers wait; 0: none wait
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
        self._ended = False
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
            self._ended = True
            self.session.close()
            self._drop_large()
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
        while not self._finishing:
            large = self._large
            count = 0
            if not self._held_back:
                try:
                    count = sock.recv_into(scratch if large is None else memoryview(large)[self._filled :])
                except BlockingIOError:
                    await self._bytes_come()
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
                    self._take(scratch[:count])
                else:
                    self._fill(large, count)
            finally:
                self._reading = False
            self._flush()
            if self._wanted and self._large is None:
                await self._make_room()
            await self._room()

    async def _bytes_come(self) -> None:
        """Waits for the peer. Raises RequestTimeout when it is idle too long, or silent in the middle of a frame."""
        halfway = bool(self._rest) or self._large is not None
        seconds = min(self._server.idle_seconds, self._server.stall_seconds) if halfway else self._server.idle_seconds
        with trio.move_on_after(seconds) as scope:
            await trio.lowlevel.wait_readable(self._sock)
        if scope.cancelled_caught:
            what = "silent in the middle of a frame" if halfway else "idle"
            raise RequestTimeout(f"the connection was {what} for {seconds:g} s")

    def _fill(self, large: bytearray, count: int) -> None:
        self._filled += count
        if self._filled < self._wanted:
            return
        view, size = memoryview(large), self._wanted
        self._drop_large()
        self._dispatch(int.from_bytes(view[4:8], "big"), view[8:size], size)

    async def _make_room(self) -> None:
        """A buffer for a large frame. The system gives it memory as its bytes come; the budget is asked for all."""
        await self._server.budget.reserve(self._wanted)
        self._large = bytearray(self._wanted)
        self._filled = len(self._rest)
        self._large[: self._filled] = self._rest
        self._rest = bytearray()
        self._large_since = trio.current_time()

    def _drop_large(self) -> None:
        if self._large is not None:
            self._server.budget.credit(len(self._large))
        self._large, self._filled, self._wanted = None, 0, 0

    def _take(self, chunk: memoryview) -> None:
        """Dispatches the whole frames of a chunk and keeps its rest; notes when that begins a large frame."""
        self._held_back = False
        if self._rest:
            self._rest += chunk
            data = memoryview(self._rest)
        else:
            data = chunk
        limit, position, held = self._server.max_frame, 0, len(data)
        while held - position >= 8:
            size, kind = HEADER.unpack_from(data, position)
            end = position + check_size(size, limit) + 4
            if end > held:
                self._wanted = end - position if end - position > LARGE else 0
                break
            self._dispatch(kind, data[position + 8 : end], end - position)
            position = end
            if not self._may_read():  # the answers to these are not to be made before they can be sent
                self._held_back = position < held
                break
        else:
            if held - position >= 4:
                check_size(int.from_bytes(data[position : position + 4], "big"), limit)
        if position or data is chunk:
            self._rest = bytearray(data[position:])

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
            and (not self._server.budget.spent or self._is_small)
        )

    # --- requests

    def _dispatch(self, kind: int, body: memoryview, size: int) -> None:
        """Runs one request. The single place that every request of every connection passes."""
        self.requests += 1
        id = 0
        try:
            values = unpack_request(body)
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
        if isinstance(answer, Later):
            size += LATER + answer.cost
            self.in_flight += size
            self._server.budget.charge(size)
            answer.then(lambda value, error: self._finished(id, size, value, error))
        elif self._tasks >= MAX_TASKS or (self._server.budget.crowded and self._tasks >= FAIR_TASKS):
            answer.close()
            # Not back-pressure: who is not read from is not seen to leave either, and this may take minutes.
            self._send(error_frame(id, Overloaded("too many requests wait already; try again when some are answered")))
        else:
            size += TASK
            self.in_flight += size
            self._server.budget.park(size)
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
            self._server.budget.park(-size)
            self._answered(id, size, value, error)

    def _finished(self, id: int, size: int, value: Answer | None, error: Exception | None) -> None:
        self._server.budget.credit(size)
        self._answered(id, size, value, error)

    def _answered(self, id: int, size: int, value: Answer | None, error: Exception | None) -> None:
        self.in_flight -= size
        if value is not None:
            self._send(value.frame(id))
        elif isinstance(error, KrappyError):
            self._send(error_frame(id, error))
        self.changed.fire()

    # --- out

    def _send(self, data: bytes) -> None:
        if self._ended:  # an answer to who has left
            return
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
                self._stuck_since = 0.0
                self._wake = trio.Event()
                continue
            if self.outbox_bytes != before or not self._stuck_since:
                self._stuck_since = trio.current_time()
            with trio.move_on_after(self._server.stall_seconds) as scope:
                await trio.lowlevel.wait_writable(self._sock)
            if scope.cancelled_caught:
                self.drop()
                return

    @property
    def ready(self) -> bool:
        """Whether another answer may be made: the peer takes its answers, and the server has room for more."""
        return self.outbox_bytes <= OUTBOX and (not self._server.budget.spent or self._is_small)

    @property
    def _is_small(self) -> bool:
        """Whether it holds so little that it may go on whatever the others hold."""
        return self.in_flight + self.outbox_bytes < FAIR

    async def writable(self) -> None:
        """Waits until it is ready."""
        if not self.ready:
            await wait_any([self.changed, self._server.budget.freed], lambda: self.ready)

    @property
    def answer_bytes(self) -> int:
        """How large an answer that is made now should be at the most."""
        return self._server.budget.answer_bytes

    @contextlib.asynccontextmanager
    async def answering(self, limit: int) -> AsyncIterator[int]:
        """Room for an answer that takes its time to make: waits until it is ready; how large it may be, up to `limit`.

        As much counts as in flight meanwhile.
        """
        await self.writable()
        count = min(limit, self.answer_bytes)
        self.in_flight += count
        self._server.budget.charge(count)
        try:
            yield count
        finally:
            self.in_flight -= count
            self._server.budget.credit(count)
            self.changed.fire()

    # --- when memory is short

    @property
    def held(self) -> int:
        """Bytes that wait for the peer: of a large frame that it has begun, and of answers."""
        return self.outbox_bytes + (0 if self._large is None else len(self._large))

    def overdue(self, now: float) -> bool:
        """Whether the peer lets them wait for longer than it may while others want the memory."""
        stuck = self._stuck_since and now - self._stuck_since > GRACE
        return bool(stuck) or (self._large is not None and now - self._large_since > GRACE + len(self._large) / SLOWEST)

    def drop(self) -> None:
        """Ends the connection at once."""
        self._server.report("peer_stalled", client=self.session.client, waiting=self.held)
        self._life.cancel()


class Stream:
    """Answers of a streaming handler, one after the other, as fast as the peer takes them."""

    def __init__(self, connection: Connection, id: int) -> None:
        self._connection = connection
        self._id = id

    async def send(self, answer: Answer) -> None:
        """Returns when the next one may be made."""
        self._connection._send(answer.frame(self._id))
        await trio.lowlevel.checkpoint()
        await self._connection.writable()


def _first(group: BaseExceptionGroup[KrappyError]) -> KrappyError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KrappyError)
    return error
