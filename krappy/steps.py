"""How long the steps of a coroutine take: what its task does on the event loop, without what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def timed(work: Coroutine[Any, Any, T], clock: Callable[[], float], took: Callable[[float], None]) -> T:
    """Awaits `work`. `took(seconds)` is called after each of its steps; `clock`: gives seconds."""
    try:
        result: T = await _Steps(work, clock, took)
        return result
    finally:
        work.close()  # it may not have begun


class _Steps:
    def __init__(
        self, work: Coroutine[Any, Any, Any], clock: Callable[[], float], took: Callable[[float], None]
    ) -> None:
        self._work = work
        self._clock = clock
        self._took = took

    def __await__(self) -> Generator[Any, Any, Any]:
        """As `yield from` the coroutine's own `__await__` (PEP 380)."""
        value: Any = None
        error: BaseException | None = None
        while True:
            began = self._clock()
            try:
                waits_for = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                self._took(self._clock() - began)
            value = error = None
            try:
                value = yield waits_for
            except BaseException as thrown:
                error = thrown
