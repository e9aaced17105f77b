"""FindCoordinator (10): the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import FEW
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

GROUP, TRANSACTION = 0, 1  # key types; 2, of share groups (KIP-932), is not served
INTERNAL = {GROUP: "__consumer_offsets", TRANSACTION: "__transaction_state"}  # Kafka's internal topics for them
_SEVERAL_SINCE = 4  # the version from which several keys are asked for at once (KIP-699)


@serves(ApiKey.FIND_COORDINATOR, 0, 6, needs=needs.group(Op.DESCRIBE) + needs.transactional_id(Op.DESCRIBE))
async def find_coordinator(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    kind = request["key_type"]
    if version < _SEVERAL_SINCE:
        return _coordinator(session, request["key"], kind)
    found = []
    for number, key in enumerate(request["coordinator_keys"], 1):
        found.append(_coordinator(session, key, kind))
        if number % FEW == 0:
            await session.pause()
    return {"coordinators": found}


def _coordinator(session: KafkaSessionPort, key: str, kind: int) -> dict[str, Any]:
    if kind not in INTERNAL:
        error, text = Code.INVALID_REQUEST, "only groups and transactional ids have coordinators here"
        return {"key": key, "error_code": error, "error_message": text, "node_id": -1, "host": "", "port": -1}
    node = session.nodes().get(session.broker.coordinator(INTERNAL[kind], key))
    if node is None:
        error, text = Code.COORDINATOR_NOT_AVAILABLE, "the coordinator is away, or has no listener of this name"
        return {"key": key, "error_code": error, "error_message": text, "node_id": -1, "host": "", "port": -1}
    return {"key": key, "error_code": 0, "node_id": node.node_id, "host": node.host, "port": node.port}
