"""Heartbeat (12): a member of a classic group is alive, and learns whether it must join again."""

from __future__ import annotations

from krappy.handlers.kafka.group_answers import Message
from krappy.ports import KafkaSessionPort


def heartbeat(session: KafkaSessionPort, request: Message, version: int) -> Message:
    fault = session.broker.kafka_groups.heartbeat(
        request["group_id"], request["member_id"], request["generation_id"], request["group_instance_id"]
    )
    return {"throttle_time_ms": 0, "error_code": fault}
