"""Appends to logs that other brokers lead."""

from __future__ import annotations

from collections.abc import Callable

from krappy.cluster.followed import named_code
from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peer_links import PeerLinks
from krappy.cluster.peers import PeerLink
from krappy.cluster.transaction_peers import PATIENCE_S, TransactionPeers
from krappy.core.cluster.image import Image
from krappy.core.staging import PUBLISHER
from krappy.errors import BrokerError, ProtocolError, RecordTooLarge
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

ALL_IN_SYNC = -1  # acks
STAGED_PATIENCE_S = 20.0  # for a batch of a staged job: an error makes the whole job be published anew


class LogPeers(TransactionPeers):
    """Implements `LogPeersPort` as well."""

    def __init__(self, image: Callable[[], Image], way: InterBroker) -> None:
        super().__init__(image, way)
        self._events = PeerLinks(image, way, "krappy-events", timeout_s=PATIENCE_S)
        self._staged = PeerLinks(image, way, "krappy-staged", timeout_s=STAGED_PATIENCE_S)

    async def append(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        await _append(self._events.to(broker), broker, at, topic_id, batch, PATIENCE_S)

    async def append_staged(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> int:
        return await _append(self._staged.to(broker), broker, at, topic_id, batch, STAGED_PATIENCE_S, PUBLISHER)


async def _append(
    link: PeerLink,
    broker: int,
    at: TopicPartition,
    topic_id: bytes,
    batch: bytes,
    patience_s: float,
    transactional_id: str | None = None,
) -> int:
    partition = {"index": at.partition, "records": batch}
    body = {
        "transactional_id": transactional_id,
        "acks": ALL_IN_SYNC,
        "timeout_ms": int(1000 * patience_s),
        "topic_data": [{"name": at.topic, "topic_id": topic_id, "partition_data": [partition]}],
    }
    answer = await link.ask(ApiKey.PRODUCE, body)
    for topic in answer["responses"]:
        for found in topic["partition_responses"]:
            code: int = found["error_code"]
            if code != Code.NONE:
                refusal = RecordTooLarge if code == Code.MESSAGE_TOO_LARGE else BrokerError
                raise refusal(f"broker {broker} answers {named_code(code)} for {at}")
            offset: int = found["base_offset"]
            return offset
    raise ProtocolError("an answer to Produce without the partition that was asked for")
