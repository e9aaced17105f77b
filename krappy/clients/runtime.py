"""What the shared code asks of its surroundings: signals, time, streams, tasks. Two runtimes exist: `krappy.client`
has one on anyio, `krappy.blocking` one on threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R", contravariant=True)
Work = Coroutine[Any, Any, T]


class ClientSignal(Protocol):
    """Is set once, by anyone; lets everyone who waits go on."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, seconds: float | None = None) -> bool:
        """Whether it is set, after waiting `seconds` at most (None: for as long as it takes)."""
        ...


class ClientStream(Protocol):
    """A connection. Its methods raise OSError when it is gone."""

    async def receive(self, seconds: float) -> bytes | None:
        """The next bytes, b"" at their end, None when none came for `seconds`."""
        ...

    def send(self, data: bytes, hurry: bool = True, patience: float | None = None) -> bool:
        """Takes bytes to be sent, in order. It never suspends: it queues what the socket does not take at once, or
        (threads) blocks. Without `hurry` they may wait for company for a turn of the event loop.

        False, and nothing was taken, when the socket has no room for `patience` seconds; None: as long as it lasts."""
        ...

    @property
    def backlog(self) -> int:
        """Bytes taken that the socket did not take yet."""
        ...

    async def drained(self, seconds: float | None = None) -> bool:
        """Waits until the backlog is small; whether it is, or the connection has ended, within that time."""
        ...

    def end(self) -> None:
        """Ends the connection, for anyone: a `receive` that waits comes back."""
        ...

    def close(self) -> None:
        """Ends it and gives back what it holds, for whoever receives."""
        ...


class Promise(Protocol[R]):
    """The result of something sent, to be set once. `concurrent.futures.Future` is one."""

    def set_result(self, result: R) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


class ClientRuntime(Protocol):
    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while shared state changes; re-entrant."""
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
        """Lets others run, where that is needed."""
        ...

    async def dial(self, host: str, port: int, seconds: float) -> ClientStream:
        """A new connection. Raises OSError (TimeoutError is one)."""
        ...

    def spawn(self, work: Callable[[], Work[None]], name: str) -> None:
        """Runs `work` beside the caller until it returns or the client is closed."""
        ...


def run(work: Work[T]) -> T:
    """The result of a coroutine that never suspends because everything that it awaits blocks instead."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a blocking client's coroutine suspended; it was given something of an event loop")
