"""OffsetCommit (8): a group's positions, kept until its next ones; acknowledged when they are on disk."""

from __future__ import annotations

from typing import Any

from krappy.core.kafka.faults import Fault
from krappy.core.kafka.offset import Offset
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.sources import topic_of
from krappy.ports import KafkaSessionPort, LaterPort
from krappy.wire.kafka import Code

BY_ID_SINCE = 10
RETENTION_UNTIL = 4  # clients may say for how long
LONGEST_METADATA = 4096  # characters; Kafka's offset.metadata.max.bytes


def offset_commit(session: KafkaSessionPort, request: Message, version: int) -> Message | LaterPort:
    offsets, answers = read_offsets(session, request, version, by_id=version >= BY_ID_SINCE)
    groups = session.broker.kafka_groups

    def answer(error: KrappyError | None) -> Message:
        code = Code.NONE if error is None else group_code(error)
        return {"throttle_time_ms": 0, "topics": with_code(answers, code)}

    try:
        group = groups.offsets.check(
            request["group_id"],
            request["member_id"],
            request["generation_id_or_member_epoch"],
            request["group_instance_id"],
            version=version,
        )
        committed = groups.offsets.commit_later(group, offsets)
    except KrappyError as error:
        return answer(error)
    return committed.map(answer)  # type: ignore[no-any-return]


def read_offsets(
    session: KafkaSessionPort, request: Message, version: int, *, by_id: bool
) -> tuple[dict[tuple[str, int], Offset], list[Message]]:
    """The offsets of a request that may be committed, and its answer's topics: None as the code of those."""
    now = session.broker.clock.steady_ms()
    retention = request.get("retention_time_ms", -1)
    expires = now + retention if retention >= 0 and version <= RETENTION_UNTIL else None
    offsets: dict[tuple[str, int], Offset] = {}
    answers: list[Message] = []
    for asked in request["topics"]:
        topic = topic_of(session, asked["name"], asked.get("topic_id", b""), by_id)
        told: list[Message] = []
        for each in asked["partitions"]:
            index, metadata = each["partition_index"], each["committed_metadata"] or ""
            code: int | None = None
            if isinstance(topic, Code):
                code = topic
            elif not 0 <= index < len(topic.partitions):
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > LONGEST_METADATA:
                code = Fault.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = each.get("committed_leader_epoch", -1)
                offsets[topic.name, index] = Offset(each["committed_offset"], epoch, metadata, now, expires)
            told.append({"partition_index": index, "error_code": code})
        answers.append({"name": asked["name"], "topic_id": asked.get("topic_id", b""), "partitions": told})
    return offsets, answers


def with_code(answers: list[Message], code: int) -> list[Message]:
    """The answer's topics, with the code of all that could be committed."""
    partition: dict[str, Any]
    for topic in answers:
        for partition in topic["partitions"]:
            if partition["error_code"] is None:
                partition["error_code"] = code
    return answers
