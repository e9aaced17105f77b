"""OffsetFetch (9): the positions of groups. Where a group has no position, the offset is -1, without an error."""

from __future__ import annotations

from krappy.core.kafka.faults import Fault
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import BatchedRows, counted
from krappy.handlers.kafka.sources import topic_named, topic_of
from krappy.ports import KafkaGroupPort, KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

CODE_OF_GROUP_SINCE = 2  # the version from which a group has an error code
SEVERAL_SINCE = 8  # the version from which several groups are asked for at once (KIP-709)
BY_ID_SINCE = 10


@serves(ApiKey.OFFSET_FETCH, 1, 10, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def offset_fetch(session: KafkaSessionPort, request: Message, version: int) -> Message:
    asked = request["groups"]
    if version < SEVERAL_SINCE:
        asked = [{"group_id": request["group_id"], "topics": request["topics"], "member_id": None, "member_epoch": -1}]
    stable = bool(request.get("require_stable", False))
    async with counted(session) as rows:
        told = [await _group(session, rows, each, stable, version) for each in asked]
    if version >= SEVERAL_SINCE:
        return {"throttle_time_ms": 0, "groups": told}
    return {"throttle_time_ms": 0, "error_code": told[0]["error_code"], "topics": told[0]["topics"]}


async def _group(session: KafkaSessionPort, rows: BatchedRows, asked: Message, stable: bool, version: int) -> Message:
    name, topics = asked["group_id"], asked["topics"]
    told: list[Message] = []
    answer: Message = {"group_id": name, "error_code": Code.NONE, "topics": told}
    await rows.add(1)
    try:
        group = session.access.kafka_group(name, Op.DESCRIBE).offsets.readable(
            name, asked.get("member_id"), asked.get("member_epoch", -1)
        )
    except KrappyError as error:
        answer["error_code"] = code = group_code(error)
        if version < CODE_OF_GROUP_SINCE:
            for topic in topics or ():
                told.append(_failed(topic, code))
                await rows.add(len(topic["partition_indexes"]))
        return answer
    if topics is not None:
        for topic in topics:
            told.append(await _topic(session, rows, group, topic, stable, version))
        return answer
    found: dict[str, list[int]] = {}
    for of, index in sorted({*group.offsets, *_staged(group)}) if group is not None else ():
        found.setdefault(of, []).append(index)
    for of, indexes in found.items():
        known = topic_named(session, of, Op.DESCRIBE)
        if known is not None or version < BY_ID_SINCE:
            id = UUID_ZERO if known is None else known.id
            told.append(await _positions(rows, group, of, id, indexes, stable))
    return answer


def _staged(group: KafkaGroupPort) -> set[tuple[str, int]]:
    return {at for offsets in group.pending.values() for at in offsets}


async def _topic(
    session: KafkaSessionPort,
    rows: BatchedRows,
    group: KafkaGroupPort | None,
    asked: Message,
    stable: bool,
    version: int,
) -> Message:
    indexes = asked["partition_indexes"]
    if version < BY_ID_SINCE:
        return await _positions(rows, group, asked["name"], UUID_ZERO, indexes, stable)
    topic = topic_of(session, "", asked["topic_id"], True, Op.DESCRIBE)
    if isinstance(topic, Code):
        await rows.add(len(indexes))
        return _failed(asked, topic)
    return await _positions(rows, group, topic.name, asked["topic_id"], indexes, stable)


async def _positions(
    rows: BatchedRows, group: KafkaGroupPort | None, name: str, id: bytes, indexes: list[int], stable: bool
) -> Message:
    told = []
    for index in indexes:
        told.append(_position(group, name, index, stable))
        await rows.add(1)
    return {"name": name, "topic_id": id, "partitions": told}


def _position(group: KafkaGroupPort | None, name: str, index: int, stable: bool) -> Message:
    offset = None if group is None else group.offsets.get((name, index))
    if stable and group is not None and group.unstable((name, index)):
        return _nothing(index, Fault.UNSTABLE_OFFSET_COMMIT)
    if offset is None:
        return _nothing(index, Code.NONE)
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": Code.NONE,
    }


def _failed(asked: Message, code: int) -> Message:
    return {
        "name": asked.get("name", ""),
        "topic_id": asked.get("topic_id", UUID_ZERO),
        "partitions": [_nothing(index, code) for index in asked["partition_indexes"]],
    }


def _nothing(index: int, code: int) -> Message:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }
