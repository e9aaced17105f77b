"""The runtime of the async client: anyio, so it runs on trio and asyncio.

It uses plain non-blocking sockets, not anyio's streams. So a request is sent within the call that makes it, without a
turn of the event loop, and a cancelled caller never leaves half a frame behind.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from krappy.clients.receipts import Failures
from krappy.clients.runtime import Work
from krappy.errors import KrappyError
from krappy.tls import TlsSocket

T = TypeVar("T")
LEAST, MOST = 64 << 10, 1 << 20  # bytes asked for in one receive: more when the last one was filled
COARSE = 1.0  # seconds; longer time limits use an alarm instead of a cancel scope
BACKLOG = 1 << 20  # with more bytes than this waiting for the socket, producers wait before they send
JOIN = 128 << 10  # bytes up to which queued requests are joined for one send


class AnyioSignal:
    __slots__ = ("_runtime", "_set", "_waiters")

    def __init__(self, runtime: AnyioRuntime) -> None:
        self._runtime = runtime
        self._set = False
        self._waiters: list[anyio.Event] = []

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            waiter.set()

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float | None = None) -> bool:
        if self._set:
            return True
        waiter = anyio.Event()
        self._waiters.append(waiter)
        try:
            if seconds is None:
                await waiter.wait()
            elif seconds < COARSE:
                with anyio.move_on_after(seconds):
                    await waiter.wait()
            else:
                with self._runtime.alarm(waiter, seconds):
                    await waiter.wait()
        finally:
            self._waiters.remove(waiter)
        return self._set


class Timeouts:
    """Sets events when their time has come. For the long time limits of requests, which are hardly ever reached. A
    cancel scope for each would cost as much as the rest of a small request."""

    def __init__(self) -> None:
        self._deadlines: dict[anyio.Event, float] = {}
        self._next = math.inf
        self._earlier = anyio.Event()
        self._ended = False

    @contextlib.contextmanager
    def alarm(self, event: anyio.Event, seconds: float) -> Iterator[None]:
        """Sets the event after `seconds`, unless the `with` ends before. Raises KrappyError once `run` has ended."""
        if self._ended:
            raise KrappyError("the event loop in which this client was opened has ended: open another here")
        self._deadlines[event] = deadline = time.monotonic() + seconds
        if deadline < self._next:
            self._earlier.set()
        try:
            yield
        finally:
            self._deadlines.pop(event, None)

    async def run(self) -> None:
        try:
            while True:
                self._next = min(self._deadlines.values(), default=math.inf)
                self._earlier = anyio.Event()
                with anyio.move_on_after(max(0.0, self._next - time.monotonic())):
                    await self._earlier.wait()
                now = time.monotonic()
                for event in [event for event, deadline in self._deadlines.items() if deadline <= now]:
                    del self._deadlines[event]
                    event.set()
        finally:
            self._ended = True


class Delivery(Generic[T]):
    """The outcome of something posted: `await` it to get its receipt, or have its error raised."""

    __slots__ = ("_error", "_event", "_failures", "_result", "_settled", "looked")

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures
        self._event: anyio.Event | None = None
        self._settled = False
        self._error: BaseException | None = None
        self._result: Any = None
        self.looked = False  # whether the caller has seen the error: `flush` raises errors that nobody has seen

    def done(self) -> bool:
        """Whether it is settled, so that `result` may be called."""
        return self._settled

    def result(self) -> T:
        """Returns the receipt or raises the error. Raises RuntimeError when it is not done."""
        if not self._settled:
            raise RuntimeError("not acknowledged yet: await it")
        if self._error is not None:
            self.looked = True
            raise self._error
        result: T = self._result
        return result

    def error(self) -> BaseException | None:
        """The error; None when there is none, or when it is not done."""
        self.looked = self._settled
        return self._error

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._settled:
            if self._event is None:
                self._event = anyio.Event()
            yield from self._event.wait().__await__()
        return self.result()

    def set_result(self, result: T) -> None:
        self._result = result
        self._settle()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        if self._failures is not None:
            self._failures.note(self, exception)
        self._settle()

    def _settle(self) -> None:
        self._settled = True
        if self._event is not None:
            self._event.set()


class AnyioStream:
    """A connection over a non-blocking socket. The task `flush` sends what the socket does not take at once."""

    def __init__(self, sock: socket.socket, runtime: AnyioRuntime) -> None:
        self._sock = sock
        self._runtime = runtime
        self._queue: deque[bytes | memoryview] = deque()
        self._size = LEAST
        self._ended = False
        self._wake = runtime.signal()
        self._drained = runtime.signal()
        self._backlog = 0

    async def receive(self, seconds: float) -> bytes | None:
        while not self._ended:
            try:
                data = self._sock.recv(self._size)
            except (BlockingIOError, InterruptedError):
                if seconds <= 0:
                    return None
                with anyio.move_on_after(seconds) as scope:
                    await _while_open(anyio.wait_readable(self._sock))
                if scope.cancelled_caught:
                    return None
                continue
            if len(data) == self._size:
                self._size = min(MOST, self._size * 4)
                await anyio.lowlevel.checkpoint()  # a broker faster than this client must not starve other tasks
            elif len(data) < LEAST:
                self._size = LEAST
            return data
        return b""

    def send(self, data: bytes, hurry: bool = True, patience: float | None = None) -> bool:
        if self._ended:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        sent = 0
        if hurry and not self._queue:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = self._sock.send(data)
            if sent == len(data):
                return True
        self._queue.append(memoryview(data)[sent:] if sent else data)
        self._backlog += len(data) - sent
        self._wake.set()
        return True

    async def flush(self) -> None:
        """Sends what is queued, until the stream is closed. Requests queued in the same turn of the event loop are sent
        together, because a system call costs as much as the rest of a small request."""
        try:
            while not self._ended:
                if not self._queue:
                    self._wake = self._runtime.signal()
                    self._drained.set()
                    await self._wake.wait()
                    continue
                data = self._joined()
                try:
                    sent = self._sock.send(data)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                self._backlog -= sent
                if sent < len(data):
                    self._queue.appendleft(memoryview(data)[sent:])
                    await _while_open(anyio.wait_writable(self._sock))
        except OSError:
            self.end()
        finally:
            self._drained.set()

    def _joined(self) -> bytes | memoryview:
        data = self._queue.popleft()
        if len(data) >= JOIN or not self._queue:
            return data
        parts, size = [data], len(data)
        while self._queue and size + len(self._queue[0]) <= JOIN:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    async def drained(self, seconds: float | None = None) -> bool:
        if self._backlog <= BACKLOG:
            return True
        while self._backlog >= LEAST and not self._ended:
            if self._drained.is_set():
                self._drained = self._runtime.signal()
            if not await self._drained.wait(seconds):
                return False
        return True

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            with contextlib.suppress(OSError):  # what the socket takes now still goes out: a member's parting words
                while self._queue and self._sock.send(self._queue[0]) == len(self._queue[0]):
                    self._queue.popleft()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._wake.set()

    def close(self) -> None:
        self.end()
        self._queue.clear()
        self._backlog = 0
        self._drained.set()
        with contextlib.suppress(RuntimeError):  # raised when the event loop has ended
            anyio.notify_closing(self._sock)
        self._sock.close()


class Tasks:
    """The background tasks of one client, which end with it. A cancellation of the program does not end them before: a
    program that is cancelled leaves consumers and producers on its way out, and these still have to tell the broker."""

    def __init__(self) -> None:
        self._group = anyio.create_task_group()
        self._scopes: set[anyio.CancelScope] = set()
        self._closed = False

    async def open(self) -> None:
        await self._group.__aenter__()

    def spawn(self, work: Callable[[], Work[None]], name: str) -> None:
        scope = anyio.CancelScope(shield=True)
        if self._closed:
            scope.cancel()
        self._scopes.add(scope)
        self._group.start_soon(self._run, scope, work, name=name)

    async def _run(self, scope: anyio.CancelScope, work: Callable[[], Work[None]]) -> None:
        try:
            with scope:
                await work()
        finally:
            self._scopes.discard(scope)

    async def close(self) -> None:
        """Ends them all, and waits for that."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()
        # The group is told of no error: it would raise the program's own errors wrapped in an ExceptionGroup. Its tasks
        # raise none.
        await self._group.__aexit__(None, None, None)


