"""InitProducerId (22): gives a producer an id and an epoch, so that a batch it sends twice is stored once (KIP-98,
KIP-360).

Without a transactional id the answer is always a new id with epoch 0, as from Kafka's TransactionCoordinator. A
producer that must restart its sequences raises its epoch by itself.
"""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.errors import KrappyError
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.transactions import code_of
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

FENCED_SINCE = 4  # the version from which PRODUCER_FENCED is known


@serves(ApiKey.INIT_PRODUCER_ID, 0, 5, needs=needs.transactional_id(Op.WRITE) + needs.cluster(Op.IDEMPOTENT_WRITE))
async def init_producer_id(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    name = request["transactional_id"]
    try:
        if name is None:
            producer_id, epoch = await session.access.cluster(Op.IDEMPOTENT_WRITE).new_producer_id(), 0
        else:
            producer_id, epoch = await session.access.transactional_id(name, Op.WRITE).init_producer(
                name,
                request["transaction_timeout_ms"],
                request["producer_id"],
                request["producer_epoch"],
            )
    except KrappyError as error:
        code = code_of(error, fenced=version >= FENCED_SINCE)
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": Code.NONE, "producer_id": producer_id, "producer_epoch": epoch}
