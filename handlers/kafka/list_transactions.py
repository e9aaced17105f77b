"""ListTransactions (66): all transactional ids, or those of some states, producers or a duration (KIP-664)."""

from __future__ import annotations

from typing import Any

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.core.transactions import TxnStage
from krappy.handlers.kafka.registry import serves
from krappy.handlers.kafka.rows import FEW
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey

NO_FILTER = -1


@serves(ApiKey.LIST_TRANSACTIONS, 0, 1, needs=needs.transactional_id(Op.DESCRIBE))
async def list_transactions(session: KafkaSessionPort, request: dict[str, Any], version: int) -> dict[str, Any]:
    """`duration_filter`: only transactions that have been open for longer, in ms."""
    known = set(TxnStage)
    states, producers, ms = request["state_filters"], set(request["producer_id_filters"]), request["duration_filter"]
    wanted = {state for state in states if state in known}
    now = session.broker.clock.steady_ms()
    found = []
    for number, each in enumerate(session.access.transactional_ids(Op.DESCRIBE).list(), 1):
        if (
            (not states or each.stage in wanted)
            and (not producers or each.producer_id in producers)
            and (ms <= NO_FILTER or (each.started_ms >= 0 and now - each.started_ms > ms))
        ):
            state = str(each.stage)
            found.append({"transactional_id": each.name, "producer_id": each.producer_id, "transaction_state": state})
        if number % FEW == 0:
            await session.pause()
    unknown = [state for state in dict.fromkeys(states) if state not in known]
    return {"throttle_time_ms": 0, "error_code": 0, "unknown_state_filters": unknown, "transaction_states": found}
