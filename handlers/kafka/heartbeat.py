"""Heartbeat (12): a member of a classic group shows that it is alive, and learns whether it must join again."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.group_answers import Message
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey


@serves(ApiKey.HEARTBEAT, 0, 4, needs=needs.group(Op.READ))
def heartbeat(session: KafkaSessionPort, request: Message, version: int) -> Message:
    name = request["group_id"]
    fault = session.access.kafka_group(name, Op.READ).heartbeat(
        name, request["member_id"], request["generation_id"], request["group_instance_id"]
    )
    return {"throttle_time_ms": 0, "error_code": fault}
