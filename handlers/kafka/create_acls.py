"""CreateAcls (30): there is no authorizer, and so there can be no ACLs; said as Kafka says it."""

from __future__ import annotations

from typing import Any

from krappy.handlers.kafka.describe_acls import NO_AUTHORIZER
from krappy.ports import KafkaSessionPort


def create_acls(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    return {"throttle_time_ms": 0, "results": [NO_AUTHORIZER for _ in request["creations"]]}
