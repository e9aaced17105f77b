"""Creating, extending, shortening and deleting topics.

The checks, their order and their codes are those of Kafka's ReplicationControlManager. There are no creation policies.
One request creates at most `MAX_PARTITIONS` partitions of a topic, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from krappy.core.cluster.placement import Placement
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import InvalidTopic, KrappyError
from krappy.handlers.kafka.config_entries import SettingsShown, topic_entries
from krappy.handlers.kafka.refusals import DONE, NO, SHOWN, RefusedApi, more_than_once, refusal, replicas
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.sources import found, topic_named
from krappy.handlers.waits import bounded_ms
from krappy.ports import KafkaSessionPort, PartitionPort
from krappy.settings.topic import TopicConfig, check_topic_name
from krappy.settings.topic_table import normalise
from krappy.waiting import side_by_side
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code, code_for

MAX_PARTITIONS = 10_000  # of one request (QuorumController.MAX_RECORDS_PER_USER_OP)
AT_ONCE = 10  # topics of one request that are made, extended or deleted at the same time
DEFAULT = -1
# The version from which an answer may refuse a change because of a quota (KIP-599).
QUOTA_SINCE: Mapping[int, int] = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}


@serves(ApiKey.CREATE_TOPICS, needs=needs.topic(Op.CREATE, Op.DESCRIBE_CONFIGS) + needs.cluster(Op.CREATE))
async def create_topics(session: KafkaSessionPort, request: Message, version: int) -> Message:
    session.knows_quotas = version >= QUOTA_SINCE[ApiKey.CREATE_TOPICS]
    deadline = _deadline(session, request)
    topics = request["topics"]
    twice = more_than_once(topic["name"] for topic in topics)
    asked = {topic["name"]: topic for topic in topics}
    too_many = sum(_count(session, topic) for topic in asked.values()) > MAX_PARTITIONS

    async def answer(topic: Message) -> Message:
        name = topic["name"]
        try:
            if name in twice:
                raise RefusedApi(Code.INVALID_REQUEST, f"the request names the topic '{name:.{SHOWN}}' twice")
            if too_many:
                raise RefusedApi(Code.POLICY_VIOLATION, f"more than {MAX_PARTITIONS} partitions in one request")
            _check_time(session, deadline)
            return await _create(session, topic, validate_only=request["validate_only"])
        except NO as error:
            return {"name": name, "topic_id": UUID_ZERO, "configs": [], **refusal(error)}
        finally:
            await session.pause()

    return {"topics": await side_by_side(answer, asked.values(), AT_ONCE)}


async def _create(session: KafkaSessionPort, topic: Message, *, validate_only: bool) -> Message:
    name = topic["name"]
    check_topic_name(name)
    cluster = session.access.creating(name)
    if topic_named(session, name, Op.CREATE) is not None:
        raise RefusedApi(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    session.access.check_new_name(name)
    partitions = _partitions(session, topic)
    if more_than_once(config["name"] for config in topic["configs"]):
        raise RefusedApi(Code.INVALID_CONFIG, "a setting is given twice")
    config = normalise({config["name"]: config["value"] for config in topic["configs"]})
    TopicConfig.parse({**cluster.dynamic.topic_defaults, **config})
    if topic["assignments"]:
        in_order = sorted(topic["assignments"], key=lambda each: each["partition_index"])
        placed: Placement = [tuple(each["broker_ids"]) for each in in_order]
    else:
        placed = await cluster.place(partitions, topic["replication_factor"])
    id = UUID_ZERO
    if not validate_only:
        await session.until_mutable()
        made, _ = await session.access.create_topic(name, partitions, config, replicas=placed)
        id = made.id
    if session.access.may(Resource.TOPIC, name, Op.DESCRIBE_CONFIGS):
        described: Message = {
            "num_partitions": partitions,
            "replication_factor": len(placed[0]),
            "configs": topic_entries(config, cluster.dynamic.topic_layers(), {}, SettingsShown()),
        }
    else:
        described = {"topic_config_error_code": Code.TOPIC_AUTHORIZATION_FAILED, "configs": None}
    return {"name": name, "topic_id": id, **DONE, **described}


def _partitions(session: KafkaSessionPort, topic: Message) -> int:
    """How many partitions the topic gets. Raises RefusedApi for a wrong count, replication factor or assignment."""
    count, factor, assignments = topic["num_partitions"], topic["replication_factor"], topic["assignments"]
    if assignments:
        if factor != DEFAULT or count != DEFAULT:
            what = "replication factor" if factor != DEFAULT else "number of partitions"
            raise RefusedApi(Code.INVALID_REQUEST, f"with a manual assignment the {what} has to be -1")
        indexes = [each["partition_index"] for each in assignments]
        if sorted(indexes) != list(range(len(indexes))):
            text = "the partitions of a manual assignment have to be numbered 0, 1, 2 and so on, each once"
            raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, text)
        if len({len(each["broker_ids"]) for each in assignments}) > 1:
            text = "all partitions of a manual assignment need the same number of replicas"
            raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, text)
        for each in assignments:
            replicas(each["broker_ids"], session.broker.image.brokers)
        return len(indexes)
    if factor != DEFAULT and factor <= 0:
        raise RefusedApi(
            Code.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 for the default."
        )
    if count != DEFAULT and count <= 0:
        raise RefusedApi(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0, or -1 for the default.")
    there = len(session.broker.image.brokers)
    if factor > there > 0:  # else this broker is just being registered (`place`)
        are = "broker is" if there == 1 else "brokers are"
        text = f"The target replication factor of {factor} cannot be reached because only {there} {are} registered."
        raise RefusedApi(Code.INVALID_REPLICATION_FACTOR, text)
    return _count(session, topic)


def _count(session: KafkaSessionPort, topic: Message) -> int:
    if topic["assignments"]:
        return len(topic["assignments"])
    count: int = topic["num_partitions"]
    return session.broker.config.default_partitions if count == DEFAULT else max(0, count)


@serves(ApiKey.CREATE_PARTITIONS, needs=needs.topic(Op.ALTER))
async def create_partitions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    session.knows_quotas = version >= QUOTA_SINCE[ApiKey.CREATE_PARTITIONS]
    topics = request["topics"]
    twice = more_than_once(topic["name"] for topic in topics)

    async def answer(topic: Message) -> Message:
        name = topic["name"]
        try:
            if name in twice:
                raise RefusedApi(Code.INVALID_REQUEST, f"the request names the topic '{name:.{SHOWN}}' twice")
            await _check_more(session, topic)
            if not request["validate_only"]:
                assigned = topic["assignments"]
                placed = None if assigned is None else [tuple(each["broker_ids"]) for each in assigned]
                await session.until_mutable()
                await session.access.alter_topic(name, None, topic["count"], placed)
            return {"name": name, **DONE}
        except NO as error:
            return {"name": name, **refusal(error)}
        finally:
            await session.pause()

    asked = {topic["name"]: topic for topic in topics}
    return {"results": await side_by_side(answer, asked.values(), AT_ONCE)}


async def _check_more(session: KafkaSessionPort, topic: Message) -> None:
    found = await session.access.topic_to_change(topic["name"], Op.ALTER)
    if found is None:
        raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{topic['name']:.{SHOWN}}'")
    count, now, assignments = topic["count"], found.count, topic["assignments"]
    if count == now:
        raise RefusedApi(Code.INVALID_PARTITIONS, f"Topic already has {now} partition(s).")
    if count < now:
        text = f"The topic {found.name} currently has {now} partition(s); {count} would not be an increase."
        raise RefusedApi(Code.INVALID_PARTITIONS, text)
    more = count - now
    if more > MAX_PARTITIONS:
        raise RefusedApi(Code.POLICY_VIOLATION, f"more than {MAX_PARTITIONS} partitions in one request")
    if assignments is not None:
        if len(assignments) != more:
            text = f"{more} partition(s) are to be added, but {len(assignments)} assignment(s) were specified."
            raise RefusedApi(Code.INVALID_REPLICA_ASSIGNMENT, text)
        for each in assignments:
            replicas(each["broker_ids"], session.broker.image.brokers)


BY_ID_SINCE = 6


@serves(ApiKey.DELETE_TOPICS, needs=needs.topic(Op.DELETE, Op.DESCRIBE))
async def delete_topics(session: KafkaSessionPort, request: Message, version: int) -> Message:
    session.knows_quotas = version >= QUOTA_SINCE[ApiKey.DELETE_TOPICS]
    if version < BY_ID_SINCE:
        asked = [{"name": name, "topic_id": UUID_ZERO} for name in request["topic_names"]]
    else:
        asked = list(request["topics"])
    deadline = _deadline(session, request)
    meant = await _meant(session, asked)  # before any of them is deleted
    twice = more_than_once(name for _, name in meant if name is not None)
    once: dict[str | int, tuple[Message, str | None]] = {}  # a name that is meant several times gets one answer
    for index, each in enumerate(meant):
        once.setdefault(index if each[1] is None else each[1], each)

    async def answer(asked: tuple[Message, str | None]) -> Message:
        topic, name = asked
        answer = {"name": topic["name"], "topic_id": topic["topic_id"]}
        try:
            if topic["name"] is not None and topic["topic_id"] != UUID_ZERO:
                raise RefusedApi(Code.INVALID_REQUEST, "a topic is deleted by its name or by its id, not by both")
            if name is None:
                if topic["topic_id"] == UUID_ZERO:
                    raise RefusedApi(Code.INVALID_REQUEST, "the request gives neither the topic's name nor its id")
                raise RefusedApi(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            if name in twice:
                raise RefusedApi(Code.INVALID_REQUEST, f"the request names the topic '{name:.{SHOWN}}' twice")
            there = await session.access.topic_to_change(name, Op.DELETE)
            if there is None:
                raise RefusedApi(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
            _check_time(session, deadline)
            if topic["name"] is None and there.id != topic["topic_id"]:  # created anew while others were deleted
                raise RefusedApi(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            await session.until_mutable()
            await session.access.delete_topic(name, there.id)
            return answer | {"name": name, "topic_id": there.id, **DONE}
        except NO as error:
            return answer | refusal(error)
        finally:
            await session.pause()

    return {"responses": await side_by_side(answer, once.values(), AT_ONCE)}


def _deadline(session: KafkaSessionPort, request: Message) -> float | None:
    timeout = request["timeout_ms"]
    return session.broker.clock.steady_ms() + timeout if timeout > 0 else None  # librdkafka sends 0


def _check_time(session: KafkaSessionPort, deadline: float | None) -> None:
    if deadline is not None and session.broker.clock.steady_ms() >= deadline:
        raise RefusedApi(Code.REQUEST_TIMED_OUT, "the time allowed was over before this topic's turn came")


async def _meant(session: KafkaSessionPort, asked: Sequence[Message]) -> list[tuple[Message, str | None]]:
    """The entries of the request, each with the name of the topic that it means: None when no topic has its id."""
    ids = {each["topic_id"] for each in asked if each["name"] is None} - {UUID_ZERO}
    found = await session.access.topics_to_change(ids, Op.DESCRIBE)
    names = {topic.id: topic.name for topic in found if topic is not None}
    return [(each, names.get(each["topic_id"]) if each["name"] is None else each["name"]) for each in asked]


UNKNOWN = -1  # the low watermark of a partition that was not changed


@serves(ApiKey.DELETE_RECORDS, needs=needs.topic(Op.DELETE))
async def delete_records(session: KafkaSessionPort, request: Message, version: int) -> Message:
    topics = []
    deleted: list[tuple[Message, PartitionPort]] = []
    for asked in request["topics"]:
        try:
            meant = found(session, asked["name"], Op.DELETE)
        except InvalidTopic as error:
            meant = code_for(error)
        partitions: list[Message] = []
        for partition in asked["partitions"]:
            index, start, code = partition["partition_index"], UNKNOWN, Code.NONE
            if isinstance(meant, Code):
                code = meant
            elif (topic := session.access.find_topic(asked["name"], Op.DELETE)) is None:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION  # the name is a table's
            else:
                try:
                    led = topic.led(index)
                    start = await session.access.delete_records(led, partition["offset"])
                except KrappyError as error:
                    code = code_for(error)
            partitions.append({"partition_index": index, "low_watermark": start, "error_code": code})
            if start >= 0:
                deleted.append((partitions[-1], led))
            await session.pause()
        topics.append({"name": asked["name"], "partitions": partitions})
    end = session.broker.clock.steady_ms() + bounded_ms(request["timeout_ms"])
    for answer, led in deleted:
        try:
            await led.deleted_everywhere(answer["low_watermark"], max(0, end - session.broker.clock.steady_ms()) / 1000)
        except KrappyError as error:
            answer["error_code"] = code_for(error)
    return {"topics": topics}
