"""EndTxn (26): commits or aborts a transaction (KIP-98). Answered when its markers are on disk."""

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


@serves(ApiKey.END_TXN, 0, 4, needs=needs.transactional_id(Op.WRITE))
async def end_txn(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    try:
        id = named(request["transactional_id"])
        await session.access.transactional_id(id, Op.WRITE).end(
            id, request["producer_id"], request["producer_epoch"], request["committed"]
        )
    except KrappyError as error:
        return {"error_code": code_of(error, fenced=version >= FENCED_SINCE)}
    return {"error_code": Code.NONE}
