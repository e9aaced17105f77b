"""Which handler serves which message of the native protocol.

A handler is a function of (session, request). It returns its Answer; or a Later, when other code will finish it; or (an
`async def`) a coroutine, which runs as a task of its own. A streaming handler gets a third argument, the stream. It
sends any number of answers through it and returns the last one.

    @serves(messages.Get, needs=needs.topic(Op.READ))
    def get(session: SessionPort, request: messages.Get) -> messages.Got: …

`needs` lists the operations that the handler asks of `session.access`: exactly these, for what the request names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, NamedTuple, TypeVar, overload

from krappy.core.security.operations import Need
from krappy.ports import SessionPort, StreamPort
from krappy.waiting import Later
from krappy.wire.messages import Answer, Request

Answering = Answer | Later[Any] | Coroutine[Any, Any, Answer]  # a Later of an Answer
R = TypeVar("R", bound=Request)
A = TypeVar("A", bound=Answering)
H = TypeVar("H", bound=Callable[..., Answering])


class Served(NamedTuple):
    handler: Callable[..., Answering]
    streams: bool
    needs: tuple[Need, ...]


class Registry:
    def __init__(self) -> None:
        self.served: dict[type[Request], Served] = {}

    @overload
    def serves(
        self, message: type[R], *, needs: tuple[Need, ...]
    ) -> Callable[[Callable[[SessionPort, R], A]], Callable[[SessionPort, R], A]]: ...
    @overload
    def serves(
        self, message: type[R], *, needs: tuple[Need, ...], streams: Literal[True]
    ) -> Callable[[Callable[[SessionPort, R, StreamPort], A]], Callable[[SessionPort, R, StreamPort], A]]: ...
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
