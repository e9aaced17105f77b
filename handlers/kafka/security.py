"""Quotas, which this broker does not have. The answers are Kafka's.

- DescribeClientQuotas, AlterClientQuotas (48, 49, KIP-546): there are no quotas; back-pressure bounds clients.
"""

from __future__ import annotations

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.refusals import DONE, denied_on_cluster
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import ApiKey, Code

NO_QUOTAS = "this broker has no quotas, so none can be set; its memory budget slows down clients that are too fast"
QUOTAS_OF = ("user", "client-id", "ip")


@serves(ApiKey.DESCRIBE_CLIENT_QUOTAS, needs=needs.cluster(Op.DESCRIBE_CONFIGS))
def describe_quotas(session: KafkaSessionPort, request: Message, version: int) -> Message:
    if (denied := denied_on_cluster(session, Op.DESCRIBE_CONFIGS)) is not None:
        return {**denied, "entries": None}
    for component in request["components"]:
        if component["entity_type"] not in QUOTAS_OF:
            text = f"there are no quotas by '{component['entity_type']:.80}', only by {', '.join(QUOTAS_OF)}"
            return {"error_code": Code.INVALID_REQUEST, "error_message": text, "entries": None}
    return {**DONE, "entries": []}


@serves(ApiKey.ALTER_CLIENT_QUOTAS, needs=needs.cluster(Op.ALTER_CONFIGS))
def alter_quotas(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Removing a quota succeeds, since there is none; setting one is refused."""
    entries = []
    denied = denied_on_cluster(session, Op.ALTER_CONFIGS)
    for entry in request["entries"]:
        if denied is not None:
            entries.append({**denied, "entity": entry["entity"]})
            continue
        sets = any(not change["remove"] for change in entry["ops"])
        code, text = (Code.INVALID_REQUEST, NO_QUOTAS) if sets else (Code.NONE, None)
        entries.append({"error_code": code, "error_message": text, "entity": entry["entity"]})
    return {"entries": entries}
