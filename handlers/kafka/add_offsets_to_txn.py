"""AddOffsetsToTxn (25): a producer is about to commit a group's offsets in its transaction (KIP-98)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.transactions import code_of, named
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

FENCED_SINCE = 2  # the version from which PRODUCER_FENCED is known


@serves(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, needs=needs.transactional_id(Op.WRITE) + needs.group(Op.READ))
async def add_offsets_to_txn(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    if not request["group_id"]:
        return {"error_code": Code.INVALID_GROUP_ID}
    try:
        id = named(request["transactional_id"])
        await session.access.transactional_id(id, Op.WRITE).add_group(
            id, request["producer_id"], request["producer_epoch"], request["group_id"]
        )
    except KrappyError as error:
        return {"error_code": code_of(error, fenced=version >= FENCED_SINCE)}
    return {"error_code": Code.NONE}
