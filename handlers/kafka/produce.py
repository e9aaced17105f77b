"""Produce (0): writes record batches.

Each batch goes to `Partition.publish` as it came, a view of the frame, before the next request begins. So the pipelined
requests of a connection keep their order and can share a group commit. acks=-1 waits until all replicas in sync have
it on disk, and acks=1 until this broker has, however many are in sync. acks=0 waits for nothing, but its bytes count
against the budget until they are written, as for acks=1; an error closes the connection, because there is no answer to
tell it. A header can make a record conditional (core/conditions.py). Brokers publish staged jobs to each other by this
API.

A batch that is refused here, before its partition has it, may be taken a moment later; for example, once this broker
leads the partition. Then it is taken only in its producer's order (core/refused_batches.py).
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from krappy.core.refused_batches import RefusedBatches, RefusedByPartitions, comes_again
from krappy.core.security import needs
from krappy.core.security.audit import AUDITOR
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.core.staging import PUBLISHER
from krappy.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    KrappyError,
    OffsetMismatch,
    UnsupportedCompression,
)
from krappy.handlers.kafka.leader_hints import LeaderHints
from krappy.handlers.kafka.refusals import more_than_once
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import FEW
from krappy.handlers.kafka.sources import topic_of, topic_to_write
from krappy.ports import BrokerPort, KafkaSessionPort, PartitionPort, StoredAt, TopicPort, TransactionalSender
from krappy.records import batch as batches
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey, Code, code_for

BY_ID_SINCE = 13  # the version from which topics are named by their ids (KIP-516)
ADDS_SINCE = 12  # the version from which a batch adds its partition to its transaction (KIP-890)
ABORTABLE_SINCE = 11  # the version from which TRANSACTION_ABORTABLE is known (KIP-1050)
ZSTD_SINCE = 7  # KIP-110
ZSTD = 4
REFUSED_HERE, REFUSED_THERE = "refused_batches", "refused_by_partitions"  # in the state of a connection
UNKNOWN = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
COST = 1 << 10  # bytes of memory that a batch takes until it is written, beside its own bytes
Named = AbstractSet[tuple[str, bytes, int]]  # topic, its id, partition
NOBODY: Named = frozenset()
NO_ANSWER, LEADER, ALL = 0, 1, -1


@serves(
    ApiKey.PRODUCE,
    needs=needs.topic(Op.WRITE) + needs.transactional_id(Op.WRITE) + needs.cluster(Op.CLUSTER_ACTION),
)
def produce(
    session: KafkaSessionPort, request: Message, version: int
) -> Later[Message | None] | Coroutine[Any, Any, Message | None]:
    topics, acks = request["topic_data"], request["acks"]
    twice = NOBODY
    if len(topics) != 1 or len(topics[0]["partition_data"]) != 1:
        twice = _named_twice(topics)
    work = Work(session, request["transactional_id"], version)
    if sum(len(data["partition_data"]) for data in topics) > FEW:
        return _produce_many(session, work, request, twice)
    for data in topics:
        _publish(session, work, data, work.topic(data), data["partition_data"], acks, version, twice)
    return session.gather(work.laters, lambda results: _finish(results, work, acks))


async def _produce_many(session: KafkaSessionPort, work: Work, request: Message, twice: Named) -> Message | None:
    """Serves a request with many batches, in several turns."""
    async with session.answering(COST * sum(len(data["partition_data"]) for data in request["topic_data"])):
        for data in request["topic_data"]:
            asked, answers = data["partition_data"], work.topic(data)
            for at in range(0, len(asked), FEW):
                _publish(session, work, data, answers, asked[at : at + FEW], request["acks"], work.version, twice)
                await session.pause()
        later = session.gather(work.laters, lambda results: _finish(results, work, request["acks"]))
        return await later.wait()


class Work:
    """The answer in the making, and what it waits for."""

    __slots__ = (
        "denied",
        "hints",
        "is_staged",
        "laters",
        "own",
        "refusal",
        "refused",
        "responses",
        "sender",
        "version",
        "waiting",
    )

    def __init__(self, session: KafkaSessionPort, transactional_id: str | None, version: int) -> None:
        self.version = version
        self.refusal = session.refusal
        self.is_staged = transactional_id == PUBLISHER
        self.own = ""  # the name of the internal topic that it may write to
        if self.is_staged or transactional_id == AUDITOR:
            self.denied = session.access.denies(Resource.CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION)
            session.is_broker = session.broker.in_cluster and not self.denied
            if session.is_broker and not self.is_staged:
                self.own = session.broker.config.audit_topic
            transactional_id = None
        else:
            self.denied = transactional_id is not None and session.access.denies(
                Resource.TRANSACTIONAL_ID, transactional_id, Op.WRITE
            )
        self.sender = TransactionalSender(transactional_id, version >= ADDS_SINCE) if transactional_id else None
        self.hints = LeaderHints(session)
        self.refused = _RefusedHere(session)
        self.responses: list[Message] = []
        self.laters: list[Later[StoredAt]] = []
        self.waiting: list[tuple[Message, bool, TopicPort, PartitionPort]] = []  # the bool: LogAppendTime

    def topic(self, data: Message) -> list[Message]:
        """Adds a topic to the answer. Returns its list of partitions, to be filled."""
        answers: list[Message] = []
        self.responses.append({"name": data["name"], "topic_id": data["topic_id"], "partition_responses": answers})
        return answers


def _publish(
    session: KafkaSessionPort,
    work: Work,
    data: Message,
    answers: list[Message],
    parts: list[Message],
    acks: int,
    version: int,
    twice: Named,
) -> None:
    """Publishes the batches `parts` to one topic, in their order, and adds their answers to `answers`."""
    name, id = data["name"], data["topic_id"]
    topic = work.refusal or _topic(session, name, id, version >= BY_ID_SINCE, work.own)
    for asked in parts:
        answer: Message = {"index": asked["index"], "error_code": 0, "base_offset": -1}
        answers.append(answer)
        at = name, id, asked["index"]
        if isinstance(topic, KrappyError):
            _refuse(answer, topic, version)
            work.refused.note(at, asked["records"], answer, topic)
            continue
        if isinstance(topic, Code):
            answer["error_code"] = topic
            work.refused.note(at, asked["records"], answer)
            continue
        if work.denied:
            answer["error_code"] = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            continue
        if acks not in (NO_ANSWER, LEADER, ALL):
            answer["error_code"] = Code.INVALID_REQUIRED_ACKS
            continue
        try:
            if twice and at in twice:
                # Kafka writes the last batch and acknowledges all.
                raise InvalidRequest("the request has several batches for this partition; it may have one")
            partition = topic.led(asked["index"])
            records = _checked(asked["records"], version)
            if work.refused and (code := work.refused.find(at, records, partition)):
                answer["error_code"] = code
                continue
            if work.is_staged:
                later = partition.publish_staged(records)
            else:
                later = partition.publish(
                    records, by_header=True, alone=acks != ALL, sender=work.sender, refused=work.refused.by_partitions
                )
        except KrappyError as error:
            _refuse(answer, error, version)
            work.refused.note(at, asked["records"], answer, error)
            work.hints.add(answer, topic.image, asked["index"])
            continue
        work.laters.append(later)
        work.waiting.append((answer, topic.config.log_append_time, topic, partition))


class _RefusedHere:
    """Batches of one connection that were refused for now, before their partitions had them. `by_partitions`: those
    that were refused by their partitions."""

    __slots__ = ("_broker", "_first", "_state", "by_partitions")

    def __init__(self, session: KafkaSessionPort) -> None:
        self._broker, self._state = session.broker, session.state
        self._first: RefusedBatches[tuple[Hashable, int], Code] | None = session.state.get(REFUSED_HERE)
        by_partitions: RefusedByPartitions | None = session.state.get(REFUSED_THERE)
        if by_partitions is None:
            by_partitions = session.state[REFUSED_THERE] = RefusedBatches(partial(_partitions, session.broker))
        self.by_partitions = by_partitions

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, at: Hashable, records: memoryview | None, answer: Message, error: KrappyError | None = None) -> None:
        """`error`: None if the code tells all."""
        if not (answer["error_code"] in UNKNOWN if error is None else comes_again(error)) or records is None:
            return
        try:
            header = batches.read_header(records)
        except CorruptBatch:
            return
        if self._first is None:
            self._first = self._state[REFUSED_HERE] = RefusedBatches(partial(_partitions, self._broker))
        self._first.note(
            (at, header.producer_id), header, Code(answer["error_code"]), self._broker.clock.steady_ms() / 1000
        )

    def find(self, at: Hashable, records: memoryview, partition: PartitionPort) -> Code | None:
        """Why this batch can't be taken yet. Raises CorruptBatch."""
        assert self._first is not None
        header = batches.read_header(records)
        following = partition.following(header.producer_id)
        return self._first.find((at, header.producer_id), header, following, self._broker.clock.steady_ms() / 1000)


