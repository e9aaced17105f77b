"""Sessions without a connection, for calling handlers as the server does. Their peer accepts everything at once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import trio

from krappy.ports import NodeInfo
from krappy.server.kafka_session import KafkaSession
from krappy.server.session import Allowance, Session

CLIENT = "127.0.0.1:1"
MAX_FRAME = 1 << 20


class WillingPeer:
    """The connection's side of a session (`krappy.server.session.Peer`)."""

    ready = True
    answer_bytes = read_bytes = 32 << 20
    proved_for = math.inf
    throttled = 0.0

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()

    async def writable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def affordable(self, stands: Callable[[], bool] = lambda: True) -> None:
        await trio.lowlevel.checkpoint()

    def reading(self, limit: int) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def throttle(self, seconds: float) -> None:
        pass

    @asynccontextmanager
    async def answering(self, limit: int) -> AsyncIterator[int]:
        yield min(limit, self.answer_bytes)


def native_session(broker: Any, client: str = CLIENT) -> Session:
    """A session of the native protocol. `broker`: a `krappy.broker.broker.Broker`, or an object with the parts of it
    that the handler uses. `client`: the peer's HOST:PORT."""
    return Session(broker, client, WillingPeer(), MAX_FRAME, Allowance(1000))


def kafka_session(broker: Any, client: str = CLIENT, listener: str = "PLAINTEXT") -> KafkaSession:
    """A session of Kafka's protocol, as `native_session`. It advertises the broker at 127.0.0.1:9092."""
    return KafkaSession(broker, client, listener, NodeInfo(broker.id, "127.0.0.1", 9092, None), WillingPeer())
