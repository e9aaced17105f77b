"""What handlers see of one connection of Kafka's protocol (`krappy.ports.KafkaSessionPort`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from krappy.ports import NodeInfo
from krappy.server.session import Paced, Peer
from krappy.waiting import Later


class KafkaSession(Paced):
    """`principal` is who the peer is for authorisation (nobody yet); `state` is the handlers', for the connection."""

    def __init__(self, broker: Any, client: str, node: NodeInfo, peer: Peer) -> None:
        super().__init__(peer)
        self.broker = broker
        self.client = client
        self.client_host = client.rpartition(":")[0]
        self.client_id: str | None = None  # of the request being handled
        self.node = node
        self.principal: str | None = None
        self.state: dict[str, Any] = {}
        self.on_close: list[Callable[[], None]] = []
        self.closed = False

    @property
    def cluster_id(self) -> str:
        return str(self.broker.cluster_id)

    def gather(self, laters: Sequence[Later[Any]], finish: Callable[[list[Any]], Any]) -> Later[Any]:
        """A Later of `finish(results)`, once all are there; a result is a value, or the exception instead of it."""
        gathered: Later[Any] = Later(sum(later.cost for later in laters))
        results: list[Any] = [None] * len(laters)
        missing = len(laters)

        def took(index: int, value: Any, error: Exception | None) -> None:
            nonlocal missing
            results[index] = value if error is None else error
            missing -= 1
            if not missing:
                try:
                    gathered.resolve(finish(results))
                except Exception as fault:
                    gathered.reject(fault)

        if not laters:
            gathered.resolve(finish(results))
        for index, later in enumerate(laters):
            later.then(lambda value, error, index=index: took(index, value, error))  # type: ignore[misc]
        return gathered

    def describe(self) -> dict[str, Any]:
        """Who the peer is: in Kafka's protocol every request says all that it is about, so nothing is registered."""
        return {"client_id": self.client_id, "registrations": []}

    def close(self) -> None:
        self.closed = True
        closing, self.on_close = self.on_close, []
        for close in closing:
            close()
        self.state.clear()
