"""OffsetForLeaderEpoch (23): the end of a leader epoch, by which a client finds what a new leader lost (KIP-320)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import counted
from krappy.handlers.kafka.sources import source_for, wrong_epoch
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, code_for


@serves(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, needs=needs.topic(Op.DESCRIBE))
async def offset_for_leader_epoch(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    topics = []
    async with counted(session) as rows:
        for topic in request["topics"]:
            partitions = []
            for asked in topic["partitions"]:
                partitions.append(_partition(session, topic["topic"], asked))
                await rows.add(1)
            topics.append({"topic": topic["topic"], "partitions": partitions})
    return {"topics": topics}


def _partition(session: KafkaSessionPort, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    index = asked["partition"]
    try:
        source = source_for(session, name, index, Op.DESCRIBE)
    except KrappyError as error:
        return {"partition": index, "error_code": code_for(error)}
    wrong = wrong_epoch(source, asked["current_leader_epoch"])
    if wrong:
        return {"partition": index, "error_code": wrong}
    found = source.epochs.end_of(asked["leader_epoch"], source.high_watermark) if asked["leader_epoch"] >= 0 else None
    if found is None:
        return {"partition": index, "error_code": 0}  # an unknown epoch: epoch and offset are -1
    return {"partition": index, "error_code": 0, "leader_epoch": found[0], "end_offset": found[1]}
