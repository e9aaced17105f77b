"""Appends to logs that other brokers lead, and reads them; and what else other brokers are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from krappy.cluster.followed import named_code
from krappy.cluster.inter_broker import InterBroker
from krappy.cluster.peer_links import TOGETHER, PeerLinks
from krappy.cluster.peers import LARGEST, Message, PeerLink
from krappy.cluster.share_peers import SharePeers
from krappy.cluster.transaction_peers import PATIENCE_S, TransactionPeers
from krappy.core.cluster.image import Image
from krappy.core.security.audit import AUDITOR
from krappy.core.stability import aborted_in, without
from krappy.core.staging import PUBLISHER
from krappy.errors import (
    BrokerError,
    ConnectionLost,
    CorruptBatch,
    KrappyError,
    NotLeader,
    OffsetOutOfRange,
    ProtocolError,
    RecordTooLarge,
)
from krappy.ports.cluster import PeerRead, Place
from krappy.records import batch as batches
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

ALL_IN_SYNC = -1  # acks
CONSUMER = -1  # as the id of a replica
READ_COMMITTED = 1
LARGEST_ANSWER = 8 << 20  # bytes of an answer to Fetch, unless a single batch is larger
TOPIC_IDS_SINCE = 13  # of Fetch
ISOLATION_SINCE = 2  # of ListOffsets
CURRENT_EPOCH_SINCE = 2  # of OffsetForLeaderEpoch
REFUSALS: dict[int, type[KrappyError]] = {
    Code.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    Code.NOT_LEADER_OR_FOLLOWER: NotLeader,
    Code.UNKNOWN_TOPIC_OR_PARTITION: NotLeader,  # the broker does not know yet that it leads it, or leads it no more
    Code.UNKNOWN_TOPIC_ID: NotLeader,
    Code.FENCED_LEADER_EPOCH: NotLeader,
    Code.UNKNOWN_LEADER_EPOCH: NotLeader,
}
STAGED_PATIENCE_S = 20.0  # for a batch of a staged job: an error makes the whole job be published anew


class LogPeers(TransactionPeers, SharePeers):
    """Implements `LogPeersPort` as well."""

    def __init__(self, image: Callable[[], Image], way: InterBroker, largest_batch: int = LARGEST) -> None:
        """`largest_batch`: bytes of the largest batch that a leader may have."""
        TransactionPeers.__init__(self, image, way)
        SharePeers.__init__(self, image, way)
        most = LARGEST_ANSWER + largest_batch
        self._news = PeerLinks(image, way, "krappy-group-news", timeout_s=PATIENCE_S, largest=most)
        self._reads = PeerLinks(
            *(image, way, "krappy-group-reads"), timeout_s=PATIENCE_S, largest=most, together=TOGETHER
        )
        self._events = PeerLinks(image, way, "krappy-events", timeout_s=PATIENCE_S)
        self._staged = PeerLinks(image, way, "krappy-staged", timeout_s=STAGED_PATIENCE_S)

    async def fetch(
        self, broker: int, wanted: Mapping[Place, tuple[int, int]], max_bytes: int, wait_s: float
    ) -> dict[Place, PeerRead | KrappyError]:
        topics: dict[bytes, list[Message]] = {}
        for (at, topic_id), (offset, epoch) in wanted.items():
            row = {"partition": at.partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
            topics.setdefault(topic_id, []).append({**row, "current_leader_epoch": epoch})
        body = {
            "max_wait_ms": int(1000 * wait_s),
            "min_bytes": 1,
            "max_bytes": LARGEST_ANSWER,
            "isolation_level": READ_COMMITTED,
            "topics": [{"topic_id": id, "partitions": partitions} for id, partitions in topics.items()],
            "forgotten_topics_data": [],
        }
        if wait_s:
            answer = await self._news.to(broker).ask(ApiKey.FETCH, body, least=TOPIC_IDS_SINCE, held_s=wait_s)
        else:
            answer = await self._read_from(broker, ApiKey.FETCH, body, TOPIC_IDS_SINCE)
        if answer["error_code"]:
            raise BrokerError(f"broker {broker} answers {named_code(answer['error_code'])}")
        found = {
            (topic["topic_id"], row["partition_index"]): row
            for topic in answer["responses"]
            for row in topic["partitions"]
        }
        return {
            (at, topic_id): _read(broker, at, *from_, found[topic_id, at.partition])
            for (at, topic_id), from_ in wanted.items()
            if (topic_id, at.partition) in found
        }

    async def offsets_at(
        self, broker: int, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int | KrappyError]:
        topics: dict[str, list[Message]] = {}
        for at in partitions:
            topics.setdefault(at.topic, []).append({"partition_index": at.partition, "timestamp": timestamp})
        asked = [{"name": name, "partitions": rows} for name, rows in topics.items()]
        body = {"replica_id": CONSUMER, "isolation_level": READ_COMMITTED, "topics": asked}
        answer = await self._read_from(broker, ApiKey.LIST_OFFSETS, body, ISOLATION_SINCE)
        found = {
            TopicPartition(topic["name"], row["partition_index"]): row
            for topic in answer["topics"]
            for row in topic["partitions"]
        }
        return {
            at: _refusal(broker, at, row["error_code"]) if row["error_code"] else int(row["offset"])
            for at, row in found.items()
        }

    async def end_of_epoch(self, broker: int, at: TopicPartition, current: int, epoch: int) -> tuple[int, int] | None:
        asked = {"partition": at.partition, "current_leader_epoch": current, "leader_epoch": epoch}
        body = {"replica_id": CONSUMER, "topics": [{"topic": at.topic, "partitions": [asked]}]}
        answer = await self._read_from(broker, ApiKey.OFFSET_FOR_LEADER_EPOCH, body, CURRENT_EPOCH_SINCE)
        [row] = (row for topic in answer["topics"] for row in topic["partitions"])
        if row["error_code"]:
            raise _refusal(broker, at, row["error_code"])
        return (row["leader_epoch"], row["end_offset"]) if row["end_offset"] >= 0 else None

    async def _read_from(self, broker: int, api_key: ApiKey, body: Message, least: int) -> Message:
        """Asks twice, if need be: the broker may have been started anew since this connection was used last."""
        link = self._reads.to(broker)
        try:
            return await link.ask(api_key, body, least=least)
        except ConnectionLost:
            return await link.ask(api_key, body, least=least)

    async def append(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        await _append(self._events.to(broker, at), broker, at, topic_id, batch, PATIENCE_S)

    async def append_audit(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> None:
        await _append(self._events.to(broker, at), broker, at, topic_id, batch, PATIENCE_S, AUDITOR)

    async def append_staged(self, broker: int, at: TopicPartition, topic_id: bytes, batch: bytes) -> int:
        return await _append(self._staged.to(broker, at), broker, at, topic_id, batch, STAGED_PATIENCE_S, PUBLISHER)


def _read(broker: int, at: TopicPartition, offset: int, epoch: int, row: Message) -> PeerRead | KrappyError:
    if row["error_code"]:
        return _refusal(broker, at, row["error_code"])
    data = memoryview(row["records"] or b"")
    firsts = [(each["producer_id"], each["first_offset"]) for each in row["aborted_transactions"] or ()]
    try:
        headers = [header for header, _ in batches.split(data)]
        whole = data[: sum(header.size for header in headers)]
        held = without(whole, aborted_in(whole, firsts)) if firsts else whole
    except CorruptBatch as error:
        return error
    if any(header.leader_epoch > epoch for header in headers):  # from a newer leader: the log was cut meanwhile
        return NotLeader(f"broker {broker} has events of {at} that are newer than leader epoch {epoch}")
    following = max([offset, *(header.next_offset for header in headers[-1:])])
    records = sum(header.count for header in headers)
    ends = row["last_stable_offset"], row["high_watermark"]
    return PeerRead(row["log_start_offset"], *ends, held, following, records)


def _refusal(broker: int, at: TopicPartition, code: int) -> KrappyError:
    return REFUSALS.get(code, BrokerError)(f"broker {broker} answers {named_code(code)} for {at}")


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
