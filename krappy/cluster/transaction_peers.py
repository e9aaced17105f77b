"""Asks other brokers for their part in transactions: to write markers, and whether a partition is in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from krappy.cluster.followed import named_code
from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peer_links import TOGETHER, PeerLinks
from krappy.cluster.peers import Message
from krappy.core.cluster.image import Image
from krappy.errors import (
    BrokerError,
    CoordinatorFenced,
    InvalidTransaction,
    KrappyError,
    ProducerFenced,
    ProtocolError,
    TransactionAbortable,
    UnknownProducerMapping,
)
from krappy.ports import TransactionEnd
from krappy.ports.audit import whose
from krappy.settings.topic import TRANSACTIONS
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

PATIENCE_S = 5.0  # for an answer
BUMPED = 2  # as the version of a transaction: its end has raised the producer's epoch (KIP-1228)
VERIFY_SINCE = 4  # of AddPartitionsToTxn: the first that can verify only (KIP-890)
ERRORS: dict[int, type[KrappyError]] = {
    Code.TRANSACTION_COORDINATOR_FENCED: CoordinatorFenced,
    Code.INVALID_PRODUCER_EPOCH: ProducerFenced,
    Code.PRODUCER_FENCED: ProducerFenced,
    Code.INVALID_TXN_STATE: InvalidTransaction,
    Code.TRANSACTION_ABORTABLE: TransactionAbortable,
    Code.INVALID_PRODUCER_ID_MAPPING: UnknownProducerMapping,
}


class TransactionPeers:
    """Implements `TransactionPeersPort`."""

    def __init__(self, image: Callable[[], Image], way: InterBroker) -> None:
        self._markers = PeerLinks(image, way, "krappy-markers", timeout_s=PATIENCE_S)
        self._questions = PeerLinks(image, way, "krappy-verification", timeout_s=PATIENCE_S, together=TOGETHER)

    async def write_markers(
        self, broker: int, end: TransactionEnd, partitions: Sequence[TopicPartition]
    ) -> list[KrappyError | None]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        marker = {
            "producer_id": end.producer_id,
            "producer_epoch": end.epoch,
            "transaction_result": end.commit,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
            "coordinator_epoch": end.coordinator_epoch,
            "transaction_version": BUMPED if end.bumped else 0,
            "transaction_number": end.number,
        }
        answer = await self._markers.to(broker).ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        found = {
            TopicPartition(topic["name"], each["partition_index"]): each["error_code"]
            for told in answer["markers"]
            for topic in told["topics"]
            for each in topic["partitions"]
        }
        return [_error(broker, at, found.get(at, Code.UNKNOWN_SERVER_ERROR)) for at in partitions]

    async def verify(
        self, broker: int, name: str, producer_id: int, epoch: int, at: TopicPartition, *, adds: bool
    ) -> int:
        transaction = {
            "transactional_id": name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "verify_only": not adds,
            "topics": [{"name": at.topic, "partitions": [at.partition]}],
            "owner": whose(),
        }
        body = {"transactions": [transaction]}
        link = self._questions.to_coordinator(broker, TRANSACTIONS, name)
        answer = await link.ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, least=VERIFY_SINCE)
        code, number = (answer["error_code"], -1) if answer["error_code"] else _told(answer)
        error = _error(broker, at, code)
        if error is not None:
            raise error
        return number


def _told(answer: Message) -> tuple[int, int]:
    """The code of the one partition that was asked for, and the number of the transaction."""
    for transaction in answer["results_by_transaction"]:
        for topic in transaction["topic_results"]:
            for each in topic["results_by_partition"]:
                return each["partition_error_code"], transaction["transaction_number"]
    raise ProtocolError("an answer to AddPartitionsToTxn without the partition that was asked for")


def _error(broker: int, at: TopicPartition, code: int) -> KrappyError | None:
    if code == Code.NONE:
        return None
    return ERRORS.get(code, BrokerError)(f"broker {broker} answers {named_code(code)} for {at}")
