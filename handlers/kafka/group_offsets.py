"""Positions of groups."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from krappy.core.kafka.faults import Fault
from krappy.core.kafka.offset import Offset
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.groups import group_code
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import FEW, BatchedRows, counted
from krappy.handlers.kafka.sources import denied_topics, found, topic_of
from krappy.ports import KafkaGroupPort, KafkaSessionPort, SourceTopicPort
from krappy.waiting import Later
from krappy.wire.kafka import UUID_ZERO, ApiKey, Code

Offsets = dict[tuple[str, int], Offset]
BY_ID_SINCE = 10  # the version from which topics are named by their ids (KIP-848)
RETENTION_UNTIL = 4  # the last version in which clients say how long positions are kept
LONGEST_METADATA = 4096  # characters; Kafka's offset.metadata.max.bytes


@serves(ApiKey.OFFSET_COMMIT, needs=needs.group(Op.READ) + needs.topic(Op.READ))
def offset_commit(
    session: KafkaSessionPort, request: Message, version: int
) -> Message | Later[Message] | Coroutine[Any, Any, Message]:
    """Stores positions. Acknowledged when they are on disk. As in Kafka, who may not read in the group is told that,
    and nothing of the topics."""
    if sum(1 + len(topic["partitions"]) for topic in request["topics"]) > FEW:
        return _commit_many(session, request, version)
    offsets: Offsets = {}
    answers: list[Message] = []
    for _ in _read(session, request, version, offsets, answers, []):
        pass
    return _commit(session, request, version, offsets, answers)


async def _commit_many(session: KafkaSessionPort, request: Message, version: int) -> Message:
    offsets: Offsets = {}
    answers: list[Message] = []
    sources: list[tuple[SourceTopicPort, list[Message]]] = []
    await session.pause()  # reading the request took long
    for _ in _read(session, request, version, offsets, answers, sources):
        await session.pause()
    for topic, told in sources:
        again = topic_of(session, topic.name, topic.id, version >= BY_ID_SINCE, Op.READ)
        if isinstance(again, Code):  # deleted meanwhile; another may have its name
            for each in told:
                if offsets.pop((topic.name, each["partition_index"]), None) is not None:
                    each["error_code"] = again
    done = _commit(session, request, version, offsets, answers)
    return done if isinstance(done, dict) else await done.wait()


def _commit(
    session: KafkaSessionPort, request: Message, version: int, offsets: Offsets, answers: list[Message]
) -> Message | Later[Message]:
    groups = session.access.kafka_group(request["group_id"], Op.READ)

    def answer(error: KrappyError | None) -> Message:
        code = Code.NONE if error is None else group_code(error)
        return {"topics": with_code(answers, code, every=code == Code.GROUP_AUTHORIZATION_FAILED)}

    try:
        committed = groups.offsets.commit_as(
            request["group_id"],
            request["member_id"],
            request["generation_id_or_member_epoch"],
            request["group_instance_id"],
            offsets,
            version=version,
        )
    except KrappyError as error:
        return answer(error)
    return committed.map(answer)


def _read(
    session: KafkaSessionPort,
    request: Message,
    version: int,
    offsets: Offsets,
    answers: list[Message],
    sources: list[tuple[SourceTopicPort, list[Message]]],
) -> Iterator[None]:
    """Adds to `offsets` the positions of a request that may be committed, and to `answers` the topics of its answer,
    and to `sources` the topics that are there. The positions have the code None in both. Yields when others should have
    their turn."""
    by_id, rows = version >= BY_ID_SINCE, 0
    now = session.broker.clock.steady_ms()
    retention = request.get("retention_time_ms", -1)
    expires = now + retention if retention >= 0 and version <= RETENTION_UNTIL else None
    for asked in request["topics"]:
        topic = topic_of(session, asked["name"], asked.get("topic_id", b""), by_id, Op.READ)
        told: list[Message] = []
        if not isinstance(topic, Code):
            sources.append((topic, told))
        for each in asked["partitions"]:
            index, metadata = each["partition_index"], each["committed_metadata"] or ""
            code: int | None = None
            if isinstance(topic, Code):
                code = topic
            elif not 0 <= index < topic.count:
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > LONGEST_METADATA:
                code = Fault.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = each.get("committed_leader_epoch", -1)
                offsets[topic.name, index] = Offset(each["committed_offset"], epoch, metadata, now, expires)
            told.append({"partition_index": index, "error_code": code})
            rows += 1
            if rows % FEW == 0:
                yield
        answers.append({"name": asked["name"], "topic_id": asked.get("topic_id", b""), "partitions": told})


def with_code(answers: list[Message], code: int, *, every: bool) -> list[Message]:
    """The answer's topics, with `code` for all positions that have the code None; or for `every` position."""
    partition: dict[str, Any]
    for topic in answers:
        for partition in topic["partitions"]:
            if every or partition["error_code"] is None:
                partition["error_code"] = code
    return answers


