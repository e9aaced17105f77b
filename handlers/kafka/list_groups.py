"""ListGroups (16): all groups of the broker, native ones among them; filtered by state (KIP-518) and type (KIP-848)."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.group_answers import Message
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import FEW
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey


@serves(ApiKey.LIST_GROUPS, 0, 5, needs=needs.group(Op.DESCRIBE))
async def list_groups(session: KafkaSessionPort, request: Message, version: int) -> Message:
    states = {state.lower() for state in request.get("states_filter") or ()}
    kinds = {kind.lower() for kind in request.get("types_filter") or ()}
    groups = []
    for number, each in enumerate(session.access.kafka_groups(Op.DESCRIBE).admin.list_groups(), 1):
        if number % FEW == 0:
            await session.pause()
        if (not states or each.state.lower() in states) and (not kinds or each.kind in kinds):
            groups.append(
                {
                    "group_id": each.name,
                    "protocol_type": each.protocol_type,
                    "group_state": each.state,
                    "group_type": each.kind,
                }
            )
    return {"throttle_time_ms": 0, "error_code": 0, "groups": groups}
