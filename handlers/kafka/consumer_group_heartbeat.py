"""ConsumerGroupHeartbeat (68): the whole of KIP-848 between a member and the broker: join, stay, be assigned, leave."""

from __future__ import annotations

from krappy.core.kafka.modern_member import JOINING, Beat, Beaten
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.group_answers import Message, by_topic, group_code, kafka_host
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey, Code

OWN_ID_SINCE = 1  # the version from which members choose their ids themselves (KIP-1082)


@serves(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, needs=needs.group(Op.READ) + needs.topic(Op.DESCRIBE))
def consumer_group_heartbeat(session: KafkaSessionPort, request: Message, version: int) -> Later[Message]:
    owned = request["topic_partitions"]
    topics = request["subscribed_topic_names"]
    member_id = request["member_id"]
    groups = session.access.kafka_group(request["group_id"], Op.READ)
    if not member_id and version < OWN_ID_SINCE and request["member_epoch"] == JOINING:
        member_id = groups.new_member_id()
    beat = Beat(
        member_id,
        request["member_epoch"],
        request["instance_id"],
        request["rack_id"],
        request["rebalance_timeout_ms"],
        None if topics is None else tuple(topics),
        request.get("subscribed_topic_regex"),
        request["server_assignor"],
        None if owned is None else frozenset((t["topic_id"], at) for t in owned for at in t["partitions"]),
        session.client_id or "",
        kafka_host(session),
    )

    def answer(beaten: Beaten | KrappyError) -> Message:
        told: Message = {
            "throttle_time_ms": 0,
            "heartbeat_interval_ms": groups.settings.heartbeat_ms(request["group_id"]),
        }
        if isinstance(beaten, KrappyError):
            return told | {"error_code": group_code(beaten), "error_message": beaten.text, "heartbeat_interval_ms": 0}
        told |= {"error_code": Code.NONE, "member_id": beaten.member_id, "member_epoch": beaten.epoch}
        if beaten.assignment is not None:
            parts = [{"topic_id": topic, "partitions": some} for topic, some in by_topic(beaten.assignment)]
            told["assignment"] = {"topic_partitions": parts}
        return told

    return groups.beat(request["group_id"], beat).map(answer)
