"""Share groups (KIP-932): their members' heartbeats, and what tools ask of them. What members read is in
share_fetch.py."""

from __future__ import annotations

from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import Beaten
from krappy.core.kafka.share import ASSIGNOR, share_beat
from krappy.core.security import needs
from krappy.core.security.operations import Op, Resource
from krappy.errors import KrappyError
from krappy.handlers.kafka.groups import group_code, kafka_host
from krappy.handlers.kafka.modern_groups import NOT_ALL, by_topic, described, if_described, parts_of
from krappy.handlers.kafka.registry import Answer, Message, serves
from krappy.handlers.kafka.rows import FEW, BatchedRows, counted
from krappy.handlers.kafka.sources import denied_topics
from krappy.ports import KafkaSessionPort, PartitionId, SharePosition, TopicPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

SHARE = "share"
NOWHERE = -1  # the start offset where the group has not begun to read


@serves(ApiKey.SHARE_GROUP_HEARTBEAT, needs=needs.group(Op.READ) + needs.topic(Op.DESCRIBE))
def share_group_heartbeat(session: KafkaSessionPort, request: Message, version: int) -> Answer:
    """All there is between a member and its coordinator: join, stay, be assigned, leave."""
    name, topics = request["group_id"], request["subscribed_topic_names"]
    access = session.access
    groups = access.kafka_group(name, Op.READ)
    beat = share_beat(
        request["member_id"],
        request["member_epoch"],
        request["rack_id"],
        None if topics is None else tuple(topics),
        session.client_id or "",
        kafka_host(session),
    )

    def answer(beaten: Beaten | KrappyError) -> Message:
        if isinstance(beaten, KrappyError):
            return {"error_code": group_code(beaten), "error_message": beaten.text}
        told: Message = {
            "error_code": Code.NONE,
            "member_id": beaten.member_id,
            "member_epoch": beaten.epoch,
            "heartbeat_interval_ms": groups.settings.heartbeat_ms(name, SHARE),
        }
        if beaten.assignment is not None:
            parts = [
                {"topic_id": topic, "partitions": some}
                for topic, some in by_topic(beaten.assignment)
                if access.sees is None or access.find_topic_by_id(topic, Op.DESCRIBE) is not None
            ]
            told["assignment"] = {"topic_partitions": parts}
        return told

    def serve() -> Answer:
        return access.kafka_group(name, Op.READ).share.beat(name, beat).map(answer)

    may = access.may(Resource.GROUP, name, Op.READ)
    return if_described(session, topics if may and topics else (), serve)


