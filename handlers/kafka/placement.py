"""Where partitions are, and who leads them.

There is one broker with one folder, which leads every partition. So a partition can only be told to stay: what asks for
that is done, everything else is refused, as by a Kafka of one broker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.refusals import DONE, NO, RefusedApi, refusal, replicas
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

_UNKNOWN = "This server does not host this topic-partition."


@serves(ApiKey.DESCRIBE_LOG_DIRS, needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The size of each partition on disk, and the disk's total and free bytes (KIP-113, KIP-827). All partitions if the
    request names no topics; otherwise those of the named ones that exist."""
    there = session.access.topics(Op.DESCRIBE)
    folder, total, usable = await session.access.cluster(Op.DESCRIBE).log_dir()
    chosen: dict[str, set[int] | None] = dict.fromkeys(there)
    if request["topics"] is not None:
        chosen = {}
        for asked in request["topics"]:
            chosen[asked["topic"]] = (chosen.get(asked["topic"]) or set()) | set(asked["partitions"])
    topics = []
    for name, indexes in chosen.items():
        topic = there.get(name)
        if topic is None:
            continue
        partitions = [
            {"partition_index": each.index, "partition_size": each.size}
            for each in topic.local.values()
            if indexes is None or each.index in indexes
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
        await session.pause()
    result = {"error_code": 0, "log_dir": folder, "topics": topics, "total_bytes": total, "usable_bytes": usable}
    return {"error_code": 0, "results": [result]}


@serves(ApiKey.LIST_PARTITION_REASSIGNMENTS, needs=needs.cluster(Op.DESCRIBE))
def list_partition_reassignments(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """There are none (KIP-455)."""
    return {"error_code": 0, "error_message": None, "topics": []}


@serves(ApiKey.ALTER_REPLICA_LOG_DIRS, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def alter_replica_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """A move to the folder that DescribeLogDirs names succeeds: the partition is there. Others: LOG_DIR_NOT_FOUND."""
    folder, _, _ = await session.access.cluster(Op.ALTER).log_dir()
    results = []
    for place in request["dirs"]:
        for asked in place["topics"]:
            count = _count(session, asked["name"])
            rows = []
            for index in asked["partitions"]:
                if place["path"] != folder:
                    code = Code.LOG_DIR_NOT_FOUND
                else:
                    code = Code.NONE if 0 <= index < count else Code.UNKNOWN_TOPIC_OR_PARTITION
                rows.append({"partition_index": index, "error_code": code})
            results.append({"topic_name": asked["name"], "partitions": rows})
            await session.pause()
    return {"results": results}


@serves(ApiKey.ALTER_PARTITION_REASSIGNMENTS, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def alter_partition_reassignments(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """KIP-455. A cancellation is refused as well, since no move is in progress."""
    session.access.cluster(Op.ALTER)
    responses = []
    for asked in request["topics"]:
        count = _count(session, asked["name"])
        rows = []
        for each in asked["partitions"]:
            index = each["partition_index"]
            try:
                _check_move(index, count, each["replicas"], session.broker.image.brokers)
                rows.append({"partition_index": index, **DONE})
            except NO as error:
                rows.append({"partition_index": index, **refusal(error)})
        responses.append({"name": asked["name"], "partitions": rows})
        await session.pause()
    return {"responses": responses}


@serves(ApiKey.ELECT_LEADERS, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def elect_leaders(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """KIP-183, KIP-460. ELECTION_NOT_NEEDED for each partition named; if the request means all, the answer is empty."""
    session.access.cluster(Op.ALTER)
    results = []
    for asked in request["topic_partitions"] or ():
        count = _count(session, asked["topic"])
        rows = [_not_elected(index, 0 <= index < count) for index in asked["partitions"]]
        results.append({"topic": asked["topic"], "partition_result": rows})
        await session.pause()
    return {"replica_election_results": results}


def _not_elected(index: int, known: bool) -> Message:
    if known:
        code, text = Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    else:
        code, text = Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN
    return {"partition_id": index, "error_code": code, "error_message": text}


def _count(session: KafkaSessionPort, name: str) -> int:
    """The number of the topic's partitions; 0 if it is unknown."""
    topic = session.access.find_topic(name, Op.DESCRIBE)
    return 0 if topic is None else topic.count


def _check_move(index: int, count: int, assigned: Sequence[int] | None, brokers: Collection[int]) -> None:
    """`assigned`: the brokers that are to have partition `index` of `count`; None cancels a move. Raises RefusedApi."""
    if not 0 <= index < count:
        raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
    if assigned is None:
        raise RefusedApi(Code.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas(assigned, brokers)
