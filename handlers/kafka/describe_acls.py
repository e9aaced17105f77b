"""DescribeAcls (29): there is no authorizer, and so there are no ACLs; said as Kafka says it."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

NO_AUTHORIZER: dict[str, Any] = {
    "error_code": Code.SECURITY_DISABLED,
    "error_message": "No Authorizer is configured on the broker",
}


def describe_acls(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    return {"throttle_time_ms": 0, **NO_AUTHORIZER, "resources": []}
