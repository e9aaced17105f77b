"""OffsetDelete (47): a group forgets its positions in topics that none of its members subscribes to (KIP-496)."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code


@serves(ApiKey.OFFSET_DELETE, 0, 0, needs=needs.group(Op.DELETE) + needs.topic(Op.READ))
async def offset_delete(session: KafkaSessionPort, request: Message, version: int) -> Message:
    groups = session.access.kafka_group(request["group_id"], Op.DELETE)
    asked = [(topic["name"], [each["partition_index"] for each in topic["partitions"]]) for topic in request["topics"]]
    try:
        faults = await groups.offsets.delete_from(
            request["group_id"], [(name, at) for name, some in asked for at in some]
        )
    except KrappyError as error:
        return {"error_code": group_code(error), "throttle_time_ms": 0, "topics": []}
    return {
        "error_code": Code.NONE,
        "throttle_time_ms": 0,
        "topics": [
            {"name": name, "partitions": [{"partition_index": at, "error_code": faults[name, at]} for at in some]}
            for name, some in asked
        ],
    }
