"""Offsets of logs: ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.refusals import more_than_once
from krappy.handlers.kafka.registry import Message, serves
from krappy.handlers.kafka.rows import FEW, counted
from krappy.handlers.kafka.sources import source_for, wrong_epoch
from krappy.ports import KafkaSessionPort, SourcePort
from krappy.wire.kafka import ApiKey, Code, code_for

Twice = set[tuple[str, int]]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NOT_AVAILABLE_SINCE = 5
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}  # KIP-734, KIP-405, KIP-1005
READ_COMMITTED = 1


@serves(ApiKey.LIST_OFFSETS, needs=needs.topic(Op.DESCRIBE))
def list_offsets(session: KafkaSessionPort, request: Message, version: int) -> Message | Coroutine[Any, Any, Message]:
    """A partition named twice is refused, as in Kafka (`ListOffsetsRequest.duplicatePartitions`)."""
    asked = [(topic["name"], asked) for topic in request["topics"] for asked in topic["partitions"]]
    twice = more_than_once((name, each["partition_index"]) for name, each in asked) if len(asked) > 1 else set()
    in_log = any(each["timestamp"] >= 0 or each["timestamp"] == MAX_TIMESTAMP for _, each in asked)
    if in_log or len(asked) > FEW:
        return _look_up(session, request, version, twice)
    topics = []
    for topic in request["topics"]:
        partitions = [_end(session, topic["name"], each, request, version, twice)[0] for each in topic["partitions"]]
        topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


async def _look_up(session: KafkaSessionPort, request: Message, version: int, twice: Twice) -> Message:
    topics = []
    async with counted(session) as rows:
        for topic in request["topics"]:
            partitions = []
            for asked in topic["partitions"]:
                answer, source = _end(session, topic["name"], asked, request, version, twice)
                if source is not None:
                    await _find(answer, source, asked["timestamp"], request["isolation_level"])
                partitions.append(answer)
                await rows.add(1)
            topics.append({"name": topic["name"], "partitions": partitions})
    return {"topics": topics}


def _end(
    session: KafkaSessionPort, name: str, asked: Message, request: Message, version: int, twice: Twice
) -> tuple[Message, SourcePort | None]:
    """(answer for a partition, its source if the log has to be searched for the answer, otherwise None)."""
    index, time = asked["partition_index"], asked["timestamp"]
    answer: Message = {"partition_index": index, "error_code": 0, "timestamp": -1, "offset": -1}
    if (name, index) in twice:
        return answer | {"error_code": Code.INVALID_REQUEST}, None
    try:
        source = source_for(session, name, index, Op.DESCRIBE)
        if source.gone is not None:
            raise source.gone
    except KrappyError as error:
        answer["error_code"] = code_for(error)
        return answer, None
    wrong = wrong_epoch(source, asked["current_leader_epoch"])
    if wrong:
        answer["error_code"] = wrong
    elif time < LATEST_TIERED or version < _SINCE.get(time, 0):
        answer["error_code"] = Code.UNSUPPORTED_VERSION
    elif source.readable_end > source.high_watermark and time != EARLIEST:  # KIP-207
        answer["error_code"] = (
            Code.OFFSET_NOT_AVAILABLE if version >= NOT_AVAILABLE_SINCE else Code.LEADER_NOT_AVAILABLE
        )
    elif time >= 0 or time == MAX_TIMESTAMP:
        return answer, source
    elif time != LATEST_TIERED:  # there is no tiered storage
        answer["offset"] = _limit(source, request["isolation_level"]) if time == LATEST else source.told_earliest()
        answer["leader_epoch"] = source.epochs.at(answer["offset"])
    return answer, None


async def _find(answer: Message, source: SourcePort, time: int, isolation: int) -> None:
    try:
        limit = _limit(source, isolation)
        found = await (source.find_latest_time(limit) if time == MAX_TIMESTAMP else source.find_time(time, limit))
    except KrappyError as error:
        answer["error_code"] = code_for(error)
        return
    if found is not None:
        answer["offset"], answer["timestamp"] = found
        answer["leader_epoch"] = source.epochs.at(found[0])


def _limit(source: SourcePort, isolation: int) -> int:
    return source.last_stable_offset if isolation == READ_COMMITTED else source.high_watermark


@serves(ApiKey.OFFSET_FOR_LEADER_EPOCH, needs=needs.topic(Op.DESCRIBE))
async def offset_for_leader_epoch(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """The end of a leader epoch, by which a client finds what a new leader lost (KIP-320)."""
    topics = []
    async with counted(session) as rows:
        for topic in request["topics"]:
            partitions = []
            for asked in topic["partitions"]:
                partitions.append(_end_of_epoch(session, topic["topic"], asked))
                await rows.add(1)
            topics.append({"topic": topic["topic"], "partitions": partitions})
    return {"topics": topics}


def _end_of_epoch(session: KafkaSessionPort, name: str, asked: Message) -> Message:
    index = asked["partition"]
    try:
        source = source_for(session, name, index, Op.DESCRIBE)
    except KrappyError as error:
        return {"partition": index, "error_code": code_for(error)}
    wrong = wrong_epoch(source, asked["current_leader_epoch"])
    if wrong:
        return {"partition": index, "error_code": wrong}
    found = source.epochs.end_of(asked["leader_epoch"], source.readable_end) if asked["leader_epoch"] >= 0 else None
    if found is None:
        return {"partition": index, "error_code": 0}  # an unknown epoch: epoch and offset are -1
    return {"partition": index, "error_code": 0, "leader_epoch": found[0], "end_offset": found[1]}
