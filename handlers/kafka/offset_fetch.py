"""OffsetFetch (9): where groups stand. A partition that a group has no position in has offset -1, and is no error."""

from __future__ import annotations

from typing import Any

from krappy.core.kafka.faults import Fault
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.sources import topic_named, topic_of
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import UUID_ZERO, Code

CODE_OF_GROUP_SINCE = 2
SEVERAL_SINCE = 8  # groups (KIP-709)
BY_ID_SINCE = 10


def offset_fetch(session: KafkaSessionPort, request: Message, version: int) -> Message:
    stable = bool(request.get("require_stable", False))
    if version >= SEVERAL_SINCE:
        return {
            "throttle_time_ms": 0,
            "groups": [_group(session, asked, stable, version) for asked in request["groups"]],
        }
    asked = {"group_id": request["group_id"], "topics": request["topics"], "member_id": None, "member_epoch": -1}
    told = _group(session, asked, stable, version)
    return {"throttle_time_ms": 0, "error_code": told["error_code"], "topics": told["topics"]}


def _group(session: KafkaSessionPort, asked: Message, stable: bool, version: int) -> Message:
    name, topics = asked["group_id"], asked["topics"]
    try:
        group = session.broker.kafka_groups.offsets.readable(
            name, asked.get("member_id"), asked.get("member_epoch", -1)
        )
    except KrappyError as error:
        code = group_code(error)
        told = [_failed(topic, code) for topic in topics or ()] if version < CODE_OF_GROUP_SINCE else []
        return {"group_id": name, "error_code": code, "topics": told}
    if topics is not None:
        return {
            "group_id": name,
            "error_code": Code.NONE,
            "topics": [_topic(session, group, topic, stable, version) for topic in topics],
        }
    found: dict[str, list[int]] = {}
    for topic, index in sorted({*group.offsets, *_staged(group)}) if group is not None else ():
        found.setdefault(topic, []).append(index)
    told = []
    for topic, indexes in found.items():
        known = topic_named(session, topic)
        if known is not None or version < BY_ID_SINCE:
            uuid = UUID_ZERO if known is None else known.uuid
            told.append(_positions(group, topic, uuid, indexes, stable))
    return {"group_id": name, "error_code": Code.NONE, "topics": told}


def _staged(group: Any) -> set[tuple[str, int]]:
    return {at for offsets in group.pending.values() for at in offsets}


def _topic(session: KafkaSessionPort, group: Any, asked: Message, stable: bool, version: int) -> Message:
    indexes = asked["partition_indexes"]
    if version < BY_ID_SINCE:
        return _positions(group, asked["name"], UUID_ZERO, indexes, stable)
    topic = topic_of(session, "", asked["topic_id"], True)
    if isinstance(topic, Code):
        return _failed(asked, topic)
    return _positions(group, topic.name, asked["topic_id"], indexes, stable)


def _positions(group: Any, name: str, uuid: bytes, indexes: list[int], stable: bool) -> Message:
    told = []
    for index in indexes:
        offset = None if group is None else group.offsets.get((name, index))
        if stable and group is not None and group.unstable((name, index)):
            told.append(_nothing(index, Fault.UNSTABLE_OFFSET_COMMIT))
        elif offset is None:
            told.append(_nothing(index, Code.NONE))
        else:
            told.append(
                {
                    "partition_index": index,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "metadata": offset.metadata,
                    "error_code": Code.NONE,
                }
            )
    return {"name": name, "topic_id": uuid, "partitions": told}


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
