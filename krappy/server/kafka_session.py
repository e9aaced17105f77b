"""The session of one connection of Kafka's protocol (`krappy.ports.KafkaSessionPort`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import trio

from krappy.core.cluster.image import Registration
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import KrappyError
from krappy.ports import BrokerPort, NodeInfo, PacedPort, SessionFacts
from krappy.server.session import Identified
from krappy.server.throttled import HELD
from krappy.waiting import Later

T = TypeVar("T")
S = TypeVar("S")
UNANSWERED = AssertionError("not answered yet")


class KafkaSession(Identified):
    """`state`: what handlers keep for the connection."""

    def __init__(self, broker: BrokerPort, client: str, listener: str, own: NodeInfo, peer: PacedPort) -> None:
        """`listener`: the name of the listener that the peer used. `own`: this broker as the peer sees it."""
        super().__init__(broker, peer, client.rpartition(":")[0], listener)
        self.client = client
        self.client_host = client.rpartition(":")[0]
        self.client_id: str | None = None  # of the request being handled
        self.listener = listener
        self._own = own
        self._told: tuple[Mapping[int, Registration] | None, Mapping[int, NodeInfo]] = (None, {})
        self.state: dict[str, Any] = {}
        self.on_close: list[Callable[[], None]] = []
        self.closed = False
        self.knows_quotas = True
        self._says_broker = False
        self.refusal: KrappyError | None = None

    @property
    def payer(self) -> Payer:
        return Payer(self.principal.name, self.client_id or "")

    @property
    def is_broker(self) -> bool:
        """Whether the peer is another broker, which no quota limits: it has said so, and is still allowed to be one."""
        return self._says_broker and self.access.may(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)

    @is_broker.setter
    def is_broker(self, says_broker: bool) -> None:
        self._says_broker = says_broker

    def mutate(self, partitions: int) -> None:
        self._mutate(partitions, strict=self.knows_quotas)

    async def until_mutable(self) -> None:
        quotas, end = self.broker.client_quotas, trio.current_time() + HELD
        while quotas.on and not self.knows_quotas and (wait := quotas.wait(QuotaKey.MUTATION, self.payer)):
            left = end - trio.current_time()
            if left <= 0:
                return
            await trio.sleep(min(wait, left))

    def fetch_share(self) -> int | None:
        quotas = self.broker.client_quotas
        return quotas.share(QuotaKey.CONSUME, self.payer) if quotas.on and not self.is_broker else None

    def nodes(self) -> Mapping[int, NodeInfo]:
        """The registered brokers that have a listener of the same name as the peer's, by their ids."""
        brokers = self.broker.image.brokers
        if self._told[0] is not brokers:
            self._told = brokers, {id: node for id, each in brokers.items() if (node := self._node(each)) is not None}
        return self._told[1]

    def _node(self, broker: Registration) -> NodeInfo | None:
        if broker.id == self._own.node_id:
            return self._own
        endpoint = broker.endpoints.get(self.listener)
        return None if endpoint is None else NodeInfo(broker.id, *endpoint, broker.rack)

    def gather(self, laters: Sequence[Later[T]], finish: Callable[[list[T | Exception]], S]) -> Later[S]:
        """A Later of `finish(results)`, once all `laters` have ended. A result is a value or an exception."""
        gathered: Later[S] = Later(sum(later.cost for later in laters))
        results: list[T | Exception] = [UNANSWERED] * len(laters)
        missing = len(laters)

        def took(index: int, value: T | None, error: Exception | None) -> None:
            nonlocal missing
            results[index] = cast(T, value) if error is None else error
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

    def describe(self) -> SessionFacts:
        """The peer's client id. In Kafka's protocol nothing is registered: each request is complete in itself."""
        return {"client_id": self.client_id, "registrations": []}

    def close(self) -> None:
        self.closed = True
        closing, self.on_close = self.on_close, []
        for close in closing:
            close()
        self.state.clear()
