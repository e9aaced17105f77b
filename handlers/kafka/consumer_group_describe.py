"""ConsumerGroupDescribe (69): KIP-848 groups, their members, and the current and target assignment of each."""

from __future__ import annotations

from krappy.core.kafka.assignors import Partition
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, by_topic, group_code
from krappy.handlers.kafka.operations import ON_GROUP
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import counted
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

CLASSIC_MEMBER, MEMBER_OF_KIP_848 = 0, 1  # KIP-1099


@serves(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, needs=needs.group(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def consumer_group_describe(session: KafkaSessionPort, request: Message, version: int) -> Message:
    groups = []
    async with counted(session) as rows:
        for name in request["group_ids"]:
            groups.append(_describe(session, name))
            await rows.add(1 + sum(map(_rows, groups[-1]["members"])))
    if request["include_authorized_operations"]:
        for group in groups:
            group["authorized_operations"] = ON_GROUP
    return {"throttle_time_ms": 0, "groups": groups}


def _rows(member: Message) -> int:
    """How many rows a member counts for: one, and one for every two topics assigned or ten topic names subscribed."""
    parts = len(member["assignment"]["topic_partitions"]) + len(member["target_assignment"]["topic_partitions"])
    return 1 + parts // 2 + len(member["subscribed_topic_names"]) // 10


def _describe(session: KafkaSessionPort, name: str) -> Message:
    answer: Message = {"group_id": name, "group_state": "", "assignor_name": "", "members": [], "error_code": Code.NONE}
    try:
        group, names = session.access.kafka_group(name, Op.DESCRIBE).admin.describe_modern(name)
    except KrappyError as error:
        code = group_code(error) if name else Code.INVALID_GROUP_ID
        return answer | {"error_code": code, "error_message": error.text}

    def parts(partitions: frozenset[Partition]) -> Message:
        return {
            "topic_partitions": [
                {"topic_id": topic, "topic_name": names.get(topic, ""), "partitions": some}
                for topic, some in by_topic(partitions)
            ]
        }

    return answer | {
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [
            {
                "member_id": each.id,
                "instance_id": each.instance_id,
                "rack_id": each.rack,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "subscribed_topic_names": list(each.topics),
                "subscribed_topic_regex": each.regex,
                "assignment": parts(each.assigned),
                "target_assignment": parts(group.target.get(each.id, frozenset())),
                "member_type": MEMBER_OF_KIP_848 if each.classic is None else CLASSIC_MEMBER,
            }
            for each in group.members.values()
        ],
    }
