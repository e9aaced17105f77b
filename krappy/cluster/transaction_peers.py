"""Asks other brokers for their part in transactions: to write markers, and whether a partition is in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from krappy.cluster.followed import named_code
from krappy.cluster.peer_links import PeerLinks
from krappy.cluster.peers import Message
from krappy.core.cluster.image import Image
from krappy.errors import (
    BrokerError,
    CoordinatorFenced,
    InvalidTransaction,
    KrappyError,
    ProducerFenced,
    ProtocolError,
)
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

PATIENCE_S = 5.0  # for an answer
VERIFY_SINCE = 4  # of AddPartitionsToTxn: the first that can verify only (KIP-890)
ERRORS: dict[int, type[KrappyError]] = {
    Code.TRANSACTION_COORDINATOR_FENCED: CoordinatorFenced,
    Code.INVALID_PRODUCER_EPOCH: ProducerFenced,
    Code.PRODUCER_FENCED: ProducerFenced,
    Code.INVALID_TXN_STATE: InvalidTransaction,
}


class TransactionPeers:
    """Implements `TransactionPeersPort`."""

    def __init__(self, image: Callable[[], Image], listener: str) -> None:
        """`listener`: the name of the listener by which brokers reach each other."""
        self._markers = PeerLinks(image, listener, "krappy-markers", timeout_s=PATIENCE_S)
        self._questions = PeerLinks(image, listener, "krappy-verification", timeout_s=PATIENCE_S)

    async def write_markers(
        self,
        broker: int,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        commit: bool,
        partitions: Sequence[TopicPartition],
    ) -> list[KrappyError | None]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        marker = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": commit,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
            "coordinator_epoch": coordinator_epoch,
        }
        answer = await self._markers.to(broker).ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        found = {
            TopicPartition(topic["name"], each["partition_index"]): each["error_code"]
            for told in answer["markers"]
            for topic in told["topics"]
            for each in topic["partitions"]
        }
        return [_error(broker, at, found.get(at, Code.UNKNOWN_SERVER_ERROR)) for at in partitions]

    async def verify(self, broker: int, name: str, producer_id: int, epoch: int, at: TopicPartition) -> None:
        transaction = {
            "transactional_id": name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "verify_only": True,
            "topics": [{"name": at.topic, "partitions": [at.partition]}],
        }
        body = {"transactions": [transaction]}
        link = self._questions.to(broker)
        answer = await link.ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, least=VERIFY_SINCE)
        error = _error(broker, at, answer["error_code"] or _told(answer))
        if error is not None:
            raise error


def _told(answer: Message) -> int:
    """The code of the one partition that was asked for."""
    for transaction in answer["results_by_transaction"]:
        for topic in transaction["topic_results"]:
            for each in topic["results_by_partition"]:
                return int(each["partition_error_code"])
    raise ProtocolError("an answer to AddPartitionsToTxn without the partition that was asked for")


def _error(broker: int, at: TopicPartition, code: int) -> KrappyError | None:
    if code == Code.NONE:
        return None
    return ERRORS.get(code, BrokerError)(f"broker {broker} answers {named_code(code)} for {at}")