def _partitions(broker: BrokerPort) -> int:
    return sum(len(topic.partitions) for topic in broker.image.topics.values())


def _topic(session: KafkaSessionPort, name: str, id: bytes, by_id: bool, own: str) -> TopicPort | Code | InvalidTopic:
    """As `topic_to_write`; or an InvalidTopic that says why this name can only be read."""
    try:
        topic = topic_to_write(session, name, id, by_id, own)
        if isinstance(topic, Code) and not isinstance(table := topic_of(session, name, id, by_id, Op.WRITE), Code):
            return InvalidTopic(f"'{table.name}' can only be read; write to the topic that it is the table of")
    except InvalidTopic as error:
        return error
    return topic


def _finish(results: list[StoredAt | Exception], work: Work, acks: int) -> Message | None:
    for result, (answer, append_time, topic, partition) in zip(results, work.waiting, strict=True):
        if isinstance(result, KrappyError):
            _refuse(answer, result, work.version)
            work.hints.add(answer, topic.image, answer["index"])
        elif isinstance(result, Exception):
            raise result
        else:
            answer["base_offset"] = result.offset
            answer["log_start_offset"] = partition.start_offset
            if append_time:
                answer["log_append_time_ms"] = result.timestamp
    if acks == NO_ANSWER:
        _complain(work.responses)
        return None
    return {"responses": work.responses, "node_endpoints": work.hints.nodes()}