class AnyioRuntime:
    """The `ClientRuntime` on anyio. `tasks`: the client's, among which all its background tasks run."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._alarms: Timeouts | None = None
        self.lock = nullcontext()  # one task runs at a time, and nothing here awaits while it changes something

    def if_free(self, work: Callable[[], object]) -> bool:
        work()
        return True

    now = staticmethod(time.monotonic)  # without a frame of its own: it is asked for each event of a group

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def signal(self) -> AnyioSignal:
        return AnyioSignal(self)

    def alarm(self, event: anyio.Event, seconds: float) -> AbstractContextManager[None]:
        """Sets the event after `seconds`, unless the `with` ends before."""
        if self._alarms is None:
            self._alarms = Timeouts()
            self.spawn(self._alarms.run, "krappy alarms")
        return self._alarms.alarm(event, seconds)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()

    def spawn(self, work: Callable[[], Work[None]], name: str) -> None:
        self._tasks.spawn(work, name)

    async def dial(self, host: str, port: int, seconds: float, tls: ssl.SSLContext | None = None) -> AnyioStream:
        with anyio.move_on_after(seconds):
            sock = await _connect(host, port)
            stream = AnyioStream(sock if tls is None else await _with_tls(sock, tls, host), self)
            self.spawn(stream.flush, "krappy send")
            return stream
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")


async def _connect(host: str, port: int) -> socket.socket:
    """Connects to the first address of the host that accepts. Raises the OSError of the last one."""
    failure: OSError | None = None
    for family, kind, protocol, _, where in await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                sock.connect(where)
            except (BlockingIOError, InterruptedError):
                await _while_open(anyio.wait_writable(sock))
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code)) from None
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return sock
    raise failure or OSError(errno.EADDRNOTAVAIL, "the host has no address")


async def _with_tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsSocket:
    """The connection with TLS, after the handshake. Raises OSError, having closed it."""
    try:
        found = TlsSocket(context, sock, host)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                found.do_handshake()
                return found
            except ssl.SSLWantReadError:
                await _while_open(anyio.wait_readable(found))
            except ssl.SSLWantWriteError:
                await _while_open(anyio.wait_writable(found))
    except BaseException:
        found.close()
        raise


async def _while_open(wait: Any) -> None:
    try:
        await wait
    except anyio.ClosedResourceError:
        raise OSError(errno.EBADF, "the connection was closed") from None
