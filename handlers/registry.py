"""Which handler serves which message of the native protocol.

A handler is a function of (session, request). It returns its Answer; or a Later, when other code will finish it; or (an
`async def`) a coroutine, which runs as a task of its own. A streaming handler gets a third argument, the stream. It
sends any number of answers through it and returns the last one.

    @serves(messages.Get, needs=needs.topic(Op.READ))
    def get(session: SessionPort, request: messages.Get) -> messages.Got: …

`needs` lists the operations that the handler asks of `session.access`: exactly these, for what the request names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from krappy.core.security.operations import Need
from krappy.wire.messages import Request

H = TypeVar("H", bound=Callable[..., Any])


class Served(NamedTuple):
    handler: Callable[..., Any]
    streams: bool
    needs: tuple[Need, ...]


class Registry:
    def __init__(self) -> None:
        self.served: dict[type[Request], Served] = {}

    def serves(self, message: type[Request], *, needs: tuple[Need, ...], streams: bool = False) -> Callable[[H], H]:
        """Decorator: the function serves `message`. Raises ValueError when the message has a handler already."""

        def register(handler: H) -> H:
            if message in self.served:
                raise ValueError(f"{message.__name__} has a handler already")
            self.served[message] = Served(handler, streams, needs)
            return handler

        return register


REGISTRY = Registry()
serves = REGISTRY.serves
