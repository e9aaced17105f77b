"""DeleteGroups (42): deletes groups without members, native ones too, with their offsets (KIP-229)."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code


@serves(ApiKey.DELETE_GROUPS, 0, 2, needs=needs.group(Op.DELETE))
async def delete_groups(session: KafkaSessionPort, request: Message, version: int) -> Message:
    results = []
    for name in request["groups_names"]:
        code: int = Code.NONE
        try:
            await session.access.kafka_group(name, Op.DELETE).admin.delete(name)
        except KrappyError as error:
            code = group_code(error) if name else Code.INVALID_GROUP_ID
        results.append({"group_id": name, "error_code": code})
    return {"throttle_time_ms": 0, "results": results}
