"""DescribeClientQuotas (48): no client has a quota (KIP-546)."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

ENTITIES = ("user", "client-id", "ip")


def describe_client_quotas(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    for component in request["components"]:
        if component["entity_type"] not in ENTITIES:
            text = f"there are no quotas by '{component['entity_type']:.80}', only by {', '.join(ENTITIES)}"
            return {"error_code": Code.INVALID_REQUEST, "error_message": text, "entries": None}
    return {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "entries": []}
