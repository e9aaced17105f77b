"""Which handler serves which API of Kafka's protocol, in all versions that the schema has. ApiVersions advertises what
is registered.

A handler is a function of (session, request, version); `request` is the decoded message, a dict, and so is the answer.
It returns

- the answer, which is the fastest way;
- a Later of it, when other code will finish the work: the connection's next requests begin meanwhile;
- a coroutine (an `async def`): it runs as a task, and the connection's next request begins when it has ended, as in
  Kafka (`SocketServer` mutes a channel), so requests take effect in their order;
- None, or a Later or coroutine whose result is None: there is no answer (Produce with acks=0).

Answers leave in the order of the requests, whatever the handlers return. A KrappyError that a handler raises closes the
connection; a handler puts an error that has a code of Kafka's into its answer.

    @serves(ApiKey.FETCH, needs=needs.topic(Op.READ))
    def fetch(session: KafkaSessionPort, request: Message, version: int) -> Message: …

`needs` lists the operations that the handler asks of `session.access`: exactly these, for what the request names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

from krappy.core.security.operations import Need
from krappy.ports import KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import RANGES, ApiKey

Message = dict[str, Any]
Now = Message | None  # None: there is no answer
Answer = Now | Later[Message] | Later[Now] | Coroutine[Any, Any, Now]
Handler = Callable[[KafkaSessionPort, Message, int], Answer]
H = TypeVar("H", bound=Handler)


class ServedApi(NamedTuple):
    handler: Handler
    low: int  # the versions served, both included
    high: int
    needs: tuple[Need, ...]


class KafkaRegistry:
    def __init__(self) -> None:
        self.served: dict[int, ServedApi] = {}

    def serves(self, api_key: ApiKey, *, needs: tuple[Need, ...]) -> Callable[[H], H]:
        """Decorator: the function serves an API. Raises ValueError when the API has a handler already."""

        def register(handler: H) -> H:
            if api_key in self.served:
                raise ValueError(f"{api_key.name} has a handler already")
            self.served[int(api_key)] = ServedApi(handler, *RANGES[api_key], needs)
            return handler

        return register

    def find(self, api_key: int, version: int) -> Handler | None:
        """The handler; None when this API, or this version of it, is not served."""
        served = self.served.get(api_key)
        return served.handler if served is not None and served.low <= version <= served.high else None

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(API key, lowest version, highest version), by key."""
        for api_key in sorted(self.served):
            served = self.served[api_key]
            yield api_key, served.low, served.high


REGISTRY = KafkaRegistry()
serves = REGISTRY.serves
