"""DescribeTransactions (65): the transactions of some transactional ids (KIP-664)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import counted
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

Message = dict[str, Any]


@serves(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, needs=needs.transactional_id(Op.DESCRIBE) + needs.topic(Op.DESCRIBE))
async def describe_transactions(session: KafkaSessionPort, request: Message, version: int) -> Message:
    states = []
    async with counted(session) as rows:
        for name in request["transactional_ids"]:
            states.append(_state(session, name))
            await rows.add(1 + len(states[-1].get("topics", ())))
    return {"throttle_time_ms": 0, "transaction_states": states}


def _state(session: KafkaSessionPort, name: str) -> Message:
    found = session.access.transactional_id(name, Op.DESCRIBE).find(name)
    if found is None:
        code = Code.TRANSACTIONAL_ID_NOT_FOUND
        return {"error_code": code, "transactional_id": name, "producer_id": -1, "producer_epoch": -1}
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        topics.setdefault(topic, []).append(partition)
    started_ms = session.broker.clock.as_told(found.started_ms) if found.started_ms >= 0 else -1
    return {
        "error_code": 0,
        "transactional_id": name,
        "transaction_state": str(found.stage),
        "transaction_timeout_ms": found.timeout_ms,
        "transaction_start_time_ms": started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
