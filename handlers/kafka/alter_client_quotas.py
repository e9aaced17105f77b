"""AlterClientQuotas (49): refused, since none would be kept to (KIP-546). What bounds clients here is back-pressure."""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code


def alter_client_quotas(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    """To take a quota away that nobody has changes nothing, and is done."""
    text = "this broker keeps to no quotas, so none can be set; its memory budget holds up clients that are too fast"
    entries = []
    for entry in request["entries"]:
        sets = any(not op["remove"] for op in entry["ops"])
        code, said = (Code.INVALID_REQUEST, text) if sets else (Code.NONE, None)
        entries.append({"error_code": code, "error_message": said, "entity": entry["entity"]})
    return {"throttle_time_ms": 0, "entries": entries}
