"""CreateDelegationToken (38), and Renew, Expire and Describe (39 to 41; KIP-48): not to be had without authentication.

Kafka refuses them so on a listener where nobody authenticates.
"""

from __future__ import annotations

from typing import Any

from krappy.ports import KafkaSessionPort
from krappy.wire.kafka import Code

Message = dict[str, Any]
_REFUSED: Message = {"error_code": Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}


def create_delegation_token(session: KafkaSessionPort, request: Message, version: int) -> Message:
    never = {"issue_timestamp_ms": -1, "expiry_timestamp_ms": -1, "max_timestamp_ms": -1}
    return {**_REFUSED, "principal_type": "User", "principal_name": "ANONYMOUS", **never}


def renew_delegation_token(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {**_REFUSED, "expiry_timestamp_ms": -1}


def expire_delegation_token(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {**_REFUSED, "expiry_timestamp_ms": -1}


def describe_delegation_token(session: KafkaSessionPort, request: Message, version: int) -> Message:
    return {**_REFUSED, "tokens": []}
