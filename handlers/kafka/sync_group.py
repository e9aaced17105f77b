"""SyncGroup (14): the leader of a classic group brings the assignment, and each member gets its part."""

from __future__ import annotations

from typing import Any

from krappy.core.kafka.classic_member import SyncAnswer
from krappy.core.kafka.faults import Fault
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.group_answers import Message
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey

PROTOCOL_SINCE = 5  # the version from which members name the group's protocol (KIP-559)


@serves(ApiKey.SYNC_GROUP, 0, 5, needs=needs.group(Op.READ))
def sync_group(session: KafkaSessionPort, request: Message, version: int) -> Message | Later[Message]:
    if version >= PROTOCOL_SINCE and (request["protocol_type"] is None or request["protocol_name"] is None):
        return _answer(SyncAnswer(Fault.INCONSISTENT_GROUP_PROTOCOL))
    later = session.access.kafka_group(request["group_id"], Op.READ).sync(
        request["group_id"],
        request["member_id"],
        request["generation_id"],
        request["group_instance_id"],
        request["protocol_type"],
        request["protocol_name"],
        {each["member_id"]: bytes(each["assignment"]) for each in request["assignments"]},
    )
    return later.map(_answer)


def _answer(synced: SyncAnswer) -> dict[str, Any]:
    return {
        "throttle_time_ms": 0,
        "error_code": synced.fault,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }
