"""EndTxn (26): commits or aborts a transaction (KIP-98). Answered when its markers are on disk."""

from __future__ import annotations

from typing import Any

from krappy.errors import KrappyError
from krappy.handlers.kafka.transactions import code_of, named
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

FENCED_SINCE = 2  # the version from which PRODUCER_FENCED is known


async def end_txn(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    try:
        await session.broker.transactions.end(
            named(request["transactional_id"]), request["producer_id"], request["producer_epoch"], request["committed"]
        )
    except KrappyError as error:
        return {"error_code": code_of(error, fenced=version >= FENCED_SINCE)}
    return {"error_code": Code.NONE}