@serves(ApiKey.SHARE_GROUP_DESCRIBE, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def share_group_describe(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return await described(session, request, _describe)


async def _describe(session: KafkaSessionPort, name: str) -> Message:
    answer: Message = {"group_id": name, "group_state": "", "assignor_name": "", "members": [], "error_code": Code.NONE}
    try:
        group, names = await session.access.kafka_group(name, Op.DESCRIBE).share.describe(name)
    except KrappyError as error:
        code = group_code(error) if name else Code.INVALID_GROUP_ID
        return answer | {"error_code": code, "error_message": error.text, "group_state": "Dead"}
    parts = parts_of(session, group, names)
    if parts is None:
        return answer | {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": NOT_ALL}
    return answer | {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": ASSIGNOR,
        "members": [
            {
                "member_id": each.id,
                "rack_id": each.rack,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "subscribed_topic_names": list(each.topics),
                "assignment": parts(each.assigned),
            }
            for each in group.members.values()
        ],
    }


@serves(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_share_group_offsets(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Where groups are in partitions, and how far behind (KIP-1226)."""
    groups = []
    async with counted(session) as rows:
        for asked in request["groups"]:
            groups.append(await _positions(session, asked, rows))
    return {"groups": groups}


async def _positions(session: KafkaSessionPort, asked: Message, rows: BatchedRows) -> Message:
    name = asked["group_id"]
    try:
        found = await session.access.kafka_group(name, Op.DESCRIBE).share.positions(name)
    except KrappyError as error:
        await rows.add(1)
        code = group_code(error) if name else Code.INVALID_GROUP_ID
        return {"group_id": name, "topics": [], "error_code": code, "error_message": error.text}
    wanted: dict[str, list[int]] = {}
    if asked["topics"] is None:
        for topic, index in found:
            if session.access.may(Resource.TOPIC, topic, Op.DESCRIBE):
                wanted.setdefault(topic, []).append(index)
    else:
        wanted = {each["topic_name"]: each["partitions"] for each in asked["topics"]}
    topics = []
    for topic, indexes in wanted.items():
        may = session.access.may(Resource.TOPIC, topic, Op.DESCRIBE)
        there = session.access.find_topic(topic, Op.DESCRIBE) if may else None
        id = UUID_ZERO if there is None else there.id
        count = 0 if there is None else there.count
        parts = []
        for index in indexes:
            if not may:
                why: Message = {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": None}
                parts.append({"partition_index": index, "start_offset": NOWHERE, "leader_epoch": 0, **why})
            elif not 0 <= index < count:
                why = {"error_code": Code.UNKNOWN_TOPIC_OR_PARTITION, "error_message": f"there is no {topic}-{index}"}
                parts.append({"partition_index": index, "start_offset": NOWHERE, "leader_epoch": 0, **why})
            else:
                parts.append({"partition_index": index, **_position(found.get((topic, index)))})
            await rows.add(1)
        topics.append({"topic_name": topic, "topic_id": id, "partitions": parts})
    return {"group_id": name, "topics": topics, "error_code": Code.NONE}


def _position(found: SharePosition | None) -> Message:
    if found is None:
        return {"start_offset": NOWHERE, "leader_epoch": 0, "lag": -1, "error_code": Code.NONE}
    told = {"start_offset": found.start, "leader_epoch": max(0, found.leader_epoch), "lag": found.lag}
    return {**told, "error_code": Code.NONE}


@serves(ApiKey.ALTER_SHARE_GROUP_OFFSETS, needs=needs.group(Op.READ) + needs.topic(Op.READ))
async def alter_share_group_offsets(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Moves a group without members. Nothing is moved if the group can't be."""
    moves: dict[PartitionId, int] = {}
    responses = []
    for asked in request["topics"]:
        topic = _topic_to_move(session, asked["topic_name"])
        rows = []
        for each in asked["partitions"]:
            row: Message = {"partition_index": each["partition_index"], "error_code": Code.NONE}
            try:
                if isinstance(topic, KrappyError):
                    raise topic
                if each["start_offset"] < 0:
                    raise Refused(Fault.INVALID_REQUEST, "StartOffset must be at least 0")
                if not 0 <= each["partition_index"] < topic.count:
                    raise Refused(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no such partition")
                moves[PartitionId(topic.id, each["partition_index"])] = each["start_offset"]
            except KrappyError as error:
                row |= {"error_code": group_code(error), "error_message": error.text}
            rows.append(row)
        await session.pause()
        id = UUID_ZERO if isinstance(topic, KrappyError) else topic.id
        responses.append({"topic_name": asked["topic_name"], "topic_id": id, "partitions": rows})
    name = request["group_id"]
    try:
        await session.access.kafka_group(name, Op.READ).share.alter(name, moves)
    except KrappyError as error:
        code = group_code(error) if name else Code.INVALID_GROUP_ID
        return {"error_code": code, "error_message": error.text, "responses": []}
    return {"error_code": Code.NONE, "responses": responses}


def _topic_to_move(session: KafkaSessionPort, name: str) -> TopicPort | KrappyError:
    """The topic, or why no group is moved in it."""
    try:
        topic = session.access.find_topic(name, Op.READ)
    except KrappyError as error:
        return error
    if topic is None or topic.internal:
        return Refused(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name:.249}'")
    return topic


@serves(ApiKey.DELETE_SHARE_GROUP_OFFSETS, needs=needs.group(Op.DELETE) + needs.topic(Op.READ))
async def delete_share_group_offsets(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Deletes a group's positions in topics; it must have no members."""
    name = request["group_id"]
    access, names = session.access, [each["topic_name"] for each in request["topics"]]
    denied = await denied_topics(session, names, Op.READ)
    found: dict[str, TopicPort | None] = dict.fromkeys(names)
    for number, topic in enumerate(found, 1):
        if topic not in denied:
            found[topic] = access.find_topic(topic, Op.READ)
        if number % FEW == 0:
            await session.pause()
    try:
        there = [known.id for known in found.values() if known is not None]
        await session.access.kafka_group(name, Op.DELETE).share.forget(name, there)
    except KrappyError as error:
        code = group_code(error) if name else Code.INVALID_GROUP_ID
        return {"error_code": code, "error_message": error.text, "responses": []}
    unknown = {"error_code": Code.UNKNOWN_TOPIC_OR_PARTITION, "error_message": "There is no such topic."}
    refused = {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "error_message": None}
    return {
        "error_code": Code.NONE,
        "responses": [
            {"topic_name": topic, "topic_id": UUID_ZERO, **(refused if topic in denied else unknown)}
            if known is None
            else {"topic_name": topic, "topic_id": known.id, "error_code": Code.NONE}
            for topic, known in found.items()
        ],
    }
