"""ListPartitionReassignments (46): there is one broker, so no partition ever moves (KIP-455)."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort


def list_partition_reassignments(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    return {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "topics": []}