CODE_OF_GROUP_SINCE = 2  # the version from which a group has an error code
SEVERAL_SINCE = 8  # the version from which several groups are asked for at once (KIP-709)


@serves(ApiKey.OFFSET_FETCH, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def offset_fetch(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Where a group has no position, the offset is -1, without an error."""
    asked = request["groups"]
    if version < SEVERAL_SINCE:
        asked = [{"group_id": request["group_id"], "topics": request["topics"], "member_id": None, "member_epoch": -1}]
    stable = bool(request.get("require_stable", False))
    async with counted(session) as rows:
        told = [await _group(session, rows, each, stable, version) for each in asked]
    if version >= SEVERAL_SINCE:
        return {"groups": told}
    return {"error_code": told[0]["error_code"], "topics": told[0]["topics"]}


async def _group(session: KafkaSessionPort, rows: BatchedRows, asked: Message, stable: bool, version: int) -> Message:
    name, topics = asked["group_id"], asked["topics"]
    told: list[Message] = []
    answer: Message = {"group_id": name, "error_code": Code.NONE, "topics": told}
    await rows.add(1)
    try:
        group = await session.access.kafka_group(name, Op.DESCRIBE).offsets.readable(
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
    there: dict[str, list[int]] = {}
    for of, index in sorted({*group.offsets, *_staged(group)}) if group is not None else ():
        there.setdefault(of, []).append(index)
    for of, indexes in there.items():
        known = found(session, of, Op.DESCRIBE)
        if known is Code.TOPIC_AUTHORIZATION_FAILED:
            continue
        if not isinstance(known, Code) or version < BY_ID_SINCE:
            id = UUID_ZERO if isinstance(known, Code) else known.id
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
    by_id = version >= BY_ID_SINCE
    topic = topic_of(session, asked.get("name", ""), asked.get("topic_id", UUID_ZERO), by_id, Op.DESCRIBE)
    if not by_id and topic is not Code.TOPIC_AUTHORIZATION_FAILED:  # positions stay when their topic is deleted
        return await _positions(rows, group, asked["name"], UUID_ZERO, indexes, stable)
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


@serves(ApiKey.OFFSET_DELETE, needs=needs.group(Op.DELETE) + needs.topic(Op.READ))
async def offset_delete(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """A group forgets its positions in topics that none of its members subscribes to (KIP-496)."""
    groups = session.access.kafka_group(request["group_id"], Op.DELETE)
    asked = [(topic["name"], [each["partition_index"] for each in topic["partitions"]]) for topic in request["topics"]]
    denied = await denied_topics(session, (name for name, _ in asked), Op.READ)
    try:
        faults = await groups.offsets.delete_from(
            request["group_id"], [(name, at) for name, some in asked if name not in denied for at in some]
        )
    except KrappyError as error:
        return {"error_code": group_code(error), "topics": []}
    return {
        "error_code": Code.NONE,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": at,
                        "error_code": Code.TOPIC_AUTHORIZATION_FAILED if name in denied else faults[name, at],
                    }
                    for at in some
                ],
            }
            for name, some in asked
        ],
    }
