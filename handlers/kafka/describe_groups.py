"""DescribeGroups (15): classic groups with their members, and native groups in the same form."""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, group_code
from krappy.handlers.kafka.operations import ON_GROUP
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import counted
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

NOT_FOUND_SINCE = 6  # the version from which a missing group is an error; before, its state is Dead (KIP-1043)


@serves(ApiKey.DESCRIBE_GROUPS, 0, 6, needs=needs.group(Op.DESCRIBE))
async def describe_groups(session: KafkaSessionPort, request: Message, version: int) -> Message:
    groups = []
    async with counted(session) as rows:
        for name in request["groups"]:
            groups.append(_describe(session, name, version))
            await rows.add(1 + len(groups[-1]["members"]))
    if request["include_authorized_operations"]:
        for group in groups:
            group["authorized_operations"] = ON_GROUP
    return {"throttle_time_ms": 0, "groups": groups}


def _describe(session: KafkaSessionPort, name: str, version: int) -> Message:
    answer: Message = {"group_id": name, "error_code": 0, "protocol_type": "", "protocol_data": "", "members": []}
    if not name:
        return answer | {"error_code": Code.INVALID_GROUP_ID, "group_state": ""}
    try:
        found = session.access.kafka_group(name, Op.DESCRIBE).admin.describe(name)
    except KrappyError as error:
        answer["group_state"] = "Dead"
        if version >= NOT_FOUND_SINCE:
            answer |= {"error_code": group_code(error), "error_message": error.text}
        return answer
    return answer | {
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol,
        "members": [
            {
                "member_id": member_id,
                "group_instance_id": instance_id,
                "client_id": client_id,
                "client_host": client_host,
                "member_metadata": metadata,
                "member_assignment": assignment,
            }
            for member_id, instance_id, client_id, client_host, metadata, assignment in found.members
        ],
    }
