"""The runtime of the blocking client: a thread that reads, callers that block, a socket with locks."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from krappy.clients.receipts import Failures
from krappy.clients.runtime import Work, run
from krappy.tls import TlsSocket

T = TypeVar("T")
LEAST, MOST = 64 << 10, 1 << 20  # bytes asked for in one receive: more when the last one was filled
STALLED = 600.0  # seconds that a send may wait for a broker that takes nothing


class ThreadSignal:
    """It has no lock that its users share, as threading.Event has: a signal's exception, or a fork, could leave that
    one taken for good, and then the thread that reads answers would wait for it."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[threading.Lock] = []  # one of each thread that waits, which stays taken until then

    def set(self) -> None:
        self._set = True  # first: who begins to wait from here on sees it
        for waiter in self._waiters.copy():
            with contextlib.suppress(RuntimeError):  # it is free: another thread was faster
                waiter.release()

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float | None = None) -> bool:
        if self._set:
            return True
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if not self._set:
                waiter.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
        finally:
            self._waiters.remove(waiter)
        return self._set


class Delivery(Future[T]):
    """The outcome of something sent: `result()` waits for its receipt, or raises its error. It can't be cancelled,
    because it may have been sent already."""

    def __init__(self, failures: Failures | None = None) -> None:
        super().__init__()
        self._failures = failures
        self.looked = False  # whether a caller has seen the error: `flush` raises errors that nobody has seen
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        with self._looking():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._looking():
            return super().exception(timeout)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """A caller that waits counts as having seen the error, so `flush` does not raise it. A caller whose wait timed
        out before there was one does not count."""
        before, self.looked = self.looked, True
        try:
            yield
        except BaseException as error:
            if not self.done() or error is not super().exception(0):
                self.looked = before
            raise

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self.looked = True
        super().add_done_callback(fn)

    def set_exception(self, exception: BaseException | None) -> None:
        if self._failures is not None and exception is not None:
            self._failures.note(self, exception)
        super().set_exception(exception)


