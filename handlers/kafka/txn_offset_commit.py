"""TxnOffsetCommit (28): a consumer's offsets as a part of its producer's transaction (KIP-98, KIP-447).

From version 3 on the request names the consumer's member and generation, so that a fenced member can't commit.
"""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.offset_commit import LONGEST_METADATA
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.sources import topic_named
from krappy.handlers.kafka.transactions import code_of, named
from krappy.ports import GroupMember, KafkaSessionPort, Position
from krappy.types import TopicPartition
from krappy.wire.kafka import ApiKey, Code

FENCED_SINCE = 3  # the version from which PRODUCER_FENCED is known


@serves(
    ApiKey.TXN_OFFSET_COMMIT, 0, 4, needs=needs.transactional_id(Op.WRITE) + needs.group(Op.READ) + needs.topic(Op.READ)
)
async def txn_offset_commit(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    codes: dict[TopicPartition, Code] = {}
    positions: dict[TopicPartition, Position] = {}
    for topic in request["topics"]:
        source = topic_named(session, topic["name"], Op.READ)  # special names have positions, too
        for asked in topic["partitions"]:
            at = TopicPartition(topic["name"], asked["partition_index"])
            metadata = asked["committed_metadata"] or ""
            if source is None or not 0 <= at.partition < source.count:
                codes[at] = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > LONGEST_METADATA:
                codes[at] = Code.OFFSET_METADATA_TOO_LARGE
            else:
                positions[at] = Position(asked["committed_offset"], asked["committed_leader_epoch"], metadata)
    member = GroupMember(
        request["group_id"], request["member_id"], request["generation_id"], request["group_instance_id"]
    )
    code = Code.NONE
    try:
        id = named(request["transactional_id"])
        await session.access.transactional_id(id, Op.WRITE).stage_offsets(
            id, request["producer_id"], request["producer_epoch"], member, positions
        )
    except KrappyError as error:
        code = code_of(error, fenced=version >= FENCED_SINCE)
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": asked["partition_index"],
                        "error_code": codes.get(TopicPartition(topic["name"], asked["partition_index"]), code),
                    }
                    for asked in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }
