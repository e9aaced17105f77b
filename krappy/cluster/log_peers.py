"""Appends to logs that other brokers lead."""

from __future__ import annotations

from krappy.cluster.followed import named_code
from krappy.cluster.transaction_peers import PATIENCE_S, TransactionPeers
from krappy.errors import BrokerError
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

ALL_IN_SYNC = -1  # acks


class LogPeers(TransactionPeers):
    """Implements `LogPeersPort` as well."""

    async def append(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        partition = {"index": at.partition, "records": batch}
        body = {
            "transactional_id": None,
            "acks": ALL_IN_SYNC,
            "timeout_ms": int(1000 * PATIENCE_S),
            "topic_data": [{"name": at.topic, "topic_id": topic_id, "partition_data": [partition]}],
        }
        answer = await self._markers.to(broker).ask(ApiKey.PRODUCE, body)
        [topic] = answer["responses"]
        [found] = topic["partition_responses"]
        if found["error_code"] != Code.NONE:
            raise BrokerError(f"broker {broker} answers {named_code(found['error_code'])} for {at}")
