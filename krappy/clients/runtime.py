"""What the shared code needs from its surroundings: signals, time, streams, tasks. There are two runtimes:
`krappy.client` has one on anyio, `krappy.blocking` one on threads."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R", contravariant=True)
Work = Coroutine[Any, Any, T]


class ClientSignal(Protocol):
    """An event that is set once, by any task or thread, and then wakes everyone who waits for it."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits up to `seconds` (None: without a limit). Returns whether the signal is set."""
        ...


class ClientStream(Protocol):
    """A connection. `receive` and `send` raise OSError when it is lost."""

    async def receive(self, seconds: float) -> bytes | None:
        """The next bytes; b"" when the peer has closed; None when nothing came for `seconds`."""
        ...

    def send(self, data: bytes, hurry: bool = True, patience: float | None = None) -> bool:
        """Sends bytes, in order. It never suspends: what the socket does not take at once is queued, or (threads) the
        call blocks for `patience` seconds (None: no limit), and what is left of these bytes then goes before the next.
        Without `hurry` the bytes may wait one turn of the event loop, to be sent together with others.

        Returns False, having taken nothing, when the socket has no room for `patience` seconds."""
        ...

    async def drained(self, seconds: float | None = None) -> bool:
        """Waits until little is left to be sent, or the connection has ended, so that small requests need not wait
        behind it. False when `seconds` passed before."""
        ...

    def end(self) -> None:
        """Ends the connection. Any task or thread may call it; a waiting `receive` returns."""
        ...

    def close(self) -> None:
        """Ends the connection and frees the socket. Only the task or thread that receives may call it."""
        ...


class Promise(Protocol[R]):
    """Takes the result of something sent, once. `concurrent.futures.Future` is one."""

    def set_result(self, result: R) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


class ClientRuntime(Protocol):
    """The surroundings of one client. Only its implementations touch sockets, tasks, threads and the clock."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while shared state changes; re-entrant."""
        ...

    def if_free(self, work: Callable[[], object]) -> bool:
        """Runs `work`, which takes the lock, unless another thread has it; whether it ran. For finalizers: they come in
        any thread, between any two steps, even in a thread that the one with the lock has started and waits for."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def signal(self) -> ClientSignal: ...

    async def sleep(self, seconds: float) -> None: ...

    async def checkpoint(self) -> None:
        """Lets other tasks run. Does nothing on threads."""
        ...

    async def dial(self, host: str, port: int, seconds: float, tls: ssl.SSLContext | None = None) -> ClientStream:
        """A new connection, after the handshake if it has TLS. Raises OSError (TimeoutError and ssl.SSLError are)."""
        ...

    def spawn(self, work: Callable[[], Work[None]], name: str) -> None:
        """Runs `work` beside the caller until it returns or the client is closed."""
        ...


def run(work: Work[T]) -> T:
    """Runs a coroutine whose awaits block instead of suspending, and returns its result. Raises RuntimeError when it
    suspends all the same."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a blocking client's coroutine suspended; it awaited something of an event loop")
