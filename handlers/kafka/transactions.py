"""Producer ids and transactions (KIP-98): those of a producer, and what tools ask for (KIP-664)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from time import perf_counter
from typing import Any

from krappy.core.kafka.name_regex import NameRegex
from krappy.core.security import needs
from krappy.core.security.operations import CLUSTER_NAME, Op, Resource
from krappy.core.transactions import TxnStage
from krappy.errors import AuthorizationFailed, InvalidRequest, InvalidTopic, KrappyError, RequestTimeout
from krappy.handlers.kafka.group_offsets import LONGEST_METADATA
from krappy.handlers.kafka.groups import group_code
from krappy.handlers.kafka.refusals import denied_on_cluster
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import FEW, TURN, BatchedRows, counted
from krappy.handlers.kafka.sources import found, source_for, topic_to_write
from krappy.ports import GroupMember, KafkaSessionPort, Position, TopicPort, TransactionEnd, TransactionsPort
from krappy.ports.audit import asked_for
from krappy.types import TopicPartition
from krappy.waiting import Later
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code, code_for

NO_FILTER = -1
SEVERAL_SINCE = 4  # the version of AddPartitionsToTxn from which brokers ask, for several transactions (KIP-890)
BUMPS_SINCE = 5  # the version of EndTxn from which it raises the epoch (KIP-890)
ADDS_SINCE = 5  # the version of TxnOffsetCommit from which it adds the group to the transaction (KIP-890)
BUMPED = 2  # as the version of a transaction, in a marker (KIP-1228)
COST = 1 << 10  # bytes of memory that a marker takes until it is written
# The versions from which PRODUCER_FENCED is known (KIP-588).
FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
    ApiKey.TXN_OFFSET_COMMIT: 3,
}
ABORTABLE_SINCE = 4  # the version of TxnOffsetCommit from which TRANSACTION_ABORTABLE is known (KIP-1050)


def _code_of(error: KrappyError, key: ApiKey, version: int) -> int:
    code = group_code(error)
    if code == Code.PRODUCER_FENCED and version < FENCED_SINCE[key]:
        return Code.INVALID_PRODUCER_EPOCH
    if code == Code.TRANSACTION_ABORTABLE and key is ApiKey.TXN_OFFSET_COMMIT and version < ABORTABLE_SINCE:
        return Code.INVALID_TXN_STATE
    return code


async def _done(
    session: KafkaSessionPort, key: ApiKey, version: int, id: str, work: Callable[[TransactionsPort], Awaitable[None]]
) -> int:
    """Does `work` on the transaction of an id, for a request of API `key`. Returns the code of the answer."""
    try:
        if not id:
            raise InvalidRequest("a transactional id may not be empty")
        await work(session.access.transactional_id(id, Op.WRITE))
    except KrappyError as error:
        return _code_of(error, key, version)
    return Code.NONE


@serves(ApiKey.INIT_PRODUCER_ID, needs=needs.transactional_id(Op.WRITE) + needs.cluster(Op.IDEMPOTENT_WRITE))
async def init_producer_id(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Gives a producer an id and an epoch, so that a batch it sends twice is stored once (KIP-360).

    Without a transactional id the answer is always a new id with epoch 0, as from Kafka's TransactionCoordinator. A
    producer that must restart its sequences raises its epoch by itself.
    """
    name = request["transactional_id"]
    try:
        if name is None:
            producer_id, epoch = await session.access.cluster(Op.IDEMPOTENT_WRITE).new_producer_id(), 0
        else:
            producer_id, epoch = await session.access.transactional_id(name, Op.WRITE).init_producer(
                name, request["transaction_timeout_ms"], request["producer_id"], request["producer_epoch"]
            )
    except KrappyError as error:
        code = _code_of(error, ApiKey.INIT_PRODUCER_ID, version)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch}


