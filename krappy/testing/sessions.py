"""Sessions without a connection, whose peer takes everything at once: to call a handler as the server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    answer_bytes = 32 << 20

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()

    async def writable(self) -> None:
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def answering(self, limit: int) -> AsyncIterator[int]:
        yield min(limit, self.answer_bytes)


def native_session(broker: Any, client: str = CLIENT) -> Session:
    """`broker`: a `krappy.broker.broker.Broker`, or whatever has of it what the handler asks for."""
    return Session(broker, client, WillingPeer(), MAX_FRAME, Allowance(1000))


def kafka_session(broker: Any, client: str = CLIENT, listener: str = "PLAINTEXT") -> KafkaSession:
    """As `native_session`. The client is told that the broker is at 127.0.0.1:9092."""
    return KafkaSession(broker, client, listener, NodeInfo(broker.id, "127.0.0.1", 9092, None), WillingPeer())
