"""The runtime of the async client: anyio, so trio and asyncio alike.

It talks to plain non-blocking sockets rather than through anyio's streams: a request is sent from within the call
that makes it, without a turn of the event loop, and a cancelled caller can never leave half a frame behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from krappy.clients.receipts import Failures
from krappy.clients.runtime import Work

T = TypeVar("T")
LEAST, MOST = 64 << 10, 1 << 20  # bytes asked for in one receive: as many as come


class AnyioSignal:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, seconds: float | None = None) -> bool:
        event = self._event
        if event.is_set():
            return True
        if seconds is None:
            await event.wait()
        else:
            with anyio.move_on_after(seconds):
                await event.wait()
        return event.is_set()


class Delivery(Generic[T]):
    """What becomes of something posted: `await` it for its receipt, or its error."""

    __slots__ = ("_error", "_event", "_failures", "_result", "_settled", "looked")

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures
        self._event: anyio.Event | None = None
        self._settled = False
        self._error: BaseException | None = None
        self._result: Any = None
        self.looked = False  # an error that nobody looked at is raised by `flush`

    def done(self) -> bool:
        """Whether it is settled, so that `result` does not raise InvalidStateError."""
        return self._settled

    def result(self) -> T:
        """The receipt, or the error raised. RuntimeError when it is not done."""
        if not self._settled:
            raise RuntimeError("not acknowledged yet: await it")
        if self._error is not None:
            self.looked = True
            raise self._error
        result: T = self._result
        return result

    def error(self) -> BaseException | None:
        """Why it failed; None when it did not, or not yet."""
        self.looked = True
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
    """A connection over a non-blocking socket. What the socket does not take at once, a task sends."""

    def __init__(self, sock: socket.socket, runtime: AnyioRuntime) -> None:
        self._sock = sock
        self._runtime = runtime
        self._queue: deque[memoryview] = deque()
        self._size = LEAST
        self._flushing = False
        self._ended = False
        self._drained = runtime.signal()
        self.backlog = 0

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
                await anyio.lowlevel.checkpoint()  # a broker that is faster than we are must not starve the others
            elif len(data) < LEAST:
                self._size = LEAST
            return data
        return b""

    def send(self, data: bytes) -> None:
        if self._ended:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        sent = 0
        if not self._queue:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = self._sock.send(data)
            if sent == len(data):
                return
        self._queue.append(memoryview(data)[sent:])
        self.backlog += len(data) - sent
        if not self._flushing:
            self._flushing = True
            self._runtime.spawn(self._flush, "krappy send")

    async def _flush(self) -> None:
        try:
            while self._queue and not self._ended:
                await _while_open(anyio.wait_writable(self._sock))
                while self._queue and not self._ended:
                    try:
                        sent = self._sock.send(self._queue[0])
                    except (BlockingIOError, InterruptedError):
                        break
                    self.backlog -= sent
                    if sent == len(self._queue[0]):
                        self._queue.popleft()
                    else:
                        self._queue[0] = self._queue[0][sent:]
                if self.backlog < LEAST:
                    self._let_go()
        except OSError:
            self.end()
        finally:
            self._flushing = False
            self._let_go()

    async def drained(self) -> None:
        while self.backlog >= LEAST and not self._ended:
            if self._drained.is_set():
                self._drained = self._runtime.signal()
            await self._drained.wait()

    def _let_go(self) -> None:
        self._drained.set()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._queue.clear()
        self.backlog = 0
        self._let_go()
        with contextlib.suppress(RuntimeError):  # the loop is gone already
            anyio.notify_closing(self._sock)
        self._sock.close()


class AnyioRuntime:
    """`tasks`: the task group of the client, in which everything runs that runs beside its callers."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self.lock = nullcontext()  # one task runs at a time, and nothing here awaits while it changes something

    def now(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def signal(self) -> AnyioSignal:
        return AnyioSignal()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()

    def spawn(self, work: Callable[[], Work[None]], name: str) -> None:
        self._tasks.start_soon(work, name=name)

    async def dial(self, host: str, port: int, seconds: float) -> AnyioStream:
        with anyio.move_on_after(seconds):
            return AnyioStream(await _connect(host, port), self)
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")


async def _connect(host: str, port: int) -> socket.socket:
    """Tries each address of the host in turn. Raises OSError, the last one's."""
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


async def _while_open(wait: Any) -> None:
    try:
        await wait
    except anyio.ClosedResourceError:
        raise OSError(errno.EBADF, "the connection was closed") from None