def _named_twice(topics: list[Message]) -> Named:
    return more_than_once(
        (data["name"], data["topic_id"], asked["index"]) for data in topics for asked in data["partition_data"]
    )


def _checked(records: memoryview | None, version: int) -> memoryview:
    """The records, if they are one batch of format v2, as Kafka demands (`ProduceRequest.validateRecords`). Raises
    InvalidRecord, UnsupportedCompression."""
    if records is None or len(records) < batches.HEADER_SIZE:
        raise InvalidRecord("exactly one record batch is expected")
    size, magic, codec = batches.peek(records)
    if magic != batches.MAGIC:
        raise InvalidRecord(f"a batch of magic {magic}: only version 2 of the format is taken")
    if size < len(records):
        raise InvalidRecord("exactly one record batch is expected, and several came")
    if version < ZSTD_SINCE and codec == ZSTD:
        raise UnsupportedCompression(f"zstd needs version {ZSTD_SINCE} of Produce")
    return records


def _refuse(answer: Message, error: KrappyError, version: int) -> None:
    code = code_for(error)
    abortable = code == Code.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE
    answer["error_code"] = Code.INVALID_TXN_STATE if abortable else code
    answer["error_message"] = error.text
    if isinstance(error, InvalidRecord | OffsetMismatch):
        index = getattr(error, "index", None)
        if index is not None:
            wrong = [(index, error.text), *(other[:2] for other in getattr(error, "others", ()))]
            answer["record_errors"] = [
                {"batch_index": index, "batch_index_error_message": text} for index, text in wrong
            ]


def _complain(responses: list[Message]) -> None:
    """Raises for the first error of a request that gets no answer."""
    for topic in responses:
        for answer in topic["partition_responses"]:
            if answer["error_code"]:
                raise InvalidRequest(f"Produce with acks=0: error {int(answer['error_code'])}")
