"""Appends to logs that other brokers lead."""

from __future__ import annotations

from collections.abc import Callable

from krappy.cluster.followed import named_code
from krappy.cluster.peer_links import PeerLinks
from krappy.cluster.transaction_peers import PATIENCE_S, TransactionPeers
from krappy.core.cluster.image import Image
from krappy.errors import BrokerError, ProtocolError
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

ALL_IN_SYNC = -1  # acks


class LogPeers(TransactionPeers):
    """Implements `LogPeersPort` as well."""

    def __init__(self, image: Callable[[], Image], listener: str) -> None:
        super().__init__(image, listener)
        self._events = PeerLinks(image, listener, "krappy-events", timeout_s=PATIENCE_S)

    async def append(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        partition = {"index": at.partition, "records": batch}
        body = {
            "transactional_id": None,
            "acks": ALL_IN_SYNC,
            "timeout_ms": int(1000 * PATIENCE_S),
            "topic_data": [{"name": at.topic, "topic_id": topic_id, "partition_data": [partition]}],
        }
        answer = await self._events.to(broker).ask(ApiKey.PRODUCE, body)
        for topic in answer["responses"]:
            for found in topic["partition_responses"]:
                if found["error_code"] != Code.NONE:
                    raise BrokerError(f"broker {broker} answers {named_code(found['error_code'])} for {at}")
                return
        raise ProtocolError("an answer to Produce without the partition that was asked for")
