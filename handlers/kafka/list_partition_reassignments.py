"""ListPartitionReassignments (46): there is one broker, so no partition ever moves (KIP-455)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey


@serves(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, needs=needs.cluster(Op.DESCRIBE))
def list_partition_reassignments(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    return {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "topics": []}
