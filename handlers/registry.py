"""Which handler serves which message: what is registered here is what the broker speaks.

A handler is a function of (session, request). It returns its Answer when it has it, a Later when somebody else will
finish it, or (an `async def`) a coroutine, which then runs as a task of its own. A streaming handler is given a
third argument, the stream, sends any number of answers through it, and returns the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krappy.wire.messages import Request

Handler = Callable[..., Any]


class Registry:
    def __init__(self) -> None:
        self._handlers: dict[type[Request], tuple[Handler, bool]] = {}

    def register(self, message: type[Request], handler: Handler, *, streams: bool = False) -> None:
        """Serves `message` with `handler`. Raises ValueError when it is served already."""
        if message in self._handlers:
            raise ValueError(f"{message.__name__} has a handler already")
        self._handlers[message] = (handler, streams)

    def find(self, message: type[Request]) -> tuple[Handler, bool]:
        return self._handlers[message]

    def __contains__(self, message: type[Request]) -> bool:
        return message in self._handlers
