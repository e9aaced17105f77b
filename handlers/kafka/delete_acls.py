"""DeleteAcls (31): there is no authorizer, and so there are no ACLs; said as Kafka says it."""

from __future__ import annotations

from typing import Any

from krappy.handlers.kafka.describe_acls import NO_AUTHORIZER
from krappy.ports import KafkaSessionPort


def delete_acls(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    results = [{**NO_AUTHORIZER, "matching_acls": []} for _ in request["filters"]]
    return {"throttle_time_ms": 0, "filter_results": results}
