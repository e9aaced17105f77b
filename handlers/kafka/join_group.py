"""JoinGroup (11): a consumer joins a classic group. The answer comes when the rebalance is over (KIP-62)."""

from __future__ import annotations

from typing import Any

from krappy.core.kafka.classic_member import Join, Joined
from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.handlers.kafka.group_answers import Message, kafka_host
from krappy.handlers.kafka.registry import serves
from krappy.ports import KafkaSessionPort
from krappy.waiting import Later
from krappy.wire.kafka import ApiKey

ID_FIRST_SINCE = 4  # the version from which a member without an id gets one and joins again (KIP-394)
NULL_PROTOCOL_SINCE = 7
SKIP_SINCE = 9  # the version from which a leader can be told to skip the assignment (KIP-814)


@serves(ApiKey.JOIN_GROUP, 0, 9, needs=needs.group(Op.READ))
def join_group(session: KafkaSessionPort, request: Message, version: int) -> Later[Message]:
    name, session_ms = request["group_id"], request["session_timeout_ms"]
    rebalance_ms = request["rebalance_timeout_ms"]
    ask = Join(
        request["member_id"],
        request["group_instance_id"],
        request["protocol_type"],
        tuple((each["name"], bytes(each["metadata"])) for each in request["protocols"]),
        session_ms,
        rebalance_ms if rebalance_ms >= 0 else session_ms,
        session.client_id or "",
        kafka_host(session),
        id_first=version >= ID_FIRST_SINCE,
        may_skip=version >= SKIP_SINCE,
    )

    def answer(joined: Joined) -> dict[str, Any]:
        protocol = joined.protocol
        return {
            "throttle_time_ms": 0,
            "error_code": joined.fault,
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": "" if protocol is None and version < NULL_PROTOCOL_SINCE else protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
                for member_id, instance_id, metadata in joined.members
            ],
        }

    return session.access.kafka_group(name, Op.READ).join(name, ask).map(answer)
