"""OffsetCommit (8): stores a group's positions. Acknowledged when they are on disk."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from krappy.core.kafka.faults import Fault
from krappy.core.kafka.offset import Offset
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import FEW
from krappy.handlers.kafka.sources import topic_named, topic_of
from krappy.ports import KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey, Code

Offsets = dict[tuple[str, int], Offset]
BY_ID_SINCE = 10
RETENTION_UNTIL = 4  # the last version in which clients say how long positions are kept
LONGEST_METADATA = 4096  # characters; Kafka's offset.metadata.max.bytes


@serves(ApiKey.OFFSET_COMMIT, 2, 10, needs=needs.group(Op.READ) + needs.topic(Op.READ))
def offset_commit(
    session: KafkaSessionPort, request: Message, version: int
) -> Message | Later[Message] | Coroutine[Any, Any, Message]:
    if sum(1 + len(topic["partitions"]) for topic in request["topics"]) > FEW:
        return _commit_many(session, request, version)
    offsets: Offsets = {}
    answers: list[Message] = []
    for _ in _read(session, request, version, offsets, answers):
        pass
    return _commit(session, request, version, offsets, answers)


async def _commit_many(session: KafkaSessionPort, request: Message, version: int) -> Message:
    offsets: Offsets = {}
    answers: list[Message] = []
    for _ in _read(session, request, version, offsets, answers):
        await session.pause()
    gone = {name for name, _ in offsets if topic_named(session, name, Op.READ) is None}  # deleted meanwhile
    kept = {at: offset for at, offset in offsets.items() if at[0] not in gone} if gone else offsets
    done = _commit(session, request, version, kept, answers)
    return done if isinstance(done, dict) else await done.wait()


def _commit(
    session: KafkaSessionPort, request: Message, version: int, offsets: Offsets, answers: list[Message]
) -> Message | Later[Message]:
    groups = session.access.kafka_group(request["group_id"], Op.READ)

    def answer(error: KrappyError | None) -> Message:
        code = Code.NONE if error is None else group_code(error)
        return {"throttle_time_ms": 0, "topics": with_code(answers, code)}

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
    session: KafkaSessionPort, request: Message, version: int, offsets: Offsets, answers: list[Message]
) -> Iterator[None]:
    """Adds to `offsets` the positions of a request that may be committed, and to `answers` the topics of its answer.
    There these positions have the code None. Yields when others should have their turn."""
    by_id, rows = version >= BY_ID_SINCE, 0
    now = session.broker.clock.steady_ms()
    retention = request.get("retention_time_ms", -1)
    expires = now + retention if retention >= 0 and version <= RETENTION_UNTIL else None
    for asked in request["topics"]:
        topic = topic_of(session, asked["name"], asked.get("topic_id", b""), by_id, Op.READ)
        told: list[Message] = []
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


def with_code(answers: list[Message], code: int) -> list[Message]:
    """The answer's topics, with `code` for all positions that have the code None."""
    partition: dict[str, Any]
    for topic in answers:
        for partition in topic["partitions"]:
            if partition["error_code"] is None:
                partition["error_code"] = code
    return answers
