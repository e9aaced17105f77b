"""LeaveGroup (13): members leave at once rather than when their session ends; from version 3 several (KIP-345)."""

from __future__ import annotations

from krappy.core.kafka.faults import Fault
from krappy.handlers.kafka.group_answers import Message
from krappy.ports import KafkaSessionPort

SEVERAL_SINCE = 3


def leave_group(session: KafkaSessionPort, request: Message, version: int) -> Message:
    groups = session.broker.kafka_groups
    name = request["group_id"]
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