@serves(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    needs=needs.transactional_id(Op.WRITE) + needs.topic(Op.WRITE) + needs.cluster(Op.CLUSTER_ACTION),
)
async def add_partitions_to_txn(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The partitions that a producer is about to write to. If one of them does not exist, none is added."""
    if version < SEVERAL_SINCE:
        id, producer = request["v3_and_below_transactional_id"], request["v3_and_below_producer_id"]
        who = id, producer, request["v3_and_below_producer_epoch"]
        asked = PartitionsAsked(session, version, *who, request["v3_and_below_topics"])
        return {"results_by_topic_v3_and_below": await asked.added()}
    try:
        session.access.cluster(Op.CLUSTER_ACTION)
        session.is_broker = session.broker.in_cluster
    except KrappyError as error:
        return {"error_code": code_for(error), "results_by_transaction": []}
    results = []
    async with counted(session) as rows:
        for each in request["transactions"]:
            asked = PartitionsAsked(
                *(session, version, each["transactional_id"], each["producer_id"], each["producer_epoch"]),
                each["topics"],
            )
            with asked_for(each["owner"]):
                told = await (asked.verified(rows) if each["verify_only"] else asked.added(rows))
            results.append(
                {
                    "transactional_id": each["transactional_id"],
                    "transaction_number": asked.number,
                    "topic_results": told,
                }
            )
    return {"error_code": Code.NONE, "results_by_transaction": results}


class PartitionsAsked:
    """Partitions that a request names for one transaction: it asks whether they are in it, or adds them.

    `number`: the transaction's, once that is known; else -1."""

    def __init__(
        self, session: KafkaSessionPort, version: int, id: str, producer: int, epoch: int, topics: list[Message]
    ) -> None:
        self._session, self._version = session, version
        self._id, self._producer, self._epoch = id, producer, epoch
        self._topics = topics
        self.number = -1

    async def verified(self, rows: BatchedRows) -> list[Message]:
        found = []
        for topic in self._topics:
            results = []
            for index in topic["partitions"]:
                code = await self._done(partial(self._verify, TopicPartition(topic["name"], index)))
                results.append({"partition_index": index, "partition_error_code": code})
                await rows.add(1)
            found.append({"name": topic["name"], "results_by_partition": results})
        return found

    async def added(self, rows: BatchedRows | None = None) -> list[Message]:
        """If one of them does not exist, none is added. `rows`: given for the request of another broker, which leads
        the partitions."""
        asked = [TopicPartition(topic["name"], index) for topic in self._topics for index in topic["partitions"]]
        mine = self._session.access.may(Resource.TRANSACTIONAL_ID, self._id, Op.WRITE)  # else only that is told
        missing = await self._missing() if rows is None and mine else {}
        code: int = Code.OPERATION_NOT_ATTEMPTED
        if not missing:
            code = await self._done(partial(self._add, asked))
        if rows is not None:
            await rows.add(len(self._topics) + len(asked))

        def result(at: TopicPartition) -> Message:
            return {"partition_index": at.partition, "partition_error_code": missing.get(at, code)}

        return [
            {
                "name": topic["name"],
                "results_by_partition": [result(TopicPartition(topic["name"], at)) for at in topic["partitions"]],
            }
            for topic in self._topics
        ]

    async def _missing(self) -> dict[TopicPartition, Code]:
        """The partitions that can't be added, and why. Found in several turns."""
        missing: dict[TopicPartition, Code] = {}
        for number, asked in enumerate(self._topics, 1):
            topic = self._topic(asked["name"])
            for index in asked["partitions"]:
                if isinstance(topic, Code):
                    missing[TopicPartition(asked["name"], index)] = topic
                elif not 0 <= index < topic.count:
                    missing[TopicPartition(asked["name"], index)] = Code.UNKNOWN_TOPIC_OR_PARTITION
            if number % FEW == 0:
                await self._session.pause()
        return missing

    def _topic(self, name: str) -> TopicPort | Code:
        try:
            return topic_to_write(self._session, name, UUID_ZERO, False)
        except InvalidTopic:
            return Code.TOPIC_AUTHORIZATION_FAILED  # as in Kafka: nobody may

    async def _done(self, work: Callable[[TransactionsPort], Awaitable[None]]) -> int:
        return await _done(self._session, ApiKey.ADD_PARTITIONS_TO_TXN, self._version, self._id, work)

    async def _verify(self, at: TopicPartition, transactions: TransactionsPort) -> None:
        self.number = await transactions.verify(self._id, self._producer, self._epoch, at)

    async def _add(self, asked: list[TopicPartition], transactions: TransactionsPort) -> None:
        self.number = await transactions.add_partitions(self._id, self._producer, self._epoch, asked)


@serves(ApiKey.WRITE_TXN_MARKERS, needs=needs.cluster(Op.CLUSTER_ACTION, Op.ALTER))
def write_txn_markers(
    session: KafkaSessionPort, request: Message, version: int
) -> Later[Message] | Coroutine[Any, Any, Message]:
    """Ends transactions in partitions that this broker leads, as their coordinator has decided (CLUSTER_ACTION). Tools
    that abort a hanging transaction ask for it, too: for them ALTER is enough (KIP-664)."""
    may_act, may_alter = (
        session.access.may(Resource.CLUSTER, CLUSTER_NAME, op) for op in (Op.CLUSTER_ACTION, Op.ALTER)
    )
    op = Op.ALTER if may_alter and not may_act else Op.CLUSTER_ACTION
    ends = EndsAsked(session, request["markers"], op)
    if denied_on_cluster(session, op) is not None:
        return ends.denied()
    session.is_broker = session.broker.in_cluster and may_act and ends.of_coordinator
    if not session.is_broker:
        return ends.by_hand()
    if ends.count > FEW:
        return ends.in_turns()
    for _ in ends.begin():
        pass
    return ends.answer()


class EndsAsked:
    """The transactions that a request ends, and its answer in the making. `op`: by what right it ends them."""

    def __init__(self, session: KafkaSessionPort, markers: list[Message], op: Op) -> None:
        self._session, self._markers, self._op = session, markers, op
        self.count = sum(len(topic["partition_indexes"]) for marker in markers for topic in marker["topics"])
        # A coordinator tells which transaction of its id ends; a tool knows nothing of that, whoever uses it.
        self.of_coordinator = all(marker["transaction_number"] >= 0 for marker in markers)
        self._answers: list[Message] = []
        self._rows: list[Message] = []
        self._laters: list[Later[None]] = []

    def begin(self) -> Iterator[None]:
        ends = self._session.access.participants(self._op)
        for end, some, rows in self._parts():
            self._laters += ends.end(end, some)
            self._rows += rows
            yield

    def _parts(self) -> Iterator[tuple[TransactionEnd, list[TopicPartition], list[Message]]]:
        """What ends, and where: a few partitions at a time, and their rows in the answer."""
        for marker in self._markers:
            topics: list[Message] = []
            self._answers.append({"producer_id": marker["producer_id"], "topics": topics})
            end = TransactionEnd(
                *(marker["producer_id"], marker["producer_epoch"], marker["transaction_result"]),
                marker["coordinator_epoch"],
                bumped=marker["transaction_version"] >= BUMPED,
                number=marker["transaction_number"],
            )
            for topic in marker["topics"]:
                name, indexes = topic["name"], topic["partition_indexes"]
                rows: list[Message] = [{"partition_index": index} for index in indexes]
                topics.append({"name": name, "partitions": rows})
                for first in range(0, len(indexes), FEW):
                    some = slice(first, first + FEW)
                    yield end, [TopicPartition(name, index) for index in indexes[some]], rows[some]

    def denied(self) -> Later[Message]:
        code, told = Code.CLUSTER_AUTHORIZATION_FAILED, []
        for marker in self._markers:
            topics = [
                {
                    "name": topic["name"],
                    "partitions": [
                        {"partition_index": index, "error_code": code} for index in topic["partition_indexes"]
                    ],
                }
                for topic in marker["topics"]
            ]
            told.append({"producer_id": marker["producer_id"], "topics": topics})
        later: Later[Message] = Later()
        later.resolve({"markers": told})
        return later

    async def by_hand(self) -> Message:
        """For a tool. The audit log tells of each partition, so a few end at a time."""
        ends = self._session.access.participants(self._op)
        async with self._session.answering(COST * self.count):
            for end, some, rows in self._parts():
                with self._session.access.ending(some) as change:
                    results = await self._session.gather(ends.end(end, some), list).wait()
                    change.made = any(map(_may_have_ended, results))
                _tell(rows, results)
                await self._session.pause()
        return {"markers": self._answers}

    async def in_turns(self) -> Message:
        async with self._session.answering(COST * self.count):
            for _ in self.begin():
                await self._session.pause()
            return await self.answer().wait()

    def answer(self) -> Later[Message]:
        return self._session.gather(self._laters, self._told)

    def _told(self, results: list[Exception | None]) -> Message:
        _tell(self._rows, results)
        return {"markers": self._answers}


def _tell(rows: list[Message], results: list[Exception | None]) -> None:
    for row, result in zip(rows, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, KrappyError):
            raise result
        row["error_code"] = Code.NONE if result is None else code_for(result)


def _may_have_ended(result: Exception | None) -> bool:
    """Whether this is no refusal. A marker that takes long may be written later."""
    return not isinstance(result, KrappyError) or isinstance(result, RequestTimeout)


@serves(ApiKey.ADD_OFFSETS_TO_TXN, needs=needs.transactional_id(Op.WRITE) + needs.group(Op.READ))
async def add_offsets_to_txn(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """A producer is about to commit a group's offsets in its transaction."""
    id, producer, epoch = request["transactional_id"], request["producer_id"], request["producer_epoch"]

    async def add(transactions: TransactionsPort) -> None:
        session.access.check(Resource.GROUP, request["group_id"], Op.READ)
        await transactions.add_group(id, producer, epoch, request["group_id"])

    return {"error_code": await _done(session, ApiKey.ADD_OFFSETS_TO_TXN, version, id, add)}


@serves(ApiKey.TXN_OFFSET_COMMIT, needs=needs.transactional_id(Op.WRITE) + needs.group(Op.READ) + needs.topic(Op.READ))
async def txn_offset_commit(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """A consumer's offsets as a part of its producer's transaction.

    From version 3 on the request names the consumer's member and generation, so that a fenced member can't commit
    (KIP-447). As in Kafka, who lacks a right to the transactional id, or the group, is told nothing of the topics.
    """
    id, producer, epoch = request["transactional_id"], request["producer_id"], request["producer_epoch"]
    codes: dict[TopicPartition, Code] = {}
    positions: dict[TopicPartition, Position] = {}
    for number, topic in enumerate(request["topics"], 1):
        if number % FEW == 0:
            await session.pause()
        source = found(session, topic["name"], Op.READ)  # special names have positions, too
        for asked in topic["partitions"]:
            at = TopicPartition(topic["name"], asked["partition_index"])
            metadata = asked["committed_metadata"] or ""
            if isinstance(source, Code):
                codes[at] = source
            elif not 0 <= at.partition < source.count:
                codes[at] = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > LONGEST_METADATA:
                codes[at] = Code.OFFSET_METADATA_TOO_LARGE
            else:
                positions[at] = Position(asked["committed_offset"], asked["committed_leader_epoch"], metadata)
    member = GroupMember(
        request["group_id"], request["member_id"], request["generation_id"], request["group_instance_id"]
    )
    code: int = Code.NONE
    try:
        if not id:
            raise InvalidRequest("a transactional id may not be empty")
        participant = session.access.participant(id, Op.WRITE)
        session.access.check(Resource.GROUP, request["group_id"], Op.READ)
        adds = version >= ADDS_SINCE
        await participant.stage_offsets(id, producer, epoch, member, positions, adds=adds)
    except KrappyError as error:
        code = _code_of(error, ApiKey.TXN_OFFSET_COMMIT, version)
        if isinstance(error, AuthorizationFailed):
            codes.clear()
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": asked["partition_index"],
                        "error_code": codes.get(TopicPartition(topic["name"], asked["partition_index"]), code),
                    }
                    for asked in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


@serves(ApiKey.END_TXN, needs=needs.transactional_id(Op.WRITE))
async def end_txn(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Commits or aborts a transaction. Answered when its markers are on disk."""
    id, producer, epoch = request["transactional_id"], request["producer_id"], request["producer_epoch"]
    now = -1, -1

    async def end(transactions: TransactionsPort) -> None:
        nonlocal now
        now = await transactions.end(id, producer, epoch, request["committed"], bumps=version >= BUMPS_SINCE)

    code = await _done(session, ApiKey.END_TXN, version, id, end)
    return {"error_code": code, "producer_id": now[0], "producer_epoch": now[1]}


@serves(ApiKey.LIST_TRANSACTIONS, needs=needs.transactional_id(Op.DESCRIBE))
async def list_transactions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """All transactional ids, or those of some states, producers, a duration or a pattern. `duration_filter`: only
    transactions that have been open for longer, in ms. `transactional_id_pattern`: of RE2, for the whole id
    (KIP-1152)."""
    known = set(TxnStage)
    states, producers, ms = request["state_filters"], set(request["producer_id_filters"]), request["duration_filter"]
    wanted = {state for state in states if state in known}
    now = session.broker.clock.steady_ms()
    found = []
    pattern = request["transactional_id_pattern"]
    try:
        listed = session.access.transactions(Op.DESCRIBE)
        named = NameRegex(pattern) if pattern else None
    except KrappyError as error:
        return {"error_code": group_code(error), "unknown_state_filters": [], "transaction_states": []}
    until = perf_counter() + TURN
    for number, each in enumerate(listed, 1):
        if (
            (not states or each.stage in wanted)
            and (not producers or each.producer_id in producers)
            and (named is None or named.matches(each.name))
            and (ms <= NO_FILTER or (each.started_ms >= 0 and now - each.started_ms > ms))
        ):
            state = str(each.stage)
            found.append({"transactional_id": each.name, "producer_id": each.producer_id, "transaction_state": state})
        if number % FEW == 0 or perf_counter() >= until:  # some patterns take 100 ms for a long id
            await session.pause()
            until = perf_counter() + TURN
    unknown = [state for state in dict.fromkeys(states) if state not in known]
    return {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": found}


@serves(ApiKey.DESCRIBE_TRANSACTIONS, needs=needs.transactional_id(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_transactions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    states = []
    async with counted(session) as rows:
        for name in request["transactional_ids"]:
            states.append(await _state(session, name))
            await rows.add(1 + len(states[-1].get("topics", ())))
    return {"transaction_states": states}


async def _state(session: KafkaSessionPort, name: str) -> Message:
    code: int = Code.TRANSACTIONAL_ID_NOT_FOUND
    try:
        found = await session.access.transactional_id(name, Op.DESCRIBE).readable(name)
    except KrappyError as error:
        found, code = None, group_code(error)
    if found is None:
        return {"error_code": code, "transactional_id": name, "producer_id": -1, "producer_epoch": -1}
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        if session.access.may(Resource.TOPIC, topic, Op.DESCRIBE):
            topics.setdefault(topic, []).append(partition)
    started_ms = session.broker.clock.as_told(found.started_ms) if found.started_ms >= 0 else -1
    return {
        "error_code": 0,
        "transactional_id": name,
        "transaction_state": str(found.stage),
        "transaction_timeout_ms": found.timeout_ms,
        "transaction_start_time_ms": started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


@serves(ApiKey.DESCRIBE_PRODUCERS, needs=needs.topic(Op.READ))
async def describe_producers(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The producers of partitions, and the open transaction of each."""
    topics = []
    async with counted(session) as rows:
        for topic in request["topics"]:
            partitions = []
            for index in topic["partition_indexes"]:
                partitions.append(_producers(session, topic["name"], index))
                await rows.add(1 + len(partitions[-1]["active_producers"]))
            topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


def _producers(session: KafkaSessionPort, name: str, index: int) -> Message:
    answer: Message = {"partition_index": index, "error_code": Code.NONE, "active_producers": []}
    try:
        producers = source_for(session, name, index, Op.READ).producers()
    except KrappyError as error:
        denied = isinstance(error, AuthorizationFailed)
        code = code_for(error) if denied else Code.UNKNOWN_TOPIC_OR_PARTITION
        return answer | {"error_code": code, "error_message": error.text}
    return answer | {
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.timestamp,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.open_since,
            }
            for each in producers
        ]
    }
