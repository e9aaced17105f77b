"""LeaveGroup (13): members leave at once, not when their session times out; from version 3 on several (KIP-345)."""

from __future__ import annotations

from krappy.core.kafka.faults import Fault
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.group_answers import Message
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey

SEVERAL_SINCE = 3


@serves(ApiKey.LEAVE_GROUP, 0, 5, needs=needs.group(Op.READ))
def leave_group(session: KafkaSessionPort, request: Message, version: int) -> Message:
    name = request["group_id"]
    groups = session.access.kafka_group(name, Op.READ)
    if version < SEVERAL_SINCE:
        (fault,) = groups.leave(name, [(request["member_id"], None)])
        return {"throttle_time_ms": 0, "error_code": fault}
    leaving = [(each["member_id"], each["group_instance_id"]) for each in request["members"]]
    faults = groups.leave(name, leaving)
    return {
        "throttle_time_ms": 0,
        "error_code": 0 if name else Fault.INVALID_GROUP_ID,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": fault}
            for (member_id, instance_id), fault in zip(leaving, faults, strict=True)
        ],
    }
