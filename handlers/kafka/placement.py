"""Where partitions are, and who leads them.

Each broker has one folder. A broker that is alone leads every partition: then a partition can only be told to stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from krappy.core.cluster.reassign import is_moving
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.handlers.kafka.refusals import DONE, NO, RefusedApi, denied_on_cluster, more_than_once, refusal, replicas
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort
from krappy.waiting import side_by_side
from krappy.wire.kafka import ApiKey, Code

_UNKNOWN = "This server does not host this topic-partition."


@serves(ApiKey.DESCRIBE_LOG_DIRS, needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The size of each partition on disk, and the disk's total and free bytes (KIP-113, KIP-827). All partitions if the
    request names no topics; otherwise those of the named ones that exist."""
    if (denied := denied_on_cluster(session, Op.DESCRIBE)) is not None:
        return {**denied, "results": []}
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


@serves(ApiKey.LIST_PARTITION_REASSIGNMENTS, needs=needs.cluster(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def list_partition_reassignments(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The partitions that are being reassigned (KIP-455): of all topics, or of those that are named; but not of topics
    that may not be described (which Kafka tells)."""
    if (denied := denied_on_cluster(session, Op.DESCRIBE)) is not None:
        return {**denied, "topics": []}
    chosen: Mapping[str, Collection[int] | None]
    if request["topics"] is None:
        chosen = dict.fromkeys(session.broker.image.topics)
    else:
        chosen = {asked["name"]: set(asked["partition_indexes"]) for asked in request["topics"]}
    topics = []
    for name, indexes in chosen.items():
        may = session.access.may(Resource.TOPIC, name, Op.DESCRIBE)
        topic = session.broker.image.topics.get(name) if may else None
        rows = [
            {
                "partition_index": index,
                "replicas": each.replicas,
                "adding_replicas": each.adding,
                "removing_replicas": each.removing,
            }
            for index, each in enumerate(() if topic is None else topic.partitions)
            if is_moving(each) and (indexes is None or index in indexes)
        ]
        if rows:
            topics.append({"name": name, "partitions": rows})
        await session.pause()
    return {"error_code": 0, "error_message": None, "topics": topics}


@serves(ApiKey.ALTER_REPLICA_LOG_DIRS, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def alter_replica_log_dirs(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """A move to the folder that DescribeLogDirs names succeeds: the partition is there. Others: LOG_DIR_NOT_FOUND."""
    denied = denied_on_cluster(session, Op.ALTER)
    folder = "" if denied is not None else (await session.access.cluster(Op.ALTER).log_dir())[0]
    results = []
    for place in request["dirs"]:
        for asked in place["topics"]:
            count = 0 if denied is not None else _count(session, asked["name"])
            rows = []
            for index in asked["partitions"]:
                if denied is not None:
                    code = denied["error_code"]
                elif place["path"] != folder:
                    code = Code.LOG_DIR_NOT_FOUND
                else:
                    code = Code.NONE if 0 <= index < count else Code.UNKNOWN_TOPIC_OR_PARTITION
                rows.append({"partition_index": index, "error_code": code})
            results.append({"topic_name": asked["name"], "partitions": rows})
            await session.pause()
    return {"results": results}


@serves(ApiKey.ALTER_PARTITION_REASSIGNMENTS, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def alter_partition_reassignments(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Begins reassignments, and cancels them (KIP-455)."""
    denied = denied_on_cluster(session, Op.ALTER)
    responses = []
    for asked in request["topics"]:
        if denied is None:
            rows = await _reassign(session, asked["name"], asked["partitions"])
        else:  # Java's client wants an answer for each partition also then
            rows = [{"partition_index": each["partition_index"], **denied} for each in asked["partitions"]]
        responses.append({"name": asked["name"], "partitions": rows})
        await session.pause()
    return {**(denied or DONE), "responses": responses}


async def _reassign(session: KafkaSessionPort, name: str, asked: Sequence[Message]) -> list[Message]:
    """The answers for some partitions of a topic."""
    count, answers = _count(session, name), list[Message]()
    wanted: dict[int, Sequence[int] | None] = {}
    twice = more_than_once(each["partition_index"] for each in asked)
    for each in asked:
        index = each["partition_index"]
        try:
            if index in twice:
                raise RefusedApi(Code.INVALID_REQUEST, "the request names the partition twice")
            _check_move(session, name, index, count, each["replicas"])
            wanted[index] = each["replicas"]
        except NO as error:
            answers.append({"partition_index": index, **refusal(error)})
    try:
        idle = await session.access.moves(Op.ALTER).reassign(name, wanted) if wanted else set()
    except NO as error:
        return [*answers, *({"partition_index": index, **refusal(error)} for index in wanted)]
    none = refusal(RefusedApi(Code.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."))
    return [*answers, *({"partition_index": index, **(none if index in idle else DONE)} for index in wanted)]


PREFERRED, UNCLEAN = 0, 1  # types of elections
AT_ONCE = 10  # elections of one request
_NO_LEADER = {
    PREFERRED: (Code.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available"),
    UNCLEAN: (Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available"),
}


@serves(ApiKey.ELECT_LEADERS, needs=needs.cluster(Op.ALTER) + needs.topic(Op.DESCRIBE))
async def elect_leaders(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Makes the preferred replicas of partitions their leaders (KIP-183). In an unclean election, gives partitions
    without a leader one that may lack events (KIP-460). If the request means all, the answer leaves out those that need
    no election."""
    kind, everything = request["election_type"], request["topic_partitions"] is None
    if kind not in _NO_LEADER:
        return {"error_code": Code.INVALID_REQUEST, "replica_election_results": []}
    if (denied := denied_on_cluster(session, Op.ALTER)) is not None:
        return {**denied, "replica_election_results": []}
    moves = session.access.moves(Op.ALTER)
    chosen: Mapping[str, Iterable[int]]
    if everything:
        chosen = {name: range(topic.count) for name, topic in session.access.topics(Op.DESCRIBE).items()}
    else:
        chosen = {asked["topic"]: dict.fromkeys(asked["partitions"]) for asked in request["topic_partitions"]}
    results = []
    for name, indexes in chosen.items():
        count = _count(session, name)

        async def elect(index: int, name: str = name, count: int = count) -> Message:
            try:
                if not 0 <= index < count:
                    raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
                why = await moves.elect(name, index, unclean=kind == UNCLEAN)
                if why is not None and not why.needed:
                    text = "Leader election not needed for topic partition."
                    raise RefusedApi(Code.ELECTION_NOT_NEEDED, text)
                if why is not None:
                    code, text = _NO_LEADER[kind]
                    raise RefusedApi(code, f"{text}: {why.why}.")
                return {"partition_id": index, **DONE}
            except NO as error:
                return {"partition_id": index, **refusal(error)}
            finally:
                await session.pause()

        rows = await side_by_side(elect, indexes, AT_ONCE)
        if everything:
            rows = [row for row in rows if row["error_code"] != Code.ELECTION_NOT_NEEDED]
        if rows or not everything:
            results.append({"topic": name, "partition_result": rows})
    return {"replica_election_results": results}


def _count(session: KafkaSessionPort, name: str) -> int:
    """The number of the topic's partitions; 0 if it is unknown."""
    if not session.access.may(Resource.TOPIC, name, Op.DESCRIBE):
        return 0
    topic = session.access.find_topic(name, Op.DESCRIBE)
    return 0 if topic is None else topic.count


def _check_move(session: KafkaSessionPort, name: str, index: int, count: int, assigned: Sequence[int] | None) -> None:
    """`assigned`: the brokers that are to have partition `index` of `count`; None cancels a move. Raises RefusedApi."""
    image = session.broker.image
    if not 0 <= index < count or name not in image.topics or index >= len(image.topics[name].partitions):
        raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
    if assigned is not None:
        replicas(assigned, {*image.brokers, *image.topics[name].partitions[index].replicas})