class ThreadStream:
    """A connection that one thread reads. Any thread may send on it."""

    def __init__(self, sock: socket.socket | SharedTls) -> None:
        self._sock = sock
        self._out = sock.dup()  # the same connection with its own timeout: a send may wait longer than a receive
        self._out.settimeout(0)
        self._sending = threading.RLock()  # an interrupt may come when `acquire` has taken it and has not returned
        self._rest = memoryview(b"")  # of the last frame: what the socket did not take in time; the next send begins so
        self._in_frame = False
        self._size = LEAST
        self._seconds = -1.0
        self._ended = False

    async def receive(self, seconds: float) -> bytes | None:
        if self._ended:
            return b""
        seconds = max(seconds, 0.001)
        if seconds != self._seconds:
            self._sock.settimeout(seconds)
            self._seconds = seconds
        try:
            data = self._sock.recv(self._size)
        except TimeoutError:
            return None
        if len(data) == self._size:
            self._size = min(MOST, self._size * 4)
        elif len(data) < LEAST:
            self._size = LEAST
        return data

    def send(self, data: bytes, hurry: bool = True, patience: float | None = None) -> bool:
        seconds = STALLED if patience is None else min(max(0.0, patience), STALLED)
        end = time.monotonic() + seconds
        try:
            taken = self._sending.acquire(timeout=seconds) and self._send(data, end)
            if not taken and patience is None:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            return taken
        finally:
            try:  # noqa: SIM105 - a signal could come between the call of suppress() and the release
                self._sending.release()
            except RuntimeError:  # this thread did not take it
                pass

    def _send(self, data: bytes, end: float) -> bool:
        """`send`, with the lock. It begins with a frame only when there is room, and then keeps what does not go until
        `end`: another thread's requests would be lost with the connection."""
        if self._ended:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        if self._in_frame:
            raise RuntimeError("a signal handler can't use a connection while it interrupts a frame on its way")
        self._in_frame = True
        try:
            if not self._send_rest(end) or not _has_room(self._out, end - time.monotonic()):
                return False
            self._rest = memoryview(data)
            self._send_rest(end)
            return True
        except BaseException:  # also a signal's: half of a frame may have been sent, and no other may follow it
            self.end()
            raise
        finally:
            self._in_frame = False

    def _send_rest(self, end: float) -> bool:
        """Whether the socket has taken all of it by `end`."""
        while self._rest:
            try:
                self._rest = self._rest[self._out.send(self._rest) :]
            except BlockingIOError:
                if not _has_room(self._out, end - time.monotonic()):
                    return False
        return True

    async def drained(self, seconds: float | None = None) -> bool:
        with contextlib.suppress(OSError):
            return self.send(b"", patience=seconds)
        return True

    def end(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def disown(self) -> None:
        """For a forked child process: closes its own copies of the socket; the parent's connection goes on."""
        self._ended = True
        self._out.close()
        self._sock.close()

    def close(self) -> None:
        self.end()
        with self._sending:
            self._out.close()
            self._sock.close()


class SharedTls:
    """A connection with TLS that one thread reads while others send. OpenSSL's state of it is used by one at a time.
    It has the methods of a socket that `ThreadStream` uses."""

    def __init__(self, sock: TlsSocket, using: threading.RLock | None = None) -> None:
        self._sock = sock
        self._using = threading.RLock() if using is None else using
        self._seconds = 0.0

    def dup(self) -> SharedTls:
        """The same connection, with its own timeout."""
        return SharedTls(self._sock, self._using)

    def settimeout(self, seconds: float) -> None:
        """Of `recv` alone."""
        self._seconds = seconds

    def recv(self, size: int) -> bytes:
        end = time.monotonic() + self._seconds
        while True:
            try:
                with self._using:
                    return self._sock.recv(size)
            except BlockingIOError:
                if not _ready(self._sock, select.POLLIN, end - time.monotonic()):
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None

    def send(self, data: memoryview) -> int:
        with self._using:
            return self._sock.send(data)

    def fileno(self) -> int:
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()


def _with_tls(sock: socket.socket, context: ssl.SSLContext, host: str, seconds: float) -> SharedTls:
    """The connection with TLS, after the handshake. Raises OSError, having closed it."""
    try:
        found = TlsSocket(context, sock, host)
    except BaseException:
        sock.close()
        raise
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                found.do_handshake()
                break
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if not _ready(found, event, end - time.monotonic()):
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    except BaseException:
        found.close()
        raise
    return SharedTls(found)


def _has_room(sock: socket.socket | SharedTls, seconds: float) -> bool:
    """Whether the socket takes bytes, or has an error, within so many seconds."""
    return _ready(sock, select.POLLOUT, seconds)


def _ready(sock: socket.socket | SharedTls, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class ThreadRuntime:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._streams: weakref.WeakSet[ThreadStream] = weakref.WeakSet()

    def if_free(self, work: Callable[[], object]) -> bool:
        if not self.lock.acquire(blocking=False):
            return False
        try:
            work()
        finally:
            self.lock.release()
        return True

    now = staticmethod(time.monotonic)  # without a frame of its own: it is asked for each event of a group

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def checkpoint(self) -> None:
        """Does nothing: the system switches threads."""

    def spawn(self, work: Callable[[], Work[None]], name: str) -> None:
        thread = threading.Thread(target=lambda: run(work()), name=name, daemon=True)
        with self.lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()

    def join(self, seconds: float) -> None:
        """Waits up to `seconds` until all spawned threads have ended. They end when their link is closed."""
        deadline = self.now() + seconds
        with self.lock:  # another thread may just have added one that is not started yet
            threads = [each for each in self._threads if each.is_alive()]  # an interrupt may come before a start
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - self.now()))

    async def dial(self, host: str, port: int, seconds: float, tls: ssl.SSLContext | None = None) -> ThreadStream:
        sock = socket.create_connection((host, port), timeout=seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = ThreadStream(sock if tls is None else _with_tls(sock, tls, host, seconds))
        with self.lock:
            self._streams.add(stream)
        return stream

    def disown(self) -> None:
        """For a forked child process: leaves every connection to the parent."""
        for stream in self._streams:
            stream.disown()
